"""Tries what `ddlprof cluster advise` writes for Kubernetes as `emitted_files` tries the files that start a plan.

python -m scripts.lab.advice_files FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from ddlprof.extensions.cluster.advice import Advice, Estimated, SpreadCost
from ddlprof.extensions.cluster.machines import Level
from ddlprof.extensions.cluster.report.advice import kubernetes
from ddlprof.extensions.cluster.report.advice.data import JobAdvice
from scripts.lab.emitted_files import checked, written


def main(folder: Path) -> int:
    """Tries all files; returns the exit code."""
    texts = {
        f"{share}.{'kueue' if kueue else 'kubernetes'}.yaml": kubernetes.render([_advice(share)], kueue)
        for share in (0.0, 0.5, 2.0)
        for kueue in (True, False)
    }
    files = written(folder / "files", {"kubernetes": texts, "pytorchjob": {}})
    return 0 if checked(folder, "kubernetes", files) else 1


def _advice(share: float) -> JobAdvice:
    """A job that loses such a share of its speed on several racks."""
    loss = SpreadCost(Level.NETWORK, (8, 8), Estimated(1 + share, None, None), None, Estimated(share, None, None))
    return JobAdvice(Advice("bert", 16, (8, 8), 0.5, (loss,)), ("train.py",), rest_s=36_000.0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
