"""Reads `summary.json` of a run directory, every field checked."""

from __future__ import annotations

from ddlprof.base.reading import NOT_NEGATIVE, ReadingError, decode, versioned_object
from ddlprof.model.run_summary import SUMMARY_SCHEMA, RunSummary

MAX_SUMMARY_BYTES = 1 << 20
"""A summary has three thousand characters; with the longest names some more."""


def decode_summary(content: bytes | ReadingError) -> RunSummary:
    """The summary in a file. Raises ValueError if it is damaged or of a newer schema."""
    value = versioned_object(content, SUMMARY_SCHEMA, MAX_SUMMARY_BYTES)
    return decode(RunSummary, value, numbers_are=NOT_NEGATIVE)
