"""How long `ddlprof --help` takes against `python -c pass`, and which heavy modules it imports (none).

The two are run in turn, so that a slow moment of the machine meets both; the ratio is the median over the pairs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

HEAVY = ("torch", "numpy", "pandas", "rich", "psutil", "sklearn", "boto3", "pynvml")
LIMIT = 7.0
HELP = [sys.executable, "-m", "ddlprof", "--help"]
NOTHING = [sys.executable, "-c", "pass"]
IMPORTS = (
    "import sys; sys.argv = ['ddlprof', '--help']; from ddlprof.cli.app import main; main();"
    f"print(*sorted(m for m in sys.modules if m in {HEAVY!r}), file=sys.stderr)"
)


def seconds(command: list[str]) -> float:
    """Wall time of a command from start to end."""
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def main() -> int:
    """Exit code 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=25)
    pairs = parser.parse_args().pairs
    seconds(HELP)  # compiles the byte code
    measured = [(seconds(NOTHING), seconds(HELP)) for _ in range(pairs)]
    ratio = statistics.median(with_help / nothing for nothing, with_help in measured)
    heavy = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True).stderr.split()
    nothing_ms, help_ms = (1e3 * statistics.median(column) for column in zip(*measured, strict=True))
    print(f"python -c pass  {nothing_ms:.1f} ms")
    print(f"ddlprof --help  {help_ms:.1f} ms, {ratio:.2f} times as long (limit {LIMIT:g}; median of {pairs} pairs)")
    print(f"heavy imports   {', '.join(heavy) or 'none'}")
    return int(ratio > LIMIT or bool(heavy))


if __name__ == "__main__":
    sys.exit(main())
