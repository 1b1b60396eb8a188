"""Writes `recommender/compute/operators.json`: what operators reach on GPUs, from published measurements, with errors.

python -m scripts.fit.operators --data ../shared/data/operators
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from scripts.fit.operators_errors import error_rows
from scripts.fit.operators_fit import fit
from scripts.fit.operators_tensor import Fit
from scripts.fit.readable import readable, rounded

OUT = Path(__file__).resolve().parents[2] / "recommender" / "compute" / "operators.json"
AS_OF = "2026-11-29"
SOURCES = (
    "NeuSight's artefact (Lee et al., ASPLOS 2025, MIT): operators on P4, P100, V100, T4 and A100, fp32 without TF32,"
    " and whole models (cuda, convolution, streams, host, deviations)",
    "AIConfigurator's performance database (NVIDIA, Apache-2.0, 2026): 16-bit products of all shapes on A100, H100,"
    " L40S, B200 and GB200, the median over frameworks (tensor, generations)",
    "Published large products, scripts/fit/large_products.csv: levels and energies of more GPUs (tensor, generations)",
    "Dao, FlashAttention-2 (2023), and Shah et al., FlashAttention-3 (2024): shares of the peak (fused)",
    "Stated, not fitted: energies by process, depthwise convolutions, recurrent layers, and the kinds reduction,"
    " embedding, pooling, copy, optimizer and other",
)


def write(fitted: Fit, errors: list[Fit], out: Path) -> None:
    """The readable file."""
    table = {"columns": list(errors[0]), "rows": [list(row.values()) for row in errors]} if errors else {}
    written = {"as_of": AS_OF, "written_by": "scripts/fit/operators.py", "sources": SOURCES, **fitted, "errors": table}
    out.write_text(readable(rounded(written)), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with operators.csv and its neighbours")
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args(arguments)
    write(fit(chosen.data), error_rows(chosen.data), chosen.out)


if __name__ == "__main__":
    main()
