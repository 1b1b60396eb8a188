"""Makes a hundred small wrong changes in ten files, and tells which tests notice: in `make test`, or in others only.

    python -m scripts.mutate --out FOLDER [--checkout OTHER] [--like mutants.csv] [--workers 2] [TESTS...]

First the tests (all of `tests/`, if none are named) run once under coverage, which says which tests come to which
line, also in the processes that they start; this is kept in FOLDER and not done again. Then each mutant is written into
a copy of the checkout and the tests of its line run, the short suite's first and the fastest first, until one fails.
To compare two checkouts, give the second the `mutants.csv` of the first: the same mutants are made, as far as their
lines are still there.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.mutation.mutants import Mutant, mutants, spread

ROOT = Path(__file__).resolve().parents[1]
FILES = (
    "ddlprof/collect/steps/attribution.py",
    "ddlprof/collect/steps/boundaries.py",
    "ddlprof/collect/steps/gaps.py",
    "ddlprof/collect/steps/loop.py",
    "ddlprof/collect/recorder.py",
    "ddlprof/analysis/run.py",
    "ddlprof/analysis/steady.py",
    "ddlprof/analysis/stragglers.py",
    "recommender/predictor.py",
    "recommender/communication/exposed.py",
)
HANGS_S = 120
"""A test that takes so much longer than without the mutant hangs: a mutant that makes it do so is noticed."""

PLUGINS = ("-p", "mutation_plugin", "-p", "no:randomly", "-p", "no:cacheprovider")
COLUMNS = ("outcome", "file", "line", "text", "operator", "number", "before", "after", "test", "tests", "seconds")
CONFIGURATION = """\
[run]
include =
    {files}
data_file = {out}/coverage/data
parallel = true
context = ${{PYTEST_CURRENT_TEST-}}
patch = _exit
disable_warnings = no-data-collected
"""


@dataclass(frozen=True)
class Seen:
    """What the tests did without a mutant: how long they took, which are slow, and which came to a line."""

    seconds: dict[str, float]
    slow: set[str]
    lines: dict[str, dict[str, list[str]]]
    """For each file the tests of each line, both as texts, as JSON has them."""

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that come to the mutant, those of the short suite first and the fastest first."""
        of_file = self.lines.get(mutant.path, {})
        lines = range(mutant.start[0], mutant.end[0] + 1)
        found = {test for line in lines for test in of_file.get(str(line), ()) if test in self.seconds}
        return sorted(found, key=lambda test: (test in self.slow, self.seconds[test]))


def main() -> None:
    """Makes the mutants, asks the tests, and writes the tables."""
    options = _options()
    out: Path = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    copies = [_copy(options.checkout.resolve(), out / f"copy-{number}") for number in range(options.workers)]
    sources = {path: (copies[0] / path).read_text() for path in FILES}
    found = [mutant for path, source in sources.items() for mutant in mutants(source, path)]
    chosen = _like(options.like, found) if options.like else spread(found, options.count, options.seed)
    print(f"{len(chosen)} of {len(found)} mutants")
    seen = _seen(copies[0], out, options)
    queue: multiprocessing.Queue[Mutant | None] = multiprocessing.Queue()
    for item in [*chosen, *[None] * len(copies)]:
        queue.put(item)
    rows: multiprocessing.Queue[dict[str, object]] = multiprocessing.Queue()
    workers = [multiprocessing.Process(target=_work, args=(copy, seen, queue, rows)) for copy in copies]
    for worker in workers:
        worker.start()
    results = []
    for number in range(len(chosen)):
        results.append(rows.get())
        _write(out / "mutants.csv", results)
        print(f"{number + 1:4}  {results[-1]['outcome']:9} {results[-1]['file']}:{results[-1]['line']}", flush=True)
    for worker in workers:
        worker.join()
    _print_table(results)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=["tests"], help="tests, as pytest is told which")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkout", type=Path, default=ROOT, help="whose files and tests (the default: this one)")
    parser.add_argument("--like", type=Path, help="a mutants.csv: the same mutants, in place of those drawn")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args()


