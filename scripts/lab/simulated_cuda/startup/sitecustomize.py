"""With this folder on PYTHONPATH, every Python that imports torch has simulated GPUs before any hook looks at it.

`SIMULATED_CUDA` holds the settings of the machine, in JSON. For rehearsals (`python -m scripts.bench.gpu --rehearse`).
"""

import json
import os
import sys
from pathlib import Path

from ddlprof.collect.process.on_import import after_import

SETTINGS = "SIMULATED_CUDA"


def _install() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
    try:
        from scripts.lab import simulated_cuda
    finally:
        del sys.path[0]
    simulated_cuda.install(**json.loads(os.environ[SETTINGS]))


if SETTINGS in os.environ:
    after_import("torch", _install)
