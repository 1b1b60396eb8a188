"""How many models fit: the search over sizes, and a step that is refused memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.extensions.fusion.memory import bytes_per_model, fits_memory, kept_by, most_that_fit

CPU = torch.device("cpu")


@given(st.integers(1, 300), st.integers(0, 400), st.integers(0, 400))
def test_the_most_that_fit_are_found_from_any_estimate(wanted: int, truth: int, estimate: int) -> None:
    tried = []

    def fits(models: int) -> bool:
        tried.append(models)
        return models <= truth

    assert most_that_fit(wanted, estimate, fits) == min(wanted, truth)
    assert len(tried) == len(set(tried))
    assert len(tried) <= 2 * wanted.bit_length() + 1


def test_a_good_estimate_needs_one_try() -> None:
    tried: list[int] = []
    assert most_that_fit(8, 1000, lambda models: not tried.append(models)) == 8  # type: ignore[func-returns-value]
    assert tried == [8]


def test_a_step_that_asks_for_more_than_is_free_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddlprof.extensions.fusion.memory.free_bytes", lambda device: 2**28)
    assert not fits_memory(CPU, lambda: torch.empty(2**31, dtype=torch.uint8))
    assert fits_memory(CPU, lambda: torch.empty(2**20, dtype=torch.uint8))
    assert torch.empty(2**31, dtype=torch.uint8).numel()  # the limit is gone again


def test_other_errors_are_no_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fits_memory(CPU, lambda: torch.ones(2, 3) @ torch.ones(2, 3))


def test_bytes_of_a_model() -> None:
    assert bytes_per_model(100, 7, "sgd", {}) == 307
    assert bytes_per_model(100, 7, "sgd", {"momentum": 0.9}) == 407
    assert bytes_per_model(100, 7, "adam", {}) == 607


def test_what_forward_keeps_is_counted_once() -> None:
    x = torch.ones(1000, requires_grad=True)
    assert kept_by(lambda: (x * x).sum()) == 4000
