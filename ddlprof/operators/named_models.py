"""Models by name from timm, torchvision and transformers: how to build them, without weights, and their inputs.

Nothing is downloaded. The names for transformers are those in `transformers_models.json`, which has their sizes.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.base.text import closest
from ddlprof.operators.model_alone import InputSpec

LIBRARIES = ("timm", "torchvision", "transformers")
_IMAGE = (3, 224, 224)
_MOST_TOKENS = 1024
"""The most tokens of a sample, even if the model allows more."""
_WITH_BACKBONE = ("fpn", "deeplab", "fcn", "ssd")
_TABLE = Path(__file__).with_name("transformers_models.json")


@dataclass(frozen=True)
class NamedModel:
    """How a model is made and called."""

    factory: Callable[[], Any]
    inputs: Callable[[bool], list[InputSpec]]
    """The inputs for training (True) or inference (False)."""
    config: dict[str, Any] | None = None
    """The fields of the model's config, for a model of transformers."""


def find(library: str, name: str, seq_len: int | None = None) -> NamedModel:
    """The model with this name in a library. Raises UserError if it is unknown or the library cannot be imported."""
    module = _imported(library)
    if library == "timm":
        return _timm(module, name)
    if library == "torchvision":
        return _torchvision(name)
    return _transformers(module, name, seq_len)


def _imported(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError:
        raise UserError(f"{library} is not installed: pip install {library}") from None
    except Exception as error:
        message = str(error).partition("\n")[0]
        raise UserError(f"{library} cannot be imported: {type(error).__name__}: {message}") from None


def _timm(timm: Any, name: str) -> NamedModel:
    if name.partition(".")[0] not in timm.list_models():
        raise UserError(f"timm:{name}: timm has no such model{closest(name, timm.list_models())}")
    architecture = name.partition(".")[0]  # a name of weights follows the dot
    size = timm.get_pretrained_cfg(architecture)
    shape = tuple(size.input_size) if size is not None and size.input_size else _IMAGE
    return NamedModel(lambda: timm.create_model(architecture, pretrained=False), lambda _: [InputSpec(shape, None)])


def _torchvision(name: str) -> NamedModel:
    models = importlib.import_module("torchvision.models")
    if name not in models.list_models():
        raise UserError(f"torchvision:{name}: torchvision has no such model{closest(name, models.list_models())}")
    extra = {"weights_backbone": None} if any(part in name for part in _WITH_BACKBONE) else {}
    side = 299 if name == "inception_v3" else 224
    shape: tuple[int, ...] = (3, side, side)
    if name.startswith(("r3d", "mc3", "r2plus1d", "s3d", "mvit", "swin3d")):  # videos of 16 frames
        shape = (3, 16, 112, 112) if not name.startswith(("mvit", "swin3d", "s3d")) else (3, 16, 224, 224)
    return NamedModel(lambda: models.get_model(name, weights=None, **extra), lambda _: [InputSpec(shape, None)])


def transformers_models() -> dict[str, Any]:
    """Models of transformers by name: class, config class, and the sizes that differ from the config's defaults."""
    found: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return found


def _transformers(transformers: Any, name: str, seq_len: int | None) -> NamedModel:
    if name.endswith(".json"):
        return _from_config(transformers, name, seq_len)
    table = transformers_models()
    if name not in table:
        raise UserError(
            f"transformers:{name}: not known{closest(name, table)}; known without a download: {', '.join(table)};"
            " a path to its config.json or MODULE:FACTORY works for any other"
        )
    row = table[name]
    try:
        config_class, model_class = (getattr(transformers, row[key]) for key in ("config", "model"))
    except AttributeError as error:
        raise UserError(f"transformers:{name}: this version of transformers has it not ({error})") from None
    config = config_class(**row["sizes"])
    return NamedModel(lambda: model_class(config), _inputs(config, row["model"], seq_len), config.to_dict())


def _from_config(transformers: Any, path: str, seq_len: int | None) -> NamedModel:
    try:
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a config of transformers: {error}") from None
    names: Any = fields.get("architectures") if isinstance(fields, dict) else None
    model_class = getattr(transformers, names[0], None) if isinstance(names, list) and names else None
    if model_class is None:
        raise UserError(f"{path}: its `architectures` names no model of the installed transformers")
    config = model_class.config_class.from_dict(fields)
    return NamedModel(lambda: model_class(config), _inputs(config, names[0], seq_len), config.to_dict())


def _inputs(config: Any, model: str, seq_len: int | None) -> Callable[[bool], list[InputSpec]]:
    """The inputs of a model of transformers: tokens or an image, and labels for training."""

    def inputs(training: bool) -> list[InputSpec]:
        if getattr(config, "model_type", "") == "whisper":
            features = [InputSpec((config.num_mel_bins, 2 * config.max_source_positions), None, "input_features")]
            length = seq_len or config.max_target_positions
            return [*features, InputSpec((length,), "int64", "labels" if training else "decoder_input_ids")]
        if hasattr(config, "image_size") and not hasattr(config, "text_config"):
            side = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
            image = InputSpec((getattr(config, "num_channels", 3), side, side), None, "pixel_values")
            return [image, InputSpec((), "int64", "labels")] if training and "Classification" in model else [image]
        longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 512
        length = seq_len or min(int(longest), _MOST_TOKENS)
        tokens = [InputSpec((length,), "int64", "input_ids")]
        if not training:
            decoder = getattr(config, "is_encoder_decoder", False)
            return [*tokens, InputSpec((length,), "int64", "decoder_input_ids")] if decoder else tokens
        return [*tokens, *_labels(model, length)]

    return inputs


def _labels(model: str, length: int) -> list[InputSpec]:
    if "SequenceClassification" in model:
        return [InputSpec((), "int64", "labels")]
    if "QuestionAnswering" in model:
        return [InputSpec((), "int64", "start_positions"), InputSpec((), "int64", "end_positions")]
    if any(part in model for part in ("LM", "ForConditionalGeneration", "TokenClassification", "ForPreTraining")):
        return [InputSpec((length,), "int64", "labels")]
    return []
