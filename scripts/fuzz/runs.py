"""Damages run directories in all the ways of `scripts.fuzz.damage`, for as long as it is told to, in at most 1 GB.

`python -m scripts.fuzz.runs --minutes 5` ends with 1 and the seeds if something was raised that is no one-line error,
took long or too much memory, or if a flipped byte changed figures without a word about it.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # each thread sets memory aside
    os.environ.setdefault(_name, "1")

from scripts.fuzz.damage import Seen, damaged, flip, look, on_two_machines  # noqa: E402
from scripts.fuzz.written import write_run  # noqa: E402

RECORDED = Path("tests/golden/recorded")
OLD = RECORDED / "fewer-columns"
"""A run of before many columns."""
MEMORY_BYTES = 1 << 30
PATIENCE_S = 20


def main() -> int:
    """Parses and tries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--run", type=Path, action="append", help="a run directory to damage; default: recorded ones")
    args = parser.parse_args()
    runs = args.run or sorted(RECORDED.iterdir())
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, _too_long)
    deadline = time.monotonic() + 60 * args.minutes
    seed, bad = args.first_seed, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checked = [write_run(folder / "written"), OLD]
        whole = [look(run, folder / "csv") for run in checked]
        runs += [checked[0], *(on_two_machines(run, folder / f"{run.name}-apart") for run in checked)]
        while time.monotonic() < deadline:
            run = runs[seed % len(runs)]
            copy, how = damaged(run, folder, seed, most=3, sealed=seed % 2 == 0)
            seen = _look(copy, folder)
            if not isinstance(seen, str):
                which = seed // 2 % len(checked)
                copy, more = damaged(checked[which], folder, seed, [flip])
                seen, how = _look(copy, folder), f"{how}; {more}"
                if not isinstance(seen, str) and _silently_wrong(seen, whole[which]) and "manifest" not in more:
                    seen = "changed figures without a word\n"
            if isinstance(seen, str):
                bad.append(seed)
                print(f"{run}: {how}\n{seen}")
            seed += 1
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(f"{seed - args.first_seed} seeds, {len(bad)} bad: {bad[:50]}; at most {peak_mb:.0f} MB")
    return 1 if bad else 0


def _silently_wrong(seen: Seen, whole: Seen) -> bool:
    return not seen.error and seen.figures != whole.figures and seen.said == whole.said


def _look(run: Path, folder: Path) -> Seen | str:
    """What the reports say of a damaged run, or the trouble that it makes."""
    signal.alarm(PATIENCE_S)
    try:
        return look(run, folder / "csv")
    except Exception:
        return traceback.format_exc(limit=-4)
    finally:
        signal.alarm(0)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {PATIENCE_S} s")


if __name__ == "__main__":
    sys.exit(main())
