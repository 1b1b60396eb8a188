"""Training with ddlprof is training without it, bit by bit; and every rank recorded the same collectives."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
import torch

from ddlprof.store.tables import RankData
from tests.integration.dist.conftest import DDLPROF, HERE, Job, ranks_of
from tests.integration.dist.variants import STEPS, VARIANTS

pytestmark = pytest.mark.dist


class Both(NamedTuple):
    world_size: int
    plain: list[Any]
    profiled: list[Any]
    ranks: list[RankData]


@pytest.fixture(
    scope="module",
    params=[2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3))],
    ids=lambda size: f"world size {size}",
)
def both(request: pytest.FixtureRequest, job: Job, tmp_path_factory: pytest.TempPathFactory) -> Both:
    size: int = request.param
    directory = tmp_path_factory.mktemp("job")
    script = str(HERE / "variants.py")
    plain_errors = job(directory, size, [script, "plain"])
    errors = job(directory, size, [*DDLPROF, script, "profiled"])
    assert [without_times(text) for text in errors] == [without_times(text) for text in plain_errors]
    (run,) = (directory / "ddlprof-runs").iterdir()  # rank 0 chose it, the others were told
    results = [[torch.load(directory / f"{name}-{rank}.pt") for rank in range(size)] for name in ("plain", "profiled")]
    return Both(size, results[0], results[1], ranks_of(run, size))


def without_times(text: str) -> list[str]:
    return sorted(re.sub(r"^(\[.*?\]:)?\[W.*? (\S+\.cpp)", r"\1 \2", line) for line in text.splitlines())


def assert_identical(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_identical(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_identical(x, y)
    else:
        assert a == b


@pytest.mark.parametrize("variant", VARIANTS)
def test_bitwise_identical(variant: str, both: Both) -> None:
    for plain, profiled in zip(both.plain, both.profiled, strict=True):
        assert_identical(plain[variant], profiled[variant])


def test_every_update_is_one_step(both: Both) -> None:
    for rank in both.ranks:
        assert len(rank.steps) == STEPS * len(VARIANTS)
        expected = [3 if name == "no_sync" else 1 for name in VARIANTS for _ in range(STEPS)]
        assert rank.steps["microbatches"].tolist() == expected
        assert rank.notes == []
        assert rank.status == "ok"


def test_classes_add_up(both: Both) -> None:
    for rank in both.ranks:
        for row in rank.steps.rows():
            classes = (row.compute_ns or 0, row.data_ns or 0, row.h2d_ns or 0, row.comm_ns or 0, row.other_ns)
            assert min(classes) >= 0
            assert sum(classes) == row.step_ns
            assert row.comm_ns or both.world_size == 1  # a group of one has collectives, which hardly take time


def test_all_ranks_recorded_the_same_collectives(both: Both) -> None:
    def collectives(rank: RankData) -> list[Any]:
        table = rank.collectives
        shapes = [table.shapes[index] for index in table.shape]
        pairs = zip(shapes, table.seq.tolist(), strict=True)
        return sorted((shape.group, seq, shape.op, shape.bytes, shape.ranks) for shape, seq in pairs)

    first, *others = (collectives(rank) for rank in both.ranks)
    assert first
    assert len({(group, seq) for group, seq, *_ in first}) == len(first)
    for other in others:
        assert other == first
