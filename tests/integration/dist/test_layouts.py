"""Jobs that divide their work along several dimensions: the dimension of each collective, and what each costs."""

from __future__ import annotations

import json
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
from ddlprof.store import RankData, load_run
from tests.integration.dist.conftest import DDLPROF, HERE, Job, ranks_of

pytestmark = pytest.mark.dist

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
def test_each_dimension_takes_what_the_job_itself_measured(job: Job, tmp_path: Path) -> None:
    """Rank 1 of each tensor group comes 20 ms late, and half of the ranks come 40 ms late to their experts."""
    ranks, manifest = run(job, tmp_path, "by_hand", 4)
    assert (manifest.training.strategy, manifest.layout) == ("tp+cp+ep", LayoutFacts(tensor=2, context=2, expert=2))
    by_size = {"tensor": 1_600_000, "data": 4_000_000, "expert": 800_000, "context": 400_000, "": 32}
    for rank in ranks:
        told = {(dimension_of(shape, rank.groups), shape.bytes) for shape in rank.collectives.shapes}
        assert told == set(by_size.items())
    (attempt,) = analyse(load_run(tmp_path / "run"))
    assert_adds_up(attempt)
    step_s = (attempt.summary.mean_ns("step") or 0) / 1e9
    own = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for dimension in by_size:
        steady = [np.array(own[rank.data.rank][dimension or "unknown"])[rank.times.steady] for rank in attempt.ranks]
        measured = (attempt.summary.dimensions[column_name(dimension)].mean_ns or 0) / 1e9
        assert abs(measured - np.concatenate(steady).mean()) < 0.05 * step_s, dimension
    waits = {name: (spread.mean_ns or 0) / 1e9 for name, spread in attempt.summary.dimensions.items()}
    late = {name: waits[column_name(name, "straggler")] for name in ("tensor", "expert", "data", "context")}
    assert late["expert"] > late["tensor"] > 2 * max(late["data"], late["context"])
