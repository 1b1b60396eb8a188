"""Lists all texts in a shared run, so that one can look at them before sending it."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.base.reading import ReadingError, parse_json
from ddlprof.model.blocks import LAYOUTS
from ddlprof.model.codec import KINDS, REST, SHAPES
from ddlprof.model.manifest import LayoutFacts, Manifest, ModelFacts, TrainingFacts
from ddlprof.model.operators import Operator, OperatorsFile, StepMemory, StepOperators
from ddlprof.model.records import CollectiveShape, CollectiveTimes, RankHeader
from ddlprof.store.archive import ZipFolder, is_archive
from ddlprof.store.numbers import DAMAGE
from ddlprof.store.operators import MAX_BYTES

_RECORDS = (
    *KINDS.values(), RankHeader, CollectiveShape, CollectiveTimes, Manifest, ModelFacts, TrainingFacts, LayoutFacts,
    OperatorsFile, StepOperators, StepMemory, Operator,
)  # fmt: skip
_FIELDS = {f.name for kind in _RECORDS for f in fields(kind)}
_OF_BLOCKS = {*LAYOUTS, "blocks", *(word for layout in LAYOUTS.values() for column in layout for word in column)}
OWN_WORDS = _FIELDS | {name + REST for name in _FIELDS} | {*KINDS, SHAPES, "columns"} | _OF_BLOCKS
"""Names of fields, which are the same in all runs."""
MAX_TEXTS = 100_000
"""The most different texts that are listed. A shared run has a few for each rank, group and source line."""
_LONGEST_TEXT = 1000


def texts_in(path: Path) -> dict[str, Counter[str]]:
    """For each member of an archive, its different texts (names of fields included) and how often each occurs."""
    if not path.exists():
        raise UserError(f"{path}: there is no such file; write one with: ddlprof share RUN -o {path.name}")
    if not is_archive(path):
        raise UserError(f"{path}: is no file that ddlprof share wrote")
    folder = ZipFolder(path)
    names = list(folder.files())
    return {name: _texts(name, content) for name, content in zip(names, folder.contents(names), strict=True)}


def others_in(path: Path) -> list[str]:
    """Names of members that do not belong to a run: ddlprof does not read them, and `share` does not write them."""
    return ZipFolder(path).others


def _texts(name: str, content: bytes | ReadingError) -> Counter[str]:
    found: Counter[str] = Counter()
    if isinstance(content, ReadingError):
        raise UserError(f"{name}: {content}")
    if name.endswith(".steps"):
        return found
    if not name.endswith(".jsonl") and len(content) > MAX_BYTES:
        raise UserError(f"{name}: has {len(content):,} bytes; at most {MAX_BYTES:,} are read")
    for line in BytesIO(content) if name.endswith(".jsonl") else [content]:
        _add(_value(line.decode(errors="replace").rstrip("\n")), found)
        if len(found) > MAX_TEXTS:
            raise UserError(f"{name}: has more than {MAX_TEXTS:,} different texts, which no shared run has")
    return found


def _value(text: str) -> Any:
    """The value of a JSON text; the text itself if it is no JSON or too long to be read as such."""
    try:
        return parse_json(text) if text and len(text) <= MAX_BYTES else text
    except DAMAGE:
        return text


def _add(value: Any, found: Counter[str]) -> None:
    if isinstance(value, str):
        found[_shown(value)] += 1
    elif isinstance(value, dict):
        found.update(map(_shown, value))
        for each in value.values():
            _add(each, found)
    elif isinstance(value, list):
        for each in value:
            _add(each, found)


def _shown(text: str) -> str:
    """The text, or the beginning and length of a very long one."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}... ({len(text):,} characters)"
