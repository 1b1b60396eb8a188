"""How long loading the catalogue and one query take, after imports: the median of repeats, against the limit."""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from ddlprof.instance_catalog import load

LIMIT_MS = 50.0


def milliseconds() -> float:
    """Milliseconds of one load of the embedded snapshot, a selection and a price."""
    begin = time.perf_counter()
    catalog = load(None)
    for row in catalog.select(gpu="A100", region="us-east-1"):
        catalog.price(row.instance_type, "us-east-1")
    return 1e3 * (time.perf_counter() - begin)


def main() -> int:
    """Exit code 1 if the median is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=50)
    measured = [milliseconds() for _ in range(parser.parse_args().repeats)]
    median = statistics.median(measured)
    print(f"load and query  {median:.1f} ms, first {measured[0]:.1f} ms (limit {LIMIT_MS:g}; {len(measured)} repeats)")
    return int(median > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
