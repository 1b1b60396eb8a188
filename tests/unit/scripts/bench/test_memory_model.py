"""Expected memory beside what torch's allocator gave out, on jobs small enough for every run of the tests."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from scripts.bench.memory_cases import Case, Recommender, Result
from scripts.bench.memory_model import LIMIT, LIMIT_UNDER, counted, expected
from scripts.bench.memory_truth import measured


class Convolutions(nn.Module):
    """A few of them, and a linear layer with most of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 16 * 16, 200), nn.ReLU(), nn.Linear(200, 10),
        )  # fmt: skip

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> Result:
        """Logits of the classes and their loss."""
        logits = self.body(pixel_values)
        return Result(nn.functional.cross_entropy(logits, labels), logits)


def images(size: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(size, 3, 32, 32), "labels": torch.zeros(size, dtype=torch.int64)}


def clicks(size: int) -> dict[str, torch.Tensor]:
    return {"dense": torch.randn(size, 13), "sparse": torch.zeros(size, 2).long(), "labels": torch.zeros(size)}


CONVOLUTIONS = Case("convolutions", Convolutions, images, 32)
CASES = [
    CONVOLUTIONS,
    Case("foreach", Convolutions, images, 4, optimizer="adamw-foreach"),
    Case("tables", partial(Recommender, 2, 3000, 32), clicks, 1024, optimizer="adagrad"),
]
OTHERS = [
    Case("sgd", Convolutions, images, 32, optimizer="sgd-momentum"),
    Case("accumulated", Convolutions, images, 32, grad_accum=2),
    Case("frozen", Convolutions, images, 32, frozen="body.7"),
]


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in OTHERS)], ids=lambda case: case.name
)
def test_expected_memory_is_what_was_allocated(case: Case) -> None:
    guess, found = expected(case, counted(case, case.batch // 2)), measured(case)["peak"]
    assert -LIMIT_UNDER <= guess / found - 1 <= LIMIT


def test_the_comparison_can_fail() -> None:
    step = counted(CONVOLUTIONS, 4)
    assert expected(Case("twice", Convolutions, images, 64), step) > 1.2 * expected(CONVOLUTIONS, step)
