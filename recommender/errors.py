"""The one error of the predictor, raised for impossible records too."""

from __future__ import annotations

from typing import Any

from ddlprof.base.errors import DdlprofError
from ddlprof.base.reading import ReadingError, settle


class PredictionError(DdlprofError, ValueError):
    """A job or a target that cannot be predicted: one line that says what is wrong and what to do."""


def checked(record: Any) -> None:
    """For the `__post_init__` of a record: raises `PredictionError` where a field is not what its annotation says."""
    try:
        settle(record)
    except ReadingError as error:
        raise PredictionError(f"{type(record).__name__.lower()}: {error}") from None
