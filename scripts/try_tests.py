"""Runs the short test suite under everything that must not matter to it, and says where it failed.

    python -m scripts.try_tests                 # all conditions: about two hours on two cores
    python -m scripts.try_tests seed-1 locale   # these; arguments of pytest follow `--`: ... -- tests/unit
    python -m scripts.try_tests --list

What every run printed is kept in the folder that `--out` names. The exit code is 1 if a run failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scripts.bench.jobs import burning

ROOT = Path(__file__).resolve().parents[1]
SUITE = ("-n", "2", "--dist", "worksteal", "-m", "not slow", "-q", "-p", "no:cacheprovider")
LIMIT_S = 3600
"""Against hanging."""
BUSY_TIMES = 10
NOBODY = "nobody"


@dataclass(frozen=True)
class Condition:
    """Something that no test may depend on. `why_not` says why this machine cannot try it, if it cannot."""

    name: str
    variables: dict[str, str] = field(default_factory=dict)
    """Of the environment."""
    before: tuple[str, ...] = ()
    """Words in front of the command."""
    options: tuple[str, ...] = ()
    """Of pytest."""
    burning: int = 0
    """Processes that compute without end beside the tests."""
    copied_for: str | None = None
    """The user who gets a checkout of their own."""
    why_not: Callable[[], str | None] = lambda: None


def conditions() -> list[Condition]:
    """All, in the order in which they are tried."""
    plain = {
        "LC_ALL": "C", "TZ": "Asia/Kathmandu", "TERM": "dumb", "HOME": "/nonexistent/home", "COLUMNS": "40",
        "NO_COLOR": "1", "PYTHONHASHSEED": "7",
    }  # fmt: skip
    return [
        *(Condition(f"seed-{seed}", options=(f"--randomly-seed={seed}",)) for seed in (1, 2, 3)),
        Condition("environment", plain),
        Condition("python-core", {"DDLPROF_PYTHON_CORE": "1"}),
        Condition("one-core", before=("taskset", "-c", "0"), why_not=lambda: missing("taskset")),
        # A shell without job control starts what is in the background with SIGINT and SIGQUIT ignored.
        Condition("background", before=("sh", "-c", 'nohup "$@" & wait $!', "sh"), why_not=lambda: missing("nohup")),
        Condition("no-avx", {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}),
        Condition("avx2", {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", **numpy_without_avx512()}),
        Condition("another-user", copied_for=NOBODY, why_not=no_other_user),
        Condition("root", before=("sudo", "-nE"), why_not=no_root),
        *(Condition(f"busy-{number}", burning=2) for number in range(1, BUSY_TIMES + 1)),
    ]


def numpy_without_avx512() -> dict[str, str]:
    """What NumPy and its OpenBLAS are told to have of this processor; NumPy warns of features that it has not."""
    found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    widest = [name for name in found if name.startswith(("AVX512", "X86_V4"))]
    return {"OPENBLAS_CORETYPE": "Haswell", **({"NPY_DISABLE_CPU_FEATURES": " ".join(widest)} if widest else {})}


def missing(program: str) -> str | None:
    """Why a condition that needs a program cannot be tried."""
    return None if shutil.which(program) else f"there is no {program} on this machine"


def no_other_user() -> str | None:
    """Why the tests cannot run as another user."""
    if os.geteuid() != 0:
        return "needs root; as another user than root they run anyway"
    if lacking := missing("setpriv"):
        return lacking
    # What setpriv starts may still reach the interpreter as root does; what that starts in turn may not.
    again = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', '']))"
    tried = subprocess.run([*as_user(NOBODY), sys.executable, "-c", again], capture_output=True, check=False)
    return f"{NOBODY} may not run {sys.executable}" if tried.returncode else None


def no_root() -> str | None:
    """Why the tests cannot run as root."""
    if os.geteuid() == 0:
        return "as root they run anyway"
    tried = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False) if shutil.which("sudo") else None
    return None if tried is not None and tried.returncode == 0 else "sudo asks for a password, or is not there"


def as_user(name: str) -> tuple[str, ...]:
    """Words in front of a command that another user runs."""
    user = pwd.getpwnam(name)
    return ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")


@contextlib.contextmanager
def checkout_of(user: str | None) -> Iterator[Path]:
    """This checkout; for another user a copy of what git knows of it, as a folder of theirs."""
    if user is None:
        yield ROOT
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        files = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.split("\0")  # fmt: skip
        for name in filter(None, files):
            if (ROOT / name).is_file() or (ROOT / name).is_symlink():  # of packages whose folders lie elsewhere
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
        ids = pwd.getpwnam(user)
        for path in (Path(folder), *Path(folder).rglob("*")):
            os.chown(path, ids.pw_uid, ids.pw_gid)
        yield copy


def run(condition: Condition, arguments: list[str], log: Path) -> tuple[int, str]:
    """The exit code of one run of the suite, and the last line that it printed."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(burning(condition.burning))
        checkout = stack.enter_context(checkout_of(condition.copied_for))
        temporary = stack.enter_context(tempfile.TemporaryDirectory())  # as a name: pytest keeps folders of old runs
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout), **condition.variables}
        before = condition.before
        if condition.copied_for:
            before = (*before, *as_user(condition.copied_for))
            os.chmod(temporary, 0o777)
            variables.update(HOME=temporary, USER=condition.copied_for, LOGNAME=condition.copied_for)
        command = [*before, sys.executable, "-m", "pytest", *SUITE, f"--basetemp={temporary}/pytest"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, *condition.options, *arguments],
                cwd=checkout, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                code = 124
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        lines = log.read_text(errors="replace").splitlines()
    return code, next(
        (line for line in reversed(lines) if re.search(r"\b(passed|failed|errors?)\b", line)), "no result"
    )


def main() -> None:
    """Tries what was asked for; ends with 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CONDITION", help="all, if none is named")
    parser.add_argument("--list", action="store_true", help="the names, and what this machine cannot try")
    parser.add_argument("--out", type=Path, default=Path("ddlprof-runs/try-tests"), metavar="DIR", help="for the logs")
    words = sys.argv[1:]
    ours, theirs = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    args = parser.parse_args(ours)
    known = {condition.name: condition for condition in conditions()}
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"there is no condition {unknown[0]}: choose from {', '.join(known)}")
    args.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in args.names or known:
        reason = known[name].why_not()
        if reason or args.list:
            print(f"{name:14} {f'not tried: {reason}' if reason else ''}", flush=True)
            continue
        began = time.monotonic()
        code, last = run(known[name], theirs, args.out / f"{name}.log")
        failed += code != 0
        print(
            f"{name:14} {'ok' if code == 0 else f'FAILED ({code})'}  {time.monotonic() - began:.0f} s  {last}",
            flush=True,
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
