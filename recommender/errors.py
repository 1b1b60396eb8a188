"""The error of the predictor, and the check of records that raises it."""

from __future__ import annotations

from typing import Any

from ddlprof.base.errors import DdlprofError
from ddlprof.base.reading import ReadingError, settle


class PredictionError(DdlprofError, ValueError):
    """A job or a target cannot be predicted; the message is one line that says why and what to do."""


def checked(record: Any) -> None:
    """Checks a record in its `__post_init__`: raises `PredictionError` for a field that contradicts its annotation."""
    try:
        settle(record)
    except ReadingError as error:
        raise PredictionError(f"{type(record).__name__.lower()}: {error}") from None
