"""Which ddlprof this is, and where it lies. Modules of ours ask here: `ddlprof` itself stands above all of them."""

from __future__ import annotations

from pathlib import Path

VERSION = "0.1.0"
FOLDER = Path(__file__).parents[1]
MAIN = FOLDER / "__main__.py"
"""What `python` runs to be the command `ddlprof` of this very installation."""
