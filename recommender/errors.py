"""The one error of the predictor."""

from __future__ import annotations

from ddlprof.model.errors import DdlprofError


class PredictionError(DdlprofError, ValueError):
    """A job or a target that cannot be predicted: one line that says what is wrong and what to do."""