def _copy(checkout: Path, copy: Path) -> Path:
    """A copy of what git knows of a checkout, compiled, with its environment."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    listed = ["git", "-C", str(checkout), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0"):
        if (checkout / name).is_file() or (checkout / name).is_symlink():  # of packages whose folders lie elsewhere
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, copy / name, follow_symlinks=False)
    os.symlink((checkout / ".venv").resolve(), copy / ".venv")
    packages = ["ddlprof", "recommender", "instance_catalog", "scripts"]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *packages], cwd=copy, check=True)
    return copy


def _like(path: Path, found: Iterable[Mutant]) -> list[Mutant]:
    """The mutants that another run made, as far as they are there; says which are not."""
    by_key = {mutant.key: mutant for mutant in found}
    with path.open() as lines:
        wanted = [(row["file"], row["text"], row["operator"], int(row["number"])) for row in csv.DictReader(lines)]
    for key in wanted:
        if key not in by_key:
            print("no longer there:", *key)
    return [by_key[key] for key in wanted if key in by_key]


def _seen(copy: Path, out: Path, options: argparse.Namespace) -> Seen:
    """Runs the tests once under coverage, or reads what that gave before."""
    kept = out / "seen.json"
    if not kept.exists():
        _run_once(copy, out, options)
        tests = [json.loads(line) for line in (out / "seen.jsonl").read_text().splitlines()]
        passed = {test["test"]: test for test in tests if test["passed"]}
        print(f"{len(tests)} tests, of which {len(tests) - len(passed)} failed and tell nothing of mutants")
        seconds = {name: test["seconds"] for name, test in passed.items()}
        slow = [name for name, test in passed.items() if test["slow"]]
        kept.write_text(json.dumps({"seconds": seconds, "slow": slow, "lines": _lines(copy, out)}))
    told = json.loads(kept.read_text())
    return Seen(told["seconds"], set(told["slow"]), told["lines"])


def _run_once(copy: Path, out: Path, options: argparse.Namespace) -> None:
    for old in (out / "coverage", out / "seen.jsonl"):
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    (out / "coverage").mkdir()
    files = "\n    ".join(str(copy / path) for path in FILES)
    (out / "coverage" / "rc").write_text(CONFIGURATION.format(files=files, out=out))
    env = _environment(copy)
    # With a sitecustomize the tests start each Python anew: coverage does not see the end of those that are forked.
    (out / "coverage" / "sitecustomize.py").touch()
    env |= {
        "PYTHONPATH": os.pathsep.join([env["PYTHONPATH"], str(out / "coverage")]),
        "COVERAGE_PROCESS_START": str(out / "coverage" / "rc"),
        "MUTATION_SEEN": str(out / "seen.jsonl"),
    }
    command = [sys.executable, "-m", "pytest", "-q", *PLUGINS, "-n", str(options.workers)]
    with (out / "seen.log").open("w") as log:
        subprocess.run([*command, *options.tests], cwd=copy, env=env, stdout=log, stderr=log)


def _lines(copy: Path, out: Path) -> dict[str, dict[int, list[str]]]:
    """The tests of each line of each file; a context is a test, or `test (call)` in a process that it started."""
    import coverage

    measured = coverage.Coverage(config_file=str(out / "coverage" / "rc"))
    measured.combine([str(out / "coverage")])
    data = measured.get_data()
    return {
        path: {
            line: sorted({context.rsplit("|")[-1].rsplit(" (", 1)[0] for context in contexts} - {""})
            for line, contexts in data.contexts_by_lineno(str(copy / path)).items()
        }
        for path in FILES
    }


def _environment(copy: Path) -> dict[str, str]:
    """Of processes in a copy, whose code comes before any that is installed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    paths = [str(copy), str(ROOT / "scripts" / "mutation")]
    return inherited | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join([str(copy / ".venv" / "bin"), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
    }


def _work(
    copy: Path,
    seen: Seen,
    queue: multiprocessing.Queue[Mutant | None],
    rows: multiprocessing.Queue[dict[str, object]],
) -> None:
    """Tries mutants in a copy: in forks of this process, which has imported what takes long, and nothing of ours."""
    os.environ.update(_environment(copy), PYTHONDONTWRITEBYTECODE="1")  # a mutant's would pass for the original's
    sys.dont_write_bytecode = True
    os.chdir(copy)
    sys.path[:] = [str(copy), str(ROOT / "scripts" / "mutation")] + [
        path for path in sys.path if ".venv" in path or (path and not Path(path).is_relative_to(ROOT))
    ]
    for name in [name for name in sys.modules if name.partition(".")[0] == "scripts"]:
        del sys.modules[name]
    for name in ("numpy", "pandas", "pytest", "torch"):
        importlib.import_module(name)
    while (mutant := queue.get()) is not None:
        rows.put(_row(mutant, *_tried(mutant, copy, seen), seen))


def _tried(mutant: Mutant, copy: Path, seen: Seen) -> tuple[str, str, int, float]:
    """What came of a mutant, the test that noticed it, how many there are, and how long they took."""
    tests = seen.tests(mutant)
    if not tests:
        return "no tests", "", 0, 0
    asked, killer, path = copy / ".mutation-tests", copy / ".mutation-killer", copy / mutant.path
    asked.write_text(json.dumps(tests))
    source, times = path.read_text(), path.stat()
    path.write_text(mutant.applied(source))
    started = time.monotonic()
    try:
        code = _forked(tests, asked, killer, HANGS_S + 5 * sum(seen.seconds[test] for test in tests))
    finally:
        path.write_text(source)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    outcome = "survived" if code == 0 else "dead"
    return outcome, killer.read_text() if code else "", len(tests), time.monotonic() - started


def _forked(tests: Sequence[str], asked: Path, killer: Path, limit_s: float) -> int:
    """Runs tests in a fork of this process, in a group that ends with it; its exit status, not 0 where it hung."""
    killer.write_text("while the tests were collected")
    if (child := os.fork()) == 0:
        os.setsid()
        os.environ.update(MUTATION_TESTS=str(asked), MUTATION_KILLER=str(killer))
        log = os.open(asked.with_suffix(".log"), os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        import pytest

        files = sorted({test.partition("::")[0] for test in tests})
        always = ["-x", "-q", *PLUGINS, f"--timeout={HANGS_S}"]
        os._exit(pytest.main([*always, *files]))
    end = time.monotonic() + limit_s
    while (waited := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if waited[0] == 0:
        os.waitpid(child, 0)
        return 1
    return os.waitstatus_to_exitcode(waited[1])


def _row(mutant: Mutant, outcome: str, test: str, tests: int, seconds: float, seen: Seen) -> dict[str, object]:
    if outcome == "dead":
        outcome = "dead slow" if test in seen.slow else "dead"
    values = (outcome, mutant.path, mutant.line, mutant.text, mutant.operator, mutant.number, mutant.before)
    return dict(zip(COLUMNS, (*values, mutant.after, test, tests, round(seconds, 1)), strict=True))


def _write(path: Path, rows: Sequence[dict[str, object]]) -> None:
    with path.open("w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS)
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (FILES.index(str(row["file"])), int(str(row["line"])))))


def _print_table(rows: Sequence[dict[str, object]]) -> None:
    outcomes = ("dead", "dead slow", "survived", "no tests")
    counted = Counter((row["file"], row["outcome"]) for row in rows)
    print(f"{'file':40}", *(f"{outcome:>9}" for outcome in outcomes))
    for path in FILES:
        print(f"{path:40}", *(f"{counted[path, outcome]:9}" for outcome in outcomes))
    print(f"{'all':40}", *(f"{sum(counted[path, outcome] for path in FILES):9}" for outcome in outcomes))


if __name__ == "__main__":
    main()
