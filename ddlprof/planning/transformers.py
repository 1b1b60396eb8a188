"""Jobs of training transformers that are known by their sizes: named one by one, or in a config.json. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import UserError, naming
from ddlprof.base.reading import parse_json, read_text

if TYPE_CHECKING:
    from ddlprof.recommender import Workload

BY_SIZES = "transformer"
"""The model whose sizes are named one by one."""
_CONFIG_ENDING = ".json"
_NEEDED = ("layers", "hidden", "heads", "vocab")
_MAX_CONFIG_BYTES = 2**20
_TEXT_ALONE = "model: the sizes are those of its text part alone"


def is_known_by_sizes(model: str) -> bool:
    """Whether the words name a transformer by its sizes, or by a path to a config.json."""
    return model == BY_SIZES or (model.endswith(_CONFIG_ENDING) and not model.startswith("transformers:"))


def workload_by_sizes(model: str, sizes: Mapping[str, Any], seq_len: int | None) -> Workload:
    """The job of training a model of these sizes, or the one of a config.json, on samples of `seq_len` tokens.

    `sizes` are arguments of `recommender.transformer`; None stands for its default. Raises UserError or PredictionError
    for sizes that are missing or contradict each other, and for a config that is not understood.
    """
    from ddlprof.recommender import transformer
    from ddlprof.recommender.layouts.coefficients import shipped_layouts
    from ddlprof.recommender.model_config import USUAL_TOKENS

    given = {name: value for name, value in sizes.items() if value is not None}
    if "software" in given:
        shipped_layouts().of(given["software"])  # raises for an unknown one
    assumed = [] if seq_len else [f"tokens: none were named, so {USUAL_TOKENS:,} a sample at most (--seq-len)"]
    if model == BY_SIZES:
        missing = [f"--{name}" for name in _NEEDED if name not in given]
        if missing:
            raise UserError(f"features transformer needs {', '.join(missing)}")
        return replace(transformer(**given, seq=seq_len or USUAL_TOKENS), assumed=assumed)
    if not is_known_by_sizes(model) or given.keys() - {"software"}:
        raise UserError(f"{', '.join(map(_option, given))}: named for `features transformer`, not for {model}")
    return _of_config(model, seq_len, given.get("software"), assumed)


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _of_config(path: str, seq_len: int | None, software: str | None, assumed: list[str]) -> Workload:
    from ddlprof.recommender import PredictionError
    from ddlprof.recommender.model_config import sizes_of_config
    from ddlprof.recommender.transformer_job import workload_of

    with naming(path):
        config = parse_json(read_text(path, _MAX_CONFIG_BYTES))
    if not isinstance(config, dict):
        raise UserError(f"{path}: holds no object with the fields of a config")
    try:
        found = workload_of(sizes_of_config(config, seq_len), _name(path, config), software)
    except PredictionError as error:
        raise UserError(f"{path}: {error}") from None
    return replace(found, assumed=[*assumed, *([_TEXT_ALONE] if isinstance(config.get("text_config"), dict) else [])])


def _name(path: str, config: Mapping[str, Any]) -> str:
    """The model's own name where the config has it; else that of its file or folder."""
    named = config.get("_name_or_path")
    if isinstance(named, str) and named.strip("/. "):
        return named.rstrip("/").rpartition("/")[2]
    file = Path(path).resolve()
    return file.parent.name if file.stem == "config" else file.stem
