"""Makes the runs of the case studies anew, and writes what the commands say into their pages.

    python -m scripts.docs.cases                    # all pages; takes some minutes
    python -m scripts.docs.cases late-rank          # docs/cases/late-rank.md

The pages themselves say what to run: in a block of code, each line that begins with `$ ` is a command, and the lines
below it are what it says. The commands run one after the other in an empty folder, with this repository's scripts/ and
examples/ in it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "cases"
LIMIT_S = 600


def renewed(page: str, folder: Path) -> str:
    """The page with what its commands say now. Raises CalledProcessError if one fails."""
    return re.sub(r"(?<=^```\n)\$ .*?(?=^```$)", lambda block: _block(block[0], folder), page, flags=re.S | re.M)


def _block(block: str, folder: Path) -> str:
    commands = [line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ ")]
    return "".join(f"$ {command}\n{says(command, folder)}" for command in commands)


def says(command: str, folder: Path) -> str:
    """What a command says in a folder. Raises CalledProcessError if it fails, ValueError if it names the folder."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("DDLPROF_", "XDG_"))},
        "HOME": str(folder),  # what a command keeps for the user is none of this user's
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "COLUMNS": "100",
        "PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR",
    }  # fmt: skip
    sys.stderr.write(f"$ {command}\n")
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode:
        sys.stderr.write(done.stdout)
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)
    said = done.stdout.replace(f"{folder}/.local", "~/.local")
    if str(folder) in said or str(ROOT) in said:
        raise ValueError(f"{command}: says where it ran\n{said}")
    return re.sub(r" +$", "", said.rstrip("\n") + "\n", flags=re.M) if said.strip() else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", help="pages in docs/cases, without .md (default: all)")
    names = parser.parse_args().case or sorted(path.stem for path in PAGES.glob("*.md"))
    for name in names:
        path = PAGES / f"{name}.md"
        page = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            for shared in ("scripts", "examples"):
                (Path(folder) / shared).symlink_to(ROOT / shared)
            path.write_text(renewed(page, Path(folder)), encoding="utf-8")
        sys.stderr.write(f"wrote {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
