"""What every job here writes at its end: how many steps it made, and a digest of what it has trained."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


def write(steps: int, state: dict[str, Any]) -> None:
    """The rank that owns the whole state writes it into the file that $TRUTH names, if it names one."""
    path = os.environ.get("TRUTH")
    if not path:
        return
    digest = hashlib.sha256()
    for name in sorted(state):
        if hasattr(state[name], "detach"):
            digest.update(state[name].detach().cpu().float().contiguous().numpy().tobytes())
    Path(path).write_text(json.dumps({"steps": steps, "digest": digest.hexdigest()}), encoding="utf-8")
