"""Brings what the experiments need to a machine with a GPU that has Python 3.12 and torch, and no network.

    python -m scripts.bench.gpu.wheels          # where there is a network: wheels into .gpu-wheels, which git ignores

`python -m scripts.bench.gpu` installs from there, on its own and into a temporary folder, what the machine lacks. The
core in C, whose build serves every Python from 3.10 on, comes along where it was built here for the same processor.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / ".gpu-wheels"
NEEDED = ("nvidia-ml-py", "pandas", "psutil", "rich", "typer", "pytest", "pytest-timeout")
"""Torch and numpy are there; boto3 is imported by nothing that runs there."""
PYTHON, PLATFORMS = "3.12", ("2_28", "2_27", "2_24", "2_17", "2_12")
_CORE = "_core.abi3.so"
_PLACE = ROOT / "ddlprof" / "collect" / _CORE
_DONE = "DDLPROF_GPU_SITE"
"""Set once the wheels are installed, to where."""


def fetch() -> int:
    """Downloads the wheels with all they need; pip's exit code."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    platforms = [f"--platform=manylinux_{version}_x86_64" for version in PLATFORMS]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    words = [sys.executable, "-m", "pip", "download", "-q", "-d", str(FOLDER), "--only-binary=:all:"]
    words += [f"--python-version={PYTHON}", "--implementation=cp", *platforms, *NEEDED]
    code = subprocess.run(words, check=False).returncode
    if _PLACE.exists() and platform.machine() == "x86_64":
        shutil.copy(_PLACE, FOLDER / _CORE)
    size = sum(path.stat().st_size for path in FOLDER.iterdir()) / 1e6
    print(f"{len(list(FOLDER.iterdir()))} files, {size:.0f} MB, in {FOLDER}", file=sys.stderr)
    return code


def lacking(wheels: Iterable[Path]) -> list[Path]:
    """The wheels of distributions that are not installed: those of the machine are kept."""
    return [wheel for wheel in wheels if not _is_there(wheel.name.split("-")[0])]


def _is_there(name: str) -> bool:
    try:
        metadata.version(name.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return False
    return True


def use(arguments: list[str]) -> None:
    """Installs what is lacking and starts this program again with it; does nothing without wheels, or the second time.

    `arguments`: those of the program.
    """
    core = FOLDER / _CORE
    if core.exists() and not _PLACE.exists():
        shutil.copy(core, _PLACE)
    if _DONE in os.environ or not (found := lacking(sorted(FOLDER.glob("*.whl")))):
        return
    site = tempfile.mkdtemp(prefix="gpu-site-")
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target", site]
    subprocess.run([*words, *map(str, found)], check=True)
    path = os.pathsep.join([site, *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, _DONE: site, "PYTHONPATH": path}
    os.execve(sys.executable, [sys.executable, "-m", "scripts.bench.gpu", *arguments], variables)


if __name__ == "__main__":
    sys.exit(fetch())
