"""Writes `recommender/compute/coefficients.json`: the fit to published measurements on one GPU, and its errors.

python -m scripts.fit.compute --data ../shared/data/throughput
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench.jobs import progress
from scripts.fit.combine_fit import Sds
from scripts.fit.compute_errors import (
    SHIPPED,
    Fitted,
    as_shipped,
    evaluate,
    print_by_question,
    print_ends,
    summary,
    widened,
    widths_of,
)
from scripts.fit.compute_fit import Fit, fit, known_steps, search, table_of
from scripts.fit.pairs import fit_pairs
from scripts.fit.readable import readable, rounded
from scripts.fit.throughput import read_profet, read_single_gpu

AS_OF = "2026-11-22"
SOURCES = (
    "PROFET (Lee et al., 2022): 11 CNNs on K80, T4, V100; TensorFlow 2.5, fp32",
    "NVIDIA DeepLearningExamples, Lambda, Gavel (OSDI 2020), Pollux, Sia, OneFlow DLPerf, NeuSight, TensorFlow's 2017 "
    "page, MLPerf v2.0, PaddlePaddle, u39kun and others, one GPU",
    "operators of their networks: scripts/fit/published_operators.json",
)


def write(fitted: Fit, sds: dict[str, Sds], errors: list[dict[str, Any]], out: Path) -> None:
    """The readable file: lists of numbers and rows of the error table on one line each. `search` has the standard
    deviations as the fit knows them."""
    table = {"columns": list(errors[0]) if errors else [], "rows": [list(row.values()) for row in errors]}
    head = {"as_of": AS_OF, "written_by": "scripts/fit/compute.py", "sources": SOURCES}
    out.write_text(readable({**head, **fitted, "search": sds, "errors": table}), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.csv and its neighbours")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--search", action="store_true", help="search the standard deviations of effects again")
    parser.add_argument("--ends", action="store_true", help="fit nothing: count intervals that begin below the peak")
    chosen = parser.parse_args(arguments)
    table = table_of(read_profet(chosen.data), read_single_gpu(chosen.data))
    if chosen.ends:
        print_ends(as_shipped(table))
        return
    steps = known_steps(table)
    before = json.loads(SHIPPED.read_text(encoding="utf-8"))
    sds = rounded(search(steps)) if chosen.search else before["search"]
    profet = read_profet(chosen.data)
    cases = evaluate(table, Fitted(steps, sds, profet=profet))
    widths = widths_of(cases)
    progress(f"factors of intervals: {widths}")
    errors = summary(widened(cases, widths))
    fitted = {**fit(steps, sds, widths), "pairs": fit_pairs(profet)}
    write(rounded(fitted), sds, rounded(errors), chosen.out)
    print_by_question(errors)


if __name__ == "__main__":
    main()
