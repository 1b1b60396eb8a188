"""Writes `recommender/compute/coefficients.json`: the fit to published measurements on one GPU, and its errors.

python -m scripts.fit.compute --data ../shared/data/throughput
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from scripts.fit.compute_errors import evaluate
from scripts.fit.compute_fit import Fit, fit
from scripts.fit.readable import readable, rounded
from scripts.fit.throughput import read_profet, read_single_gpu

OUT = Path(__file__).resolve().parents[2] / "recommender" / "compute" / "coefficients.json"
AS_OF = "2026-11-21"
SOURCES = (
    "PROFET (Lee et al., 2022): 11 CNNs on K80, T4, V100; TensorFlow 2.5, fp32 (pairs, share, batches)",
    "NVIDIA DeepLearningExamples, Lambda, Gavel (OSDI 2020), Pollux, Sia, OneFlow DLPerf, timm, CM-DARE, NeuSight, "
    "TensorFlow's 2017 page, MLPerf v2.0, PaddlePaddle, u39kun and others, one GPU (speeds, FLOPs)",
)


def write(fitted: Fit, errors: list[Fit], out: Path) -> None:
    """The readable file: lists of numbers and rows of the error table on one line each."""
    table = {"columns": list(errors[0]), "rows": [list(row.values()) for row in errors]}
    written = {"as_of": AS_OF, "written_by": "scripts/fit/compute.py", "sources": SOURCES, **fitted, "errors": table}
    out.write_text(readable(written), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.csv and its neighbours")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args(arguments)
    profet, others = read_profet(chosen.data), read_single_gpu(chosen.data)
    fitted = rounded(fit(profet, others))
    write(fitted, rounded(evaluate(profet, others)), chosen.out)


if __name__ == "__main__":
    main()
