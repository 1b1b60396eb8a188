"""The errors of the catalogue."""

from __future__ import annotations

from ddlprof.base.errors import DdlprofError


class CatalogError(DdlprofError, ValueError):
    """An unknown name or a damaged file. The text is one line that says what is wrong and what to do."""
