"""A workload as a JSON file: the fields of `Workload`, null for what is not known.

`ddlprof features` writes one from a model alone; it can also be written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from recommender.errors import PredictionError
from recommender.workload import Measurement, Workload

_NUMBERS = ("int", "float")


def write_workload(workload: Workload, path: Path) -> None:
    """Replaces the file. Raises PredictionError where it cannot be written."""
    text = json.dumps(asdict(workload), indent=1, allow_nan=False) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PredictionError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_workload(path: Path) -> Workload:
    """Raises PredictionError, naming the file and the field, if it cannot be read or is not a workload."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise PredictionError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise PredictionError(f"{path}: not JSON: {error}") from None
    try:
        return _workload(value)
    except _FieldError as error:
        raise PredictionError(f"{path}: {error}; make one with: ddlprof features MODULE:FACTORY -o FILE") from None


class _FieldError(ValueError):
    """Names the field and what is wrong with it."""


def _workload(value: Any) -> Workload:
    known = _fields(Workload, value, "the workload")
    measurements = known.pop("measurements", ())
    if not isinstance(measurements, tuple):
        raise _FieldError("measurements: not a list")
    made = [Measurement(**_fields(Measurement, one, f"measurement {i}")) for i, one in enumerate(measurements, 1)]
    return Workload(**known, measurements=tuple(made))


def _fields(record: type[Workload | Measurement], value: Any, where: str) -> dict[str, Any]:
    """The fields of a record that are there; those that are not and have no default are None, or an error."""
    if not isinstance(value, Mapping):
        raise _FieldError(f"{where} is not an object")
    found: dict[str, Any] = {}
    for field in fields(record):
        given = value.get(field.name)
        kind = str(field.type)
        if given is None:
            if field.default is MISSING and "None" not in kind:
                raise _FieldError(f"{where} has no {field.name}")
            if field.default is MISSING:
                found[field.name] = None
            continue
        found[field.name] = _checked(given, kind, f"{where}: {field.name}")
    return found


def _checked(value: Any, kind: str, where: str) -> Any:
    """Lists become tuples; numbers and texts are what the annotation says."""
    if isinstance(value, list):
        if kind.startswith("tuple[int") and not (value and all(type(item) is int and item > 0 for item in value)):
            raise _FieldError(f"{where}: not a list of positive whole numbers")
        return tuple(value)
    if kind.startswith(_NUMBERS) and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise _FieldError(f"{where}: not a number")
    if kind.startswith("str") and not isinstance(value, str):
        raise _FieldError(f"{where}: not a text")
    if kind.startswith("tuple"):
        raise _FieldError(f"{where}: not a list")
    return value
