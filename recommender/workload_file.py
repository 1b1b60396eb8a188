"""A workload as a JSON file: the fields of `Workload`, null for what is not known.

`ddlprof features` writes one from a model alone; it can also be written by hand.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ddlprof.base.reading import ReadingError, decode, parse_json, read_text
from recommender.errors import PredictionError
from recommender.workload import Workload

MAX_FILE_BYTES = 4 * 2**20
"""The largest file that is read: enough for ten thousand measurements."""


def workload_text(workload: Workload) -> str:
    """The text of the file."""
    return json.dumps(asdict(workload), indent=1, allow_nan=False) + "\n"


def write_workload(workload: Workload, path: Path) -> None:
    """Replaces the file. Raises PredictionError where it cannot be written."""
    try:
        path.write_text(workload_text(workload), encoding="utf-8")
    except OSError as error:
        raise PredictionError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_workload(path: Path) -> Workload:
    """Raises PredictionError, naming the file and the field, if it cannot be read or is not a workload."""
    try:
        text = read_text(path, MAX_FILE_BYTES)
    except ReadingError as error:
        raise PredictionError(f"{path}: {error}") from None
    try:
        return decode(Workload, parse_json(text))
    except ReadingError as error:
        raise PredictionError(f"{path}: {error}; make one with: ddlprof features MODULE:FACTORY -o FILE") from None
