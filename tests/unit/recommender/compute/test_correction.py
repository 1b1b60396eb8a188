"""Corrected parts of a step: a factor where the runs had the GPU, nothing elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddlprof.recommender.compute.correction import ComputeCorrection, CorrectedParts
from ddlprof.recommender.compute.step_parts import Changes, FlopParts
from ddlprof.recommender.target import default_catalog

ZERO, WIDE = (0.0, 0.0, 0.0), (50.0, 50.0, 50.0)
TWICE = ComputeCorrection(
    "T4", "fp32", "flops", log_factor=float(np.log(2)), slopes=ZERO, middle=ZERO, low=ZERO, high=WIDE, sd=0.1, jobs=7
)
PLAIN = FlopParts(1e10, 100)


@pytest.mark.parametrize(("gpu", "precision", "factor"), [("T4", "fp32", 2), ("T4", "fp16", 1), ("V100", "fp32", 1)])
def test_only_what_the_runs_had_is_corrected(gpu: str, precision: str, factor: float) -> None:
    of = default_catalog().gpu(gpu)
    before, after = (source.at(of, 16, precision, Changes()) for source in (PLAIN, CorrectedParts(PLAIN, [TWICE], 100)))
    assert after.seconds == pytest.approx(factor * before.seconds)
    assert after.learned_sd == (0.1 if factor == 2 else None)
    assert len(after.basis) - len(before.basis) == (factor == 2)


def test_what_parts_are_made_of_matters() -> None:
    other = replace(TWICE, knowledge="operators")
    of = default_catalog().gpu("T4")
    assert CorrectedParts(PLAIN, [other], 100).at(of, 16, "fp32", Changes()).learned_sd is None
