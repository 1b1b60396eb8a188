"""The errors of the catalogue."""

from __future__ import annotations

from ddlprof.model.errors import DdlprofError


class CatalogError(DdlprofError, ValueError):
    """An unknown name or a damaged file: one line that says what is wrong and what to do."""


class ReadingError(DdlprofError, ValueError):
    """One line without a file's name: what is wrong, where in the file, and what was expected."""
