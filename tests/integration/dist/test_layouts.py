"""Jobs that divide their work along several dimensions: the dimension of each collective, and what each costs."""

from __future__ import annotations

import json
import runpy
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from ddlprof.analysis.dimensions import SHOWN, column_name
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.model.classes import COMM_PARTS
from ddlprof.model.dimensions import base_group, dimension_of
from ddlprof.model.manifest import LayoutFacts, Manifest
from ddlprof.model.records import NEVER
from ddlprof.store import RankData, load_run
from tests.integration.dist.conftest import DDLPROF, HERE, Job, ranks_of

pytestmark = pytest.mark.dist

BY_HAND = Path(__file__).parents[3] / "scripts/jobs/dimensions.py"
Uses = Mapping[tuple[str, int, str], set[str]]
"""The operations, by the dimension that they are told to be of, the ranks of the group, and the group if it is "0"."""


def run(job: Job, directory: Path, variant: str, ranks: int) -> tuple[list[RankData], Manifest]:
    job(directory, ranks, [*DDLPROF, "--no-calibrate", "--out", "run", str(HERE / "layouts.py"), variant])
    return ranks_of(directory / "run", ranks), Manifest.read(directory / "run")


def uses_of(rank: RankData) -> Uses:
    """Which operations were issued in steps."""
    found: defaultdict[tuple[str, int, str], set[str]] = defaultdict(set)
    for shape in rank.collectives.shapes:
        whole = base_group(shape) == "0"
        found[dimension_of(shape, rank.groups), shape.ranks, "job" if whole else "group"].add(shape.op)
    return found


def assert_adds_up(attempt: Attempt) -> None:
    """Dimensions add up to communication, and their parts to the parts, for all ranks and in each step."""
    spreads = attempt.summary.dimensions
    for part in ("", *COMM_PARTS):
        names = [name for each in SHOWN if (name := column_name(each, part)) in spreads]
        mean = attempt.summary.mean_ns(part or "comm")
        if mean is not None:
            assert sum(spreads[name].mean_ns or 0 for name in names) == pytest.approx(mean)
        for rank in attempt.ranks:
            columns = [rank.times.dimensions[name] for name in names if name in rank.times.dimensions]
            known = np.all([column >= 0 for column in columns], axis=0)
            assert (np.sum(columns, axis=0) == rank.times.times[part or "comm"])[known].all()


EXPECTED = {
    "fsdp_tp": (4, "fsdp+tp", LayoutFacts(tensor=2, data_shard=2), {("data", 2), ("tensor", 2), ("", 4)}),
    "unnamed_fsdp_tp": (4, "fsdp+tp", LayoutFacts(tensor=2, data_shard=2), {("data", 2), ("tensor", 2), ("", 4)}),
    "hsdp": (4, "ddp+fsdp", LayoutFacts(data_shard=2, data_replicate=2), {("data", 2), ("data", 4)}),
    "context": (4, "fsdp+cp", LayoutFacts(context=2, data_shard=2), {("data", 4), ("context", 2)}),
    "pipeline": (2, "pp", LayoutFacts(pipeline=2), {("pipeline", 2)}),
    "ddp_with_experts": (2, "ddp+ep", LayoutFacts(expert=2, data_replicate=2), {("data", 2), ("expert", 2)}),
}
"""By variant: ranks, strategy, layout, and the dimensions of its collectives with the ranks in each."""


@pytest.mark.parametrize(
    "variant", [v if v == "ddp_with_experts" else pytest.param(v, marks=pytest.mark.slow) for v in EXPECTED]
)
def test_dimensions_of_the_collectives_of_torchs_own_parallelisms(variant: str, job: Job, tmp_path: Path) -> None:
    world, strategy, layout, expected = EXPECTED[variant]
    ranks, manifest = run(job, tmp_path, variant, world)
    assert (manifest.training.strategy, manifest.layout) == (strategy, layout)
    for rank in ranks:
        uses = uses_of(rank)
        assert {(dimension, size) for dimension, size, _ in uses} == expected
        for (dimension, *_), operations in uses.items():
            exchanges = {op for op in operations if op.startswith(("alltoall", "send", "recv"))}
            assert bool(exchanges) == (dimension in ("pipeline", "context", "expert")), uses
    (attempt,) = analyse(load_run(tmp_path / "run"))
    assert_adds_up(attempt)


@pytest.mark.slow
def test_each_dimension_has_its_own_waits(job: Job, tmp_path: Path) -> None:
    """The job times its calls; what a call exposes is inside it, and most of it is waiting for a rank that sleeps."""
    job(tmp_path, 4, [*DDLPROF, "--no-calibrate", "--out", "run", str(BY_HAND), "--truth", "truth.json"])
    elements = runpy.run_path(str(BY_HAND))["ELEMENTS"]
    ranks, manifest = ranks_of(tmp_path / "run", 4), Manifest.read(tmp_path / "run")
    assert (manifest.training.strategy, manifest.layout) == ("tp+cp+ep", LayoutFacts(tensor=2, context=2, expert=2))
    own = json.loads((tmp_path / "truth.json").read_text())
    for rank in ranks:
        table = rank.collectives
        of_shape = [dimension_of(shape, rank.groups) for shape in table.shapes]
        waits = {"tensor": rank.rank % 2 == 0, "expert": rank.rank < 2}  # the other rank of each pair sleeps before
        told = {(dimension, shape.bytes) for dimension, shape in zip(of_shape, table.shapes, strict=True)}
        assert told == {(dimension, 4 * elements) for dimension, elements in elements.items()}
        for dimension, seconds in own[rank.rank].items():
            mine = np.isin(table.shape, [n for n, each in enumerate(of_shape) if each == dimension])
            exposed_us = np.where(table.exposed_us[mine] == NEVER, 0, table.exposed_us[mine])
            exposed_s = np.bincount(table.row[mine], weights=exposed_us, minlength=len(seconds)) / 1e6
            assert (exposed_s <= seconds).all()
            if waits.get(dimension):
                assert np.median(exposed_s) > 0.5 * np.median(seconds) > 0.005
    (attempt,) = analyse(load_run(tmp_path / "run"))
    assert_adds_up(attempt)
