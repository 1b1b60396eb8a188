"""Runs loops and frameworks of others with and without ddlprof and prints the tables of docs/compatibility.md.

    python -m scripts.bench.compatibility                    # loops, and torch's own strategies
    python -m scripts.bench.compatibility --environment DIR  # also frameworks; makes a virtual environment in DIR
    python -m scripts.bench.compatibility --no-times         # on a busy machine: all limits but those of time

Every job runs twice, plainly and under ddlprof. The limits are: the same exit code, the exact number of steps,
parameters equal bit for bit, and every rank recorded. If the loop has a clock of its own, each class must agree with it
within 2 % of the step; within 5 % beside a process on every core that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import ddlprof
from scripts.bench.jobs import JOBS, Limits, burning, print_table, progress
from scripts.bench.machine import describe

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = JOBS / "frameworks"
PACKAGES = ("accelerate", "datasets", "deepspeed", "lightning", "torchdata", "transformers", "webdataset")
CLASSES = ("compute", "data", "other", "rollout")
CLASS_LIMIT = 0.02
BUSY_CLASS_LIMIT = 0.05
IDIOM_STEPS = 60


@dataclass(frozen=True)
class Case:
    """One job. `words` follow `ddlprof run` and, without `options`, stand for themselves in the plain run."""

    name: str
    library: str
    words: tuple[str, ...]
    plain: tuple[str, ...]
    options: tuple[str, ...] = ()
    ranks: int = 1
    truth: bool = False
    """The loop has a clock of its own."""
    busy: bool = False
    """Beside a process on every core that does nothing else."""


@dataclass
class Outcome:
    """What came out of the two runs."""

    same_exit: bool
    steps: int | None = None
    steps_seen: tuple[int, ...] = ()
    same_parameters: bool = False
    measured: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    worst: float | None = None
    """Largest difference of a class, in shares of the step."""
    notes: tuple[str, ...] = ()


def idioms(busy: bool = False) -> Iterator[Case]:
    """Loops of `jobs/idioms.py`, one process."""
    sys.path.insert(0, str(JOBS))
    from idioms import IDIOMS, OPTIONS

    script = str(JOBS / "idioms.py")
    for name in IDIOMS:
        words = (script, name, f"--steps={IDIOM_STEPS}")
        title = name.replace("_", " ")
        yield Case(title, "torch", words, ("python", *words), OPTIONS.get(name, ()), truth=True, busy=busy)


def strategies() -> Iterator[Case]:
    """What torch itself offers for several ranks."""
    script = str(FRAMEWORKS / "sharded.py")
    for name, title in (
        ("fsdp2", "FSDP2 over init_device_mesh"),
        ("tensor", "tensor parallel, gradients add up"),
        ("zero", "ZeroRedundancyOptimizer"),
        ("pipeline", "pipeline of two stages"),
    ):
        launcher = ("torchrun", "--standalone", "--nproc-per-node=2", script, name)
        yield Case(title, "torch", ("--", *launcher), launcher, ranks=2)
    spawned = str(FRAMEWORKS / "spawned_ddp.py")
    yield Case(
        "torch.multiprocessing.spawn, DDP with batch normalisation", "torch", (spawned,), ("python", spawned), ranks=2
    )


def frameworks() -> Iterator[Case]:
    """Libraries of others, each in the forms that its documentation names."""

    def case(
        name: str, library: str, script: str, *arguments: str, launcher: tuple[str, ...] = (), ranks: int = 1
    ) -> Case:
        words = (str(FRAMEWORKS / script), *arguments)
        if launcher:
            return Case(name, library, ("--", *launcher, *words), (*launcher, *words), ranks=ranks)
        return Case(name, library, words, ("python", *words), ranks=ranks)

    torchrun = ("torchrun", "--standalone", "--nproc-per-node=2")
    accelerate = ("accelerate", "launch", "--cpu", "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no")
    yield case("Trainer", "transformers", "transformers_trainer.py")
    yield case("Trainer, torchrun", "transformers", "transformers_trainer.py", launcher=torchrun, ranks=2)
    yield case("Accelerator", "accelerate", "accelerate_loop.py")
    yield case(
        "accelerate launch, 1 process", "accelerate", "accelerate_loop.py", launcher=(*accelerate, "--num_processes=1")
    )
    on_cpu = ("env", "ACCELERATE_USE_CPU=true", "accelerate", "launch", "--multi_gpu", *accelerate[3:])
    two = (*on_cpu, "--num_processes=2")
    yield case("accelerate launch, 2 processes", "accelerate", "accelerate_loop.py", launcher=two, ranks=2)
    yield case("Trainer", "lightning", "lightning_fit.py")
    yield case('Trainer(strategy="ddp")', "lightning", "lightning_fit.py", "ddp", "2", ranks=2)
    yield case('Trainer(strategy="ddp_spawn")', "lightning", "lightning_fit.py", "ddp_spawn", "2", ranks=2)
    deepspeed = ("deepspeed", "--num_gpus=2", "--no_local_rank")
    yield case("its launcher, DDP", "deepspeed", "sharded.py", "zero", launcher=deepspeed, ranks=2)
    yield case("StatefulDataLoader, 1 worker", "torchdata", "other_loaders.py", "torchdata")
    yield case("WebLoader, unbatched and batched anew", "webdataset", "other_loaders.py", "webdataset")
    yield case("Dataset.iter", "datasets", "other_loaders.py", "datasets")


def environment(directory: Path) -> Path:
    """The interpreter of a virtual environment with the libraries, made where there is none."""
    python = directory / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-c",
        str(ROOT / "constraints.txt"),
    ]
    subprocess.run([*pip, str(ROOT), *PACKAGES], check=True)
    return python


def run(case: Case, python: Path, folder: Path) -> Outcome:
    """Plainly and profiled."""
    plain_truth, truth, directory = folder / "plain.json", folder / "truth.json", folder / "run"
    plain = _call(_words(case.plain, case, plain_truth), python, plain_truth)
    ours = (str(python), "-m", "ddlprof", "run", "--quiet", f"--out={directory}", *case.options)
    profiled = _call((*ours, *_words(case.words, case, truth)), python, truth)
    outcome = Outcome(plain.returncode == profiled.returncode)
    if not (plain_truth.exists() and truth.exists() and (directory / "manifest.json").exists()):
        lines = (plain.stderr if plain.returncode else profiled.stderr).strip().splitlines()
        outcome.notes = (lines[-1] if lines else "no output",)
        return outcome
    expected, found = (json.loads(path.read_text(encoding="utf-8")) for path in (plain_truth, truth))
    outcome.steps = len(found["rows"]) if "rows" in found else found["steps"]
    outcome.same_parameters = expected["digest"] == found["digest"]
    _compare(outcome, directory, found.get("rows"))
    return outcome


def _words(words: Sequence[str], case: Case, truth: Path) -> tuple[str, ...]:
    return (*words, f"--truth={truth}") if case.truth else tuple(words)


def _call(words: Sequence[str], python: Path, truth: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(python.parent), os.environ["PATH"]))
    variables = {
        **os.environ,
        "PATH": path,
        "TRUTH": str(truth),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return subprocess.run(
        words, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=600, check=False
    )


def _compare(outcome: Outcome, directory: Path, rows: list[dict[str, float]] | None) -> None:
    loaded = ddlprof.load(directory)
    steps = loaded.steps
    outcome.steps_seen = tuple(int(count) for count in steps.groupby("rank").size())
    measured = [name for name in ("compute", "data", "comm") if steps[f"{name}_s"].notna().any()]
    measured += [part for part in ("straggler",) if steps[f"{part}_s"].notna().any() and len(outcome.steps_seen) > 1]
    outcome.measured = tuple(measured)
    outcome.missing = tuple(name for name in ("data", "comm") if name not in measured)
    if rows is not None and len(rows) == len(steps):
        steady = steps[steps["flags"].fillna("").isin(["", "evaluation"])]  # a loop may evaluate in every step
        wanted = [rows[int(step)] for step in steady["step"]]
        total = sum(row["step"] for row in wanted)
        outcome.worst = max(
            abs(float(steady[f"{name}_s"].fillna(0.0).sum()) - sum(row.get(name, 0.0) for row in wanted)) / total
            for name in CLASSES
        )


def row_of(case: Case, outcome: Outcome, versions: dict[str, str]) -> list[str]:
    """A line of the table."""
    seen = "/".join(str(count) for count in outcome.steps_seen) or "none"
    form = " ".join(("ddlprof run", *case.options, *(Path(word).name if "/" in word else word for word in case.words)))
    worst = "" if outcome.worst is None else f"{100 * outcome.worst:.1f} %"
    return [
        case.name,
        f"{case.library} {versions.get(case.library, '')}".strip(),
        f"`{form}`",
        f"{seen} of {outcome.steps}",
        "equal" if outcome.same_parameters else "**differ**",
        ", ".join(outcome.measured),
        worst,
    ]


def check(case: Case, outcome: Outcome, limits: Limits, times: bool) -> None:
    """The stated limits; `times`: also those that other processes on this machine may break."""
    limits.at_least(f"{case.name}: same exit code", outcome.same_exit, 1)
    limits.at_least(f"{case.name}: parameters equal", outcome.same_parameters, 1)
    limits.at_least(f"{case.name}: ranks", len(outcome.steps_seen), case.ranks)
    limits.at_least(f"{case.name}: steps exact", set(outcome.steps_seen) == {outcome.steps}, 1)
    if case.truth and times:
        worst = float("nan") if outcome.worst is None else outcome.worst
        limits.at_most(f"{case.name}: worst class", worst, BUSY_CLASS_LIMIT if case.busy else CLASS_LIMIT)


def versions_of(python: Path) -> dict[str, str]:
    """The versions that are installed there."""
    names = ["torch", *PACKAGES]
    code = f"import json, importlib.metadata as m; print(json.dumps({{n: m.version(n) for n in {names!r}}}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    found: dict[str, str] = json.loads(done.stdout) if done.returncode == 0 else {"torch": metadata.version("torch")}
    return found


def main() -> None:
    """Parses, runs, prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", type=Path, metavar="DIR", help="virtual environment for the frameworks")
    parser.add_argument("--no-times", dest="times", action="store_false", help="compare no times: this machine is busy")
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose name, library or script has this in it")
    args = parser.parse_args()
    python = environment(args.environment) if args.environment else Path(sys.executable)
    tables: dict[str, list[Case]] = {
        "Loops": list(idioms()),
        "Loops on a busy machine": list(idioms(busy=True)) if args.times else [],
        "Several ranks": list(strategies()),
    }
    if args.environment:
        tables["Frameworks"] = list(frameworks())
    limits, versions = Limits(), versions_of(python)
    print(describe())
    for title, cases in tables.items():
        rows: list[list[Any]] = []
        for case in cases:
            if args.only not in " ".join((case.name, case.library, *case.words)):
                continue
            progress(f"{case.library}: {case.name}")
            with tempfile.TemporaryDirectory() as folder, burning() if case.busy else nullcontext():
                outcome = run(case, python, Path(folder))
            rows.append(row_of(case, outcome, versions))
            check(case, outcome, limits, args.times)
            for note in outcome.notes:
                progress(f"  {note}")
        if rows:
            print(f"\n## {title}")
            print_table(("job", "library", "form", "steps seen", "parameters", "measured", "worst class"), rows)
    sys.exit(limits.exit_code())


if __name__ == "__main__":
    main()
