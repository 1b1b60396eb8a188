"""Reads `summary.json` of a run directory, every field checked."""

from __future__ import annotations

from ddlprof.model.run_summary import SUMMARY_SCHEMA, RunSummary
from instance_catalog.reading import NOT_NEGATIVE, ReadingError, decode, parse_json

MAX_SUMMARY_BYTES = 1 << 20
"""A summary has three thousand characters; with the longest names some more."""


def decode_summary(content: bytes | ReadingError) -> RunSummary:
    """The summary in a file. Raises ValueError if it is damaged or of a newer schema."""
    if isinstance(content, ReadingError):
        raise content
    if len(content) > MAX_SUMMARY_BYTES:
        raise ValueError("too large")
    value = parse_json(content)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    schema = value.get("schema")
    if isinstance(schema, int) and schema > SUMMARY_SCHEMA:
        raise ValueError(f"written by a newer ddlprof (schema {schema}); upgrade ddlprof")
    return decode(RunSummary, value, numbers_are=NOT_NEGATIVE)
