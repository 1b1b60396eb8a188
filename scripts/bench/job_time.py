"""The parts of a job's wall time against the script's own clock, on one process and on two ranks.

The script sleeps known times in its start-up, first batches, steps, evaluations, checkpoints, between them and at its
end, and notes what each took. Limit: each part within 2 % of the wall time. `steps` has what no other part has; the
script does not tell its first steps from later ones, so warm-up counts there too.

Then the same job of nine epochs from what the run of three tells: start-up aside, within 10 %.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import ddlprof
from ddlprof.analysis.job_time import JobTime, job_time
from ddlprof.analysis.run import analyse
from ddlprof.store import load_run
from scripts.bench.jobs import Limits, print_table, profiled, progress, run_job
from scripts.bench.machine import describe

LIMIT = 0.02
LONGER_EPOCHS, PREDICTED_LIMIT = 9, 0.1
PARTS = ("start_up", "steps", "epoch_start", "evaluation", "checkpoint", "idle", "end")
_TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node=2")


def main() -> None:
    """Runs the job both ways and prints the parts beside each other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    limits = Limits()
    print(describe())
    with tempfile.TemporaryDirectory() as folder:
        for name, launcher in (("one process", ()), ("two ranks", _TORCHRUN)):
            progress(name)
            directory = Path(folder) / name.replace(" ", "-")
            words = [*profiled(directory, "--no-calibrate"), "--", *launcher]
            truth = run_job(words, "whole_job", Path(folder) / "truth.json")
            _compare(name, truth, _measured(directory), limits)
        progress("longer")
        longer = Path(folder) / "longer"
        truth = run_job(profiled(longer), "whole_job", Path(folder) / "truth.json", epochs=LONGER_EPOCHS)
        _predict(Path(folder) / "one-process", _measured(longer), limits)
    sys.exit(limits.exit_code())


def _measured(directory: Path) -> JobTime:
    (attempt,) = analyse(load_run(directory))
    job = job_time(attempt)
    assert job is not None
    print(json.dumps(job.parts_s), file=sys.stderr)
    return job


def _compare(name: str, truth: dict[str, float], job: JobTime, limits: Limits) -> None:
    measured = {part: job.parts_s[part] or 0.0 for part in job.parts_s}
    measured["steps"] += measured.pop("warm_up")
    rows = []
    for part in PARTS:
        off = abs(measured[part] - truth[part]) / truth["wall"]
        rows.append([part, f"{truth[part]:.3f}", f"{measured[part]:.3f}", f"{100 * off:.2f} %"])
        limits.at_most(f"{name}: {part} off by (share of the wall time)", off, LIMIT)
    rest = job.wall_s - sum(measured[part] for part in PARTS)
    rows.append(["compilation, profiling", "", f"{rest:.3f}", ""])
    rows.append(["wall", f"{truth['wall']:.3f}", f"{job.wall_s:.3f}", ""])
    print_table([f"part, {name}", "script's clock s", "ddlprof s", "difference / wall"], rows)
    print(f"\n{job.evaluations} evaluations, {job.checkpoints} checkpoints, {job.epochs} epochs, {job.steps} steps")


def _predict(short: Path, longer: JobTime, limits: Limits) -> None:
    """The longer job from what the short one tells: on this machine, so only how often things happen is predicted."""
    workload = ddlprof.load(short).workload()
    assert workload.job is not None
    assert workload.global_batch is not None
    samples = longer.steps * workload.global_batch
    parts = {"steps": longer.steps * workload.measurements[0].step_s}
    for part in ("epoch_start", "evaluation", "checkpoint"):
        recurring = getattr(workload.job, part)
        parts[part] = recurring.seconds * samples / (recurring.every_samples or samples)
    happened = {part: longer.parts_s[part] or 0.0 for part in parts}
    rows = [[part, f"{happened[part]:.3f}", f"{parts[part]:.3f}"] for part in parts]
    print_table([f"part, {LONGER_EPOCHS} epochs", "measured s", "from the run of 3 epochs s"], rows)
    off = abs(sum(parts.values()) / sum(happened.values()) - 1)
    limits.at_most(f"{LONGER_EPOCHS} epochs from 3: off by (share)", off, PREDICTED_LIMIT)


if __name__ == "__main__":
    main()
