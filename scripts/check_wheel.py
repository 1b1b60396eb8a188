"""Builds the wheel and tries it in an environment of its own, without torch: what it holds, and what it does there.

python scripts/check_wheel.py                 # builds it first
python scripts/check_wheel.py dist/*.whl      # one that is there, before it is published
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "ddlprof": "ddlprof",
    "recommender": "ddlprof/recommender",
    "instance_catalog": "ddlprof/instance_catalog",
}
"""Folders of the repository, and where the wheel has them."""
GOLDEN = ROOT / "tests/golden"
NOT_IN_A_WHEEL = (".pyc", ".c", ".so")  # but for the core in C, where it was built
TORCH_MISSING = "torch is not installed here"


def main() -> None:
    """Exits with 1 and what is wrong with the wheel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("wheel", nargs="?", type=Path, help="checked instead of a new one")
    given: Path | None = parser.parse_args().wheel
    with tempfile.TemporaryDirectory() as directory:
        wheel = given.resolve() if given else build(Path(directory))
        problems = [*wrong_files(wheel), *wrong_answers(wheel, Path(directory))]
    for problem in problems:
        print(f"{wheel.name}: {problem}", file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"{wheel.name}: complete, and works without torch")


def build(directory: Path) -> Path:
    """The wheel of this working tree, without what an earlier build left behind."""
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", str(directory), str(ROOT))
    return next(directory.glob("*.whl"))


def packaged() -> dict[str, Path]:
    """The files that a wheel should hold, by their names in it."""
    return {
        f"{installed}/{path.relative_to(ROOT / folder).as_posix()}": path
        for folder, installed in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in NOT_IN_A_WHEEL
    }


def wrong_files(wheel: Path) -> list[str]:
    """It holds the files of the packages, data included, all of them and nothing else."""
    expected = set(packaged())
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    if "-abi3-" in wheel.name:
        expected.add("ddlprof/collect/_core.abi3.so")
    return [
        *(f"lacks {name}" for name in sorted(expected - found)),
        *(f"has {name}" for name in sorted(found - expected)),
    ]


def wrong_answers(wheel: Path, directory: Path) -> list[str]:
    """Installed with what it asks for and nothing else, the commands that read work, the others say what is missing."""
    environment = directory / "environment"
    venv.create(environment, symlinks=True, with_pip=False)
    pip(str(environment / "bin/python"), "install", "--no-compile", str(wheel))
    run, tables, script = GOLDEN / "two-ranks", directory / "tables", directory / "train.py"
    script.write_text("")
    version = wheel.name.split("-")[1]
    problems = [
        problem
        for words, code, answer in [
            ("--version", 0, f"ddlprof {version}"),
            ("instances", 0, "p4d.24xlarge"),
            (f"report {run}", 0, "Verdict"),
            (f"report {run} --format html", 0, "Content-Security-Policy"),
            (f"export {run} --format csv --out {tables}", 0, ""),
            (f"recommend {run} --budget 12h --samples 1000000", 0, "Cheapest"),
            (f"run {script}", 2, TORCH_MISSING),
            (f"characterize {script}", 2, TORCH_MISSING),
            ("features models:net", 2, TORCH_MISSING),
            ("doctor", 1, TORCH_MISSING),
        ]
        for problem in wrong_answer(environment, words, code, answer)
    ]
    expected = GOLDEN / "two-ranks-expected"
    return problems + [
        f"ddlprof export wrote another {path.name}"
        for path in sorted(expected.glob("*.csv"))
        if not (tables / path.name).is_file() or (tables / path.name).read_bytes() != path.read_bytes()
    ]


def wrong_answer(environment: Path, words: str, code: int, answer: str) -> list[str]:
    """What is wrong with the exit code and the output of a command."""
    done = subprocess.run(
        [environment / "bin/ddlprof", *words.split()],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=environment,  # not here, where the packages could be imported from the working tree
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    if done.returncode == code and answer in " ".join(output.split()):
        return []
    return [f"`ddlprof {words}` ended with {done.returncode}, not with {code} and {answer!r}:\n{output}"]


def pip(python: str, *arguments: str) -> None:
    """pip of this environment, for that Python."""
    options = ["--python", python, "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", *options, *arguments], check=True)


if __name__ == "__main__":
    main()
