"""Small programs in processes of their own, as the ranks of a job are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run_all(*programs: list[str], patience_s: float = 90) -> None:
    """Runs `python -c` with each list of arguments, all at once; all must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen([sys.executable, "-c", *p], env=environment, stderr=subprocess.PIPE, text=True)
        for p in programs
    ]
    try:
        errors = [process.communicate(timeout=patience_s)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0] * len(processes), errors
