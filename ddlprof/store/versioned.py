"""Files of one JSON object that name their schema: what they hold, or why they cannot be read."""

from __future__ import annotations

from typing import Any

from instance_catalog.reading import ReadingError, parse_json


def versioned_object(content: bytes | ReadingError, newest_schema: int, most_bytes: int) -> dict[str, Any]:
    """The object in a file. Raises ValueError if it is damaged, too large or of a newer schema."""
    if isinstance(content, ReadingError):
        raise content
    if len(content) > most_bytes:
        raise ValueError("too large")
    value = parse_json(content)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    schema = value.get("schema")
    if isinstance(schema, int) and schema > newest_schema:
        raise ValueError(f"written by a newer ddlprof (schema {schema}); upgrade ddlprof")
    return value
