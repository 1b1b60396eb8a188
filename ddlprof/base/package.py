"""Which ddlprof this is, and where it lies. Modules of ours ask here: `ddlprof` itself stands above all of them."""

from __future__ import annotations

import os

VERSION = "0.1.0"
FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # not by pathlib, for which `import ddlprof` waits
COMMAND = os.path.join(FOLDER, "__main__.py")
"""What `python` runs to be the command `ddlprof` of this very installation."""
