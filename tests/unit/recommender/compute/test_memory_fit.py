"""Whether a need of memory fits, how likely, and what a process gets of a GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.instance_catalog import Gpu
from ddlprof.recommender.compute.memory_fit import (
    DOES_NOT_FIT,
    FITS,
    PERHAPS,
    MemoryVerdict,
    NeededMemory,
    usable_gib_of,
)
from ddlprof.recommender.target import default_catalog

NEED = NeededMemory(70.0, 60.0, 80.0)


@pytest.mark.parametrize(
    ("usable_gib", "probability", "word"),
    [(80.0, 0.9, FITS), (79.9, 0.9, PERHAPS), (70.0, 0.5, PERHAPS), (60.1, 0.1, PERHAPS), (60.0, 0.1, DOES_NOT_FIT)],
)
def test_the_ends_of_the_interval_part_the_verdicts(usable_gib: float, probability: float, word: str) -> None:
    found = MemoryVerdict(NEED, usable_gib)
    assert found.probability == pytest.approx(probability, abs=0.005)
    assert found.word == word


def test_a_need_without_an_interval_fits_or_does_not() -> None:
    sharp = NeededMemory(10.0, 10.0, 10.0)
    assert [MemoryVerdict(sharp, usable).word for usable in (9.99, 10.0, 0.0)] == [DOES_NOT_FIT, FITS, DOES_NOT_FIT]


@given(st.floats(1.0, 200.0), st.floats(1.0, 200.0))
def test_more_memory_is_never_less_likely_to_be_enough(one: float, other: float) -> None:
    less, more = (MemoryVerdict(NEED, usable).probability for usable in sorted((one, other)))
    assert 0.0 <= less <= more <= 1.0


def test_a_process_gets_what_cuda_shows_or_what_like_gpus_show() -> None:
    assert usable_gib_of(Gpu("A", memory_gib=80.0, shown_gib=79.1)) == 79.1
    assert usable_gib_of(Gpu("A", memory_gib=80.0, shown_gib=79.0), 40.0) == 39.5  # half of one
    assert usable_gib_of(Gpu("B", memory_gib=100.0, memory_type="HBM3")) == pytest.approx(98.5)
    assert usable_gib_of(Gpu("RTX-1", memory_gib=100.0, memory_type="GDDR6")) == pytest.approx(98.0)
    assert usable_gib_of(Gpu("A40", memory_gib=100.0, memory_type="GDDR6")) == pytest.approx(92.0)
    assert usable_gib_of(Gpu("C")) is None


def test_no_gpu_of_the_catalogue_shows_more_than_it_has() -> None:
    known = [gpu for gpu in default_catalog().gpus if gpu.memory_gib]
    assert all((usable_gib_of(gpu) or 0.0) < gpu.memory_gib for gpu in known if gpu.memory_gib)
