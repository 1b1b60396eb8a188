"""What this room adds to ddlprof: loggers of other people."""

from __future__ import annotations

from ddlprof.registry import Extension

EXTENSION = Extension(names={"ddlprof.integrations": "ddlprof.extensions.integrations"})
