"""Where the published measurements are, if they are here."""

from __future__ import annotations

from pathlib import Path

_NAMED = (folder / "shared" / "data" for folder in Path(__file__).resolve().parents)
PUBLISHED = next((path for path in _NAMED if (path / "throughput" / "placements_train.csv").is_file()), None)
"""The folder with `throughput` and `operators`; None where it is absent."""
