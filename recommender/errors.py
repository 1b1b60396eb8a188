"""The error of the predictor, and the records that raise it."""

from __future__ import annotations

from ddlprof.base.errors import DdlprofError
from ddlprof.base.reading import ReadingError, settle


class PredictionError(DdlprofError, ValueError):
    """A job or a target cannot be predicted; the message is one line that says why and what to do."""


class Checked:
    """A record whose fields are checked when it is made: `PredictionError` for one that contradicts its annotation."""

    def __post_init__(self) -> None:
        try:
            settle(self)
        except ReadingError as error:
            raise PredictionError(f"{type(self).__name__.lower()}: {error}") from None
