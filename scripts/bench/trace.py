"""How long a trace of a job of many ranks takes, how much memory, and how large it is.

The job is synthetic (see `synthetic_job.py`): 64 ranks on 8 machines, 1,000 steps of ten collectives. Prints Markdown
for docs/benchmarks.md, without limits.
"""

from __future__ import annotations

import argparse
import gzip
import tempfile
from pathlib import Path

from scripts.bench.jobs import print_table, progress
from scripts.bench.merge import run
from scripts.bench.synthetic_job import write_job

RANKS, RANKS_OF_A_NODE, STEPS = 64, 8, 1000
WINDOWS = {"5 typical steps": [], "100 steps": ["--step-range", "500:600"]}


def main() -> None:
    """Prints one table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        write_job(job, RANKS, STEPS, RANKS // RANKS_OF_A_NODE)
        progress("job written")
        report = ["-m", "ddlprof", "report", str(job)]
        card = run(*report)
        rows.append(["the card alone", "", "", f"{card.cpu_s:.1f}", f"{card.peak_mib:.0f}"])
        for name, words in WINDOWS.items():
            path = Path(folder) / "trace.json.gz"
            done = run(*report, "--format", "trace", "-o", str(path), *words)
            text = gzip.decompress(path.read_bytes())
            events = text.count(b'"ph": "')
            size = f"{len(text) / 1e6:.1f} ({path.stat().st_size / 1e6:.1f})"
            rows.append([name, f"{events:,}", size, f"{done.cpu_s:.1f}", f"{done.peak_mib:.0f}"])
            progress(name)
    print_table(["trace", "events", "MB (compressed)", "processor s", "MiB"], rows)


if __name__ == "__main__":
    main()
