"""Products whose sizes do not suit tensor cores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.instance_catalog import load
from ddlprof.model.operators import UNALIGNED_SLOWER, Operator, StepOperators, unaligned_sizes
from ddlprof.recommender.compute.alignment import PAD
from ddlprof.recommender.compute.operator_time import OperatorEstimate, OperatorModel

TOKENS, WIDTH = 8192, 768


def product(n: int, m: int = TOKENS, k: int = WIDTH, grows: int | None = 1, **more: object) -> Operator:
    known = {"phase": "forward", "dtype": "bf16", "flops": 2.0 * m * n * k, "bytes": 2.0 * (m * n + n * k + m * k)}
    known |= {"kind": "product", "name": "mm", "shape": (1, m, n, k), "launches": 1.0, "count": 1.0, "grows": grows}
    return Operator(**{**known, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operator", "is_slow"),
    [
        (product(50_257), True),
        (product(50_304), False),
        (product(WIDTH, k=50_257), True),
        (product(WIDTH, m=50_257, k=TOKENS + 1, grows=3), True),
        (product(WIDTH, m=TOKENS + 1), False),  # how many tokens there are costs nothing
        (product(WIDTH, m=WIDTH, k=TOKENS + 1, grows=3), False),
        (product(1), False),
        (product(50_257, dtype="fp32"), False),
        (product(197, shape=(144, 197, 197, 64)), False),  # of attention: nobody has measured it
    ],
)
def test_what_counts_is_the_sizes_of_weights(operator: Operator, is_slow: bool) -> None:
    assert bool(unaligned_sizes(operator)) is is_slow


def estimate(vocabulary: int, gpu: str = "A100-SXM4-80GB", **more: object) -> OperatorEstimate:
    operators = (*(product(3072) for _ in range(8)), product(vocabulary))
    step = StepOperators(8, "bf16", operators, "adamw")
    return OperatorModel.shipped().step(replace(step, **more), load().gpu(gpu))  # type: ignore[arg-type]


def test_a_padded_vocabulary_is_faster() -> None:
    odd, padded = estimate(50_257), estimate(50_304)
    assert 1.2 < odd.step_s / padded.step_s < UNALIGNED_SLOWER
    assert odd.sd > padded.sd
    (told,) = [line for line in odd.basis if line.startswith(PAD)]
    assert told.startswith("pad 50,257 to 50,304: ")
    assert f"{100 * (1 - padded.step_s / odd.step_s):.0f} % shorter" in told
    assert not [line for line in padded.basis if line.startswith(PAD)]


def test_nothing_is_slower_where_it_is_padded_or_there_are_no_tensor_cores() -> None:
    for more in ({"compiled": True}, {"gpu": "P100-PCIe-16GB"}):
        odd, padded = estimate(50_257, **more), estimate(50_304, **more)
        assert odd.step_s == pytest.approx(padded.step_s, rel=0.01)
        assert not [line for line in odd.basis if line.startswith(PAD)]
