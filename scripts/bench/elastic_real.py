"""Whether an elastic allocation of real jobs is as fast as was predicted.

Three trainings (scripts/jobs/scalable.py) are measured by `ddlprof run` with one and two ranks over gloo, each rank on
a core of its own. `ddlprof elastic` shares out two slots: while all three are there, when the first has ended, and when
only the last is left. Each answer is then really run, all its jobs at the same time with the GPUs (here: cores) and
batches that it says, and their samples per second, by their own clock, are compared with the predicted ones.

One rank is measured while another job runs on the other core, as in the allocations. Each round measures anew right
before it runs, as the machine's load changes; the medians over the rounds count. Limit: 15 %.

A processor that other people use, too, gives a job more at one time than at another, and no prediction tells that. So
computing is mostly a sleep, as on an accelerator, and the ranks, their all-reduces and the scripts are real. `--burn`:
computing is all done by the processor, for a machine that nobody else uses.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.bench.jobs import JOBS, Limits, print_table, profiled, progress
from scripts.bench.machine import describe

SAMPLES = {"mlp": 6_000, "lstm": 6_000, "cnn": 4_000}
"""How many a run trains with: some ten seconds."""
MODELS = list(SAMPLES)
SMALL, LARGE, BOUNDS = 32, 96, (32, 160)
"""The batches of one rank that are measured, and the bounds of that of a job."""
LIMIT = 0.15


BURN = "--burn" in sys.argv


def command(model: str, batch: int, ranks: int, core: int, out: Path, is_profiled: bool) -> list[str]:
    """One training; a run directory or the file of its own clock is written to `out`."""
    options = ["--nproc-per-node", str(ranks)] if ranks > 1 else []
    front = [sys.executable]
    if is_profiled:
        front = [*profiled(out, *options)]
    elif ranks > 1:
        front += ["-m", "torch.distributed.run", "--standalone", *options]
    words = [model, f"--batch={batch}", f"--steps={SAMPLES[model] // batch}", f"--core={core}"]
    words += [] if BURN else ["--sleep"]
    return [*front, str(JOBS / "scalable.py"), *words, *([] if is_profiled else [f"--truth={out}"])]


def together(commands: list[list[str]]) -> None:
    """Runs them at the same time; ends this process if one fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for words in commands
    ]
    for process, words in zip(started, commands, strict=True):
        _, errors = process.communicate()
        if process.returncode:
            sys.exit(f"{errors}\n{' '.join(words)} ended with {process.returncode}")


def measure(folder: Path) -> dict[str, list[Path]]:
    """The run directories of each job: one rank with two batches, beside another job, and two ranks."""
    alone = [(model, batch, folder / f"{model}-1-{batch}") for batch in (SMALL, LARGE) for model in MODELS]
    for pair in zip(alone[::2], alone[1::2], strict=True):
        together([command(model, batch, 1, core, kept, True) for core, (model, batch, kept) in enumerate(pair)])
    runs = {model: [kept for name, _, kept in alone if name == model] for model in MODELS}
    for model in MODELS:
        kept = folder / f"{model}-2"
        together([command(model, 2 * SMALL, 2, 0, kept, True)])
        runs[model].append(kept)
    return runs


def allocation(folder: Path, runs: dict[str, list[Path]], present: list[str]) -> list[dict[str, Any]]:
    """What `ddlprof elastic` gives the jobs that are there."""
    least, most = BOUNDS
    jobs = [
        {"name": name, "run": ";".join(run.name for run in runs[name]), "min_batch": least, "max_batch": most}
        for name in present
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    words = [sys.executable, "-m", "ddlprof", "elastic", "--jobs", str(folder / "jobs.json"), "--gpus", "2"]
    answer = subprocess.run([*words, "--format", "json"], capture_output=True, text=True, check=True).stdout
    return [job for job in json.loads(answer)["jobs"] if job["gpus"]]


def real_rates(folder: Path, jobs: list[dict[str, Any]]) -> dict[str, float]:
    """The samples per second of each job of an allocation, all run at the same time."""
    core, commands, files = 0, [], {}
    for job in jobs:
        files[job["name"]] = folder / f"{job['name']}.json"
        commands.append(command(job["name"], job["batch"], job["gpus"], core, files[job["name"]], False))
        core += job["gpus"]
    together(commands)
    return {name: json.loads(file.read_text(encoding="utf-8"))["samples_per_s"] for name, file in files.items()}


def main() -> int:
    """Prints a row for each job and moment. Returns 1 where a median is beyond the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--burn", action="store_true", help="computing is done by the processor")
    rounds = parser.parse_args().rounds
    print(describe())
    ratios: dict[tuple[int, str], list[float]] = {}
    said: dict[tuple[int, str], dict[str, Any]] = {}
    loads = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            loads.append(os.getloadavg()[0])
            progress(f"round {number + 1} of {rounds}, load average {loads[-1]:.1f}: measuring")
            runs = measure(folder)
            for moment in range(len(MODELS)):
                jobs = allocation(folder, runs, MODELS[moment:])
                rates = real_rates(folder, jobs)
                for job in jobs:
                    key = moment, job["name"]
                    said[key] = job
                    ratios.setdefault(key, []).append(rates[job["name"]] / job["samples_per_s"])
                    progress(f"{key}: {job['gpus']} x, batch {job['batch']}, real/predicted {ratios[key][-1]:.2f}")
    limits, rows = Limits(), []
    for (moment, name), found in ratios.items():
        job, middle = said[moment, name], statistics.median(found)
        rows.append(
            [
                f"{', '.join(MODELS[moment:])}: {name}", job["gpus"], job["batch"], f"{job['samples_per_s']:.0f}",
                f"{middle:.2f}", " ".join(f"{each:.2f}" for each in found),
            ]
        )  # fmt: skip
        limits.at_most(f"{name} at moment {moment}: |real / predicted - 1|", abs(middle - 1), LIMIT)
    print_table(["jobs there: job", "slots", "batch", "predicted samples/s", "real / predicted", "by round"], rows)
    every = [each for found in ratios.values() for each in found]
    print(f"\nmedian over all {len(every)}: {statistics.median(every):.2f}; load averages: {loads}")
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
