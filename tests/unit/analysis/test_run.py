"""The analysis of whole runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.run import Attempt, analyse, headline_attempt
from ddlprof.model.manifest import TrainingFacts
from ddlprof.model.records import Aggregate, Calibration, Flag
from ddlprof.store import load_run
from tests.golden.runs import HERE, MS, SHAPES, ddp_step, header, manifest, simple_run, step, write_rank


def test_the_golden_run() -> None:
    (attempt,) = analyse(load_run(HERE / "two-ranks"))
    assert attempt.attempt == 0
    assert attempt.steady_steps == 18
    assert attempt.late_rank is not None
    assert (attempt.late_rank.rank, attempt.late_rank.cause) == (1, "data")
    assert attempt.comm is not None
    assert attempt.comm.ops == ["allreduce"]
    assert attempt.comm.duration_ns == (44 + 10) / 2 * MS
    assert attempt.comm.bus_gb_s == 500_000 / 10e-3 / 1e9
    assert not attempt.notes
    flags = attempt.ranks[0].flags
    assert [bool(f & Flag.WARMUP) for f in flags[:6]] == [True] * 4 + [False] * 2


def test_recorded_flags_are_not_changed(tmp_path: Path) -> None:
    run = load_run(simple_run(tmp_path))
    analyse(run)
    assert not run.ranks[0].steps["flags"].any()


def test_the_headline_is_about_the_attempt_with_most_steady_steps(tmp_path: Path) -> None:
    for attempt, steps in enumerate((30, 60, 10)):
        write_rank(tmp_path, header(attempt=attempt), [step(n) for n in range(steps)])
    attempts = analyse(load_run(tmp_path))
    headline = headline_attempt(attempts)
    assert headline is not None
    assert headline.attempt == 1
    assert headline_attempt([]) is None


def test_attempts_are_not_matched_with_each_other(tmp_path: Path) -> None:
    for restarts in (0, 1):
        for rank in (0, 1):
            made = [ddp_step(rank, n) for n in range(30)]
            head = header(rank, 2, restarts)
            write_rank(tmp_path, head, [r for r, _ in made], SHAPES, [t for _, ts in made for t in ts])
    for attempt in analyse(load_run(tmp_path)):
        assert attempt.summary.mean_ns("straggler") == 10 * MS


def test_sums_past_the_cap_enter_the_headline(tmp_path: Path) -> None:
    aggregate = Aggregate(40, 100, 2000 * MS, 1900 * MS, 0, None, None, 0, 0, 100 * MS, 100, None)
    write_rank(tmp_path, header(), [step(n) for n in range(40)], records=[aggregate])
    (attempt,) = analyse(load_run(tmp_path))
    assert attempt.steady_steps == 137
    assert attempt.summary.mean_ns("step") == (37 * 10 + 2000) / 137 * MS


@pytest.mark.parametrize(("strategy", "batch"), [("ddp", (32, 64)), ("pp", (64, 128))])
def test_the_batch_of_a_rank_that_loads_for_all_is_that_of_the_others(
    tmp_path: Path, strategy: str, batch: tuple[int, int]
) -> None:
    for rank in (0, 1):
        made = [step(n, 10, data_ms=None if rank else 20) for n in range(30)]
        write_rank(tmp_path, header(rank, 2), [replace(each, samples=64 >> rank) for each in made])
    (attempt,) = analyse(load_run(tmp_path))
    assert [rank.data.rank for rank in attempt.fed] == [1]
    known = TrainingFacts(strategy=strategy, batch_per_rank=64, global_batch=128)
    found = attempt.manifest(replace(manifest(2), training=known))
    assert found is not None
    assert (found.training.batch_per_rank, found.training.global_batch) == batch


def test_it_says_why_communication_is_not_split(tmp_path: Path) -> None:
    shapes = [replace(shape, op="broadcast") for shape in SHAPES]
    for rank in (0, 1):
        made = [ddp_step(rank, n) for n in range(10)]
        write_rank(tmp_path, header(rank, 2), [r for r, _ in made], shapes, [t for _, ts in made for t in ts])
    (attempt,) = analyse(load_run(tmp_path))
    assert attempt.notes == [
        "waiting for a later rank is told from moving data for 0 % of the communication: "
        "the root of broadcast is not recorded, and ranks do different work in it"
    ]


def between_machines(directory: Path, nodes: str, *rungs: Calibration) -> Attempt:
    shapes = [replace(shape, ranks=len(nodes)) for shape in SHAPES]
    for rank, node in enumerate(nodes):
        made = [ddp_step(rank % 2, n) for n in range(10)]
        head = header(rank, len(nodes), node=node)
        write_rank(directory, head, [r for r, _ in made], shapes, [t for _, ts in made for t in ts], rungs)
    (attempt,) = analyse(load_run(directory))
    return attempt


def test_it_says_that_links_were_not_calibrated(tmp_path: Path) -> None:
    attempt = between_machines(tmp_path, "aabb")
    assert attempt.notes == ["interconnect and network are not told apart: nothing was calibrated inside the machines"]
    assert attempt.summary.mean_ns("network") is None


def test_with_one_rank_a_machine_all_that_is_no_wait_is_network(tmp_path: Path) -> None:
    attempt = between_machines(tmp_path, "ab")
    assert attempt.notes == [
        "no machine holds a second rank: all that communication costs is network, and interconnect is 0"
    ]
    assert attempt.summary.mean_ns("interconnect") == 0
    comm, straggler = attempt.summary.mean_ns("comm"), attempt.summary.mean_ns("straggler")
    assert comm is not None
    assert straggler is not None
    assert attempt.summary.mean_ns("network") == comm - straggler > 0


def test_a_calibration_tells_interconnect_from_network(tmp_path: Path) -> None:
    slow = Calibration(2, 4096, 10 * MS)  # as slow as the network: nothing would be gained inside a machine
    fast = Calibration(2, 4096, 1000)
    by_link = [between_machines(tmp_path / name, "aabb", rung) for name, rung in (("slow", slow), ("fast", fast))]
    assert [attempt.notes for attempt in by_link] == [[], []]
    slowly, quickly = (attempt.summary for attempt in by_link)
    assert slowly.mean_ns("network") == 0
    assert slowly.mean_ns("interconnect") == quickly.mean_ns("network") + quickly.mean_ns("interconnect")  # type: ignore[operator]
    assert quickly.mean_ns("network") > 0  # type: ignore[operator]


def test_a_run_of_nothing(tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [])
    (attempt,) = analyse(load_run(tmp_path))
    assert attempt.steady_steps == 0
    assert attempt.summary.mean_ns("step") is None
