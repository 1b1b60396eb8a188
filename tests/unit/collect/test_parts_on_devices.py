"""The parts of communication where no collective says when it ends: two ranks on simulated devices, and their report.

What the devices did is known, so the parts are compared with those that come from the true ends.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ddlprof.analysis.run import Attempt, analyse
from ddlprof.collect.accelerator import flight_recorder, windows
from ddlprof.collect.accelerator.flight_recorder import FlightRecorder
from ddlprof.collect.accelerator.windows import ProfilerWindows
from ddlprof.collect.helper import Helper
from ddlprof.collect.hooks.collective import IssuedCollective
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.model.classes import CLASSES, COMM_PARTS
from ddlprof.model.events import FirstSeen, Kind
from ddlprof.model.kernels import Activity
from ddlprof.model.records import MISSING, Calibration, RankHeader
from ddlprof.report.run import text as card
from ddlprof.report.run.data import build_report
from ddlprof.store import load_run
from ddlprof.writing.writer import RankWriter
from tests.unit.collect.lagging_device import MS, UNIX, LaggingDevice, Profiler

STEPS = 80
KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


@pytest.fixture(autouse=True)
def clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(time_ns=lambda: UNIX, perf_counter_ns=lambda: 0, perf_counter=lambda: 0.0)
    monkeypatch.setattr(windows, "time", clock)
    monkeypatch.setattr(flight_recorder, "time", clock)
    monkeypatch.setattr(flight_recorder, "_EVERY_S", 0.0)
    monkeypatch.setattr("ddlprof.collect.helper._COLLECTIVES_WAIT_S", 0.0)


@dataclass
class Rank:
    """A rank: its device, what it recorded on a clock of its own, and the queue of its process group."""

    number: int
    device: LaggingDevice
    recorder: Recorder
    helper: Helper
    writer: RankWriter
    ahead: int
    """Its clock, of the device's."""
    ranks: int
    op: str = "allreduce"
    seq: int = 0
    queue_free: int = 0
    ring: list[dict[str, Any]] = field(default_factory=list)

    def all_reduce(self, begin: int, end: int, truth: bool) -> None:
        """Issued now."""
        host = self.device.now() if truth else self.device.host
        root = 0 if self.op == "broadcast" else None
        collective = IssuedCollective("0", self.seq, self.op, 4_000_000, self.ranks, host + self.ahead, root)
        self.recorder.emit(Kind.COLLECTIVE, collective)
        if truth:
            collective.end = end + self.ahead
        self.ring.append({
            "pg_name": ("0", "default_pg"), "profiling_name": f"nccl:{self.op}",
            "time_created_ns": UNIX + host + self.ahead + 9000, "duration_ms": (end - begin) / 1e6,
        })  # fmt: skip
        self.device.done.append(Activity(KERNEL, begin, end))
        self.queue_free = end
        self.seq += 1
        self.device.host += 100_000

    def step(self) -> None:
        """Computation waits for all that was issued, and updates."""
        emit = self.recorder.emit
        emit(Kind.COMM_BEGIN)
        self.device.device = max(self.device.now(), self.queue_free)
        emit(Kind.COMM_END, True)
        emit(Kind.BACKWARD_END)
        emit(Kind.OPTIMIZER_BEGIN, 0)
        self.device.launch("adam", MS)
        emit(Kind.OPTIMIZER_END, 0, False, FirstSeen("SGD", 1))
        self.helper._drain()

    def compute(self, duration: int, first: bool) -> None:
        emit = self.recorder.emit
        if first:
            emit(Kind.FORWARD_BEGIN, True, True, 4)
            self.device.launch("gemm", MS)
            emit(Kind.FORWARD_END, True)
            emit(Kind.BACKWARD_BEGIN)
        self.device.launch("gemm", duration)


class Ahead(Profiler):
    """On a clock that is ahead."""

    def __init__(self, device: LaggingDevice, ahead: int) -> None:
        super().__init__(device, opening_ns=30 * MS)
        self.ahead = ahead

    def activities(self, result: Any) -> list[Activity]:
        return [Activity(a.name, a.begin + self.ahead, a.end + self.ahead) for a in super().activities(result)]


def rank_of(number: int, directory: Path, nodes: str, look: str) -> Rank:
    recorder, device, ahead = Recorder(), LaggingDevice(lead_ns=20 * MS), number * 5000 * MS
    node = nodes[number]
    head = RankHeader(number, len(nodes), number, 0, f"host-{node}", node, 100 + number, "H100", "device", 0, UNIX)
    writer = RankWriter(head)
    writer.open(directory)
    assembler = StepAssembler(0)
    assembler.boundaries.settle()
    helper = Helper(recorder, assembler, writer, None, lambda step: None)
    recorder.clock = lambda: device.now() + ahead
    recorder.at_update = helper.at_update
    writer.context(Calibration(2, 4_000_000, MS // 10))  # of gloo, in the host's memory
    rank = Rank(number, device, recorder, helper, writer, ahead, len(nodes))
    if look == "recorder":
        helper.flight_recorder = FlightRecorder(lambda: pickle.dumps({"entries": rank.ring[-20:]}))
    elif look == "windows":
        helper.windows = ProfilerWindows(recorder, Ahead(device, ahead), 1, device.mark)
    return rank


Work = Callable[[int, int], tuple[int, int]]
"""By rank and step: what it computes before each of the two all-reduces is issued."""


def train(
    directory: Path, work: Work, transfers: tuple[int, int], look: str, nodes: str = "aa", op: str = "allreduce"
) -> Attempt:
    """Each step: computing, an all-reduce issued, computing, another one issued, a wait for both, the update."""
    ranks = [rank_of(number, directory, nodes, look) for number in range(len(nodes))]
    for rank in ranks:
        rank.op = op
    for step in range(STEPS):
        for part, transfer in enumerate(transfers):
            for rank in ranks:
                rank.compute(work(rank.number, step)[part], first=not part)
            begins = [max(rank.device.now(), rank.queue_free) for rank in ranks]
            for rank, begin in zip(ranks, begins, strict=True):
                rank.all_reduce(begin, max(begins) + transfer, look == "truth")
        for rank in ranks:
            rank.step()
    for rank in ranks:
        rank.helper.stop()
        rank.writer.close()
    (attempt,) = analyse(load_run(directory))
    return attempt


def means(attempt: Attempt) -> dict[str, float | None]:
    """In milliseconds."""
    return {
        name: None if (mean := attempt.summary.mean_ns(name)) is None else round(mean / MS, 2)
        for name in ("comm", *COMM_PARTS)
    }


def check_sums(attempt: Attempt) -> None:
    """Classes add up, and parts are within communication and add up to it."""
    for rank in attempt.ranks:
        times = rank.times.times
        assert np.array_equal(sum(np.maximum(times[name], 0) for name in CLASSES), times["step"])
        known = times["straggler"] != MISSING
        assert (times["straggler"] <= times["comm"])[known].all()
        assert (times["straggler"] >= 0)[known].all()
        whole = known & (times["network"] != MISSING)
        assert np.array_equal(sum(times[name][whole] for name in COMM_PARTS), times["comm"][whole])


def late_by_3(rank: int, step: int) -> tuple[int, int]:
    """Rank 1 computes 3 ms longer before its second all-reduce."""
    return 2 * MS, (4 + 3 * rank) * MS


def test_without_an_option_the_parts_are_empty_and_the_card_says_how_to_get_them(tmp_path: Path) -> None:
    attempt = train(tmp_path, late_by_3, (MS, 2 * MS), "nothing")
    assert means(attempt) == {"comm": 3.5, "interconnect": None, "network": None, "straggler": None, "bubble": None}
    run = load_run(tmp_path)
    text = card.render(build_report(run, analyse(run), UNIX))
    (line,) = [line for line in text.splitlines() if "NCCL does not tell" in line]
    assert "--time-collectives" in line
    assert "--profiler-windows" in line
    assert "idle inside a step is not known: ddlprof run --profiler-windows" in text


@pytest.mark.parametrize("look", ["truth", "recorder", "windows"])
def test_waiting_for_a_late_rank_is_told(tmp_path: Path, look: str) -> None:
    attempt = train(tmp_path, late_by_3, (MS, 2 * MS), look)
    check_sums(attempt)
    assert means(attempt) == {"comm": 3.5, "interconnect": 2.0, "network": 0.0, "straggler": 1.5, "bubble": 0.0}
    waits, late = (rank.summary.mean_ns("straggler") for rank in attempt.ranks)
    assert (round(waits / MS), round(late / MS)) == (3, 0)  # type: ignore[operator]


@pytest.mark.parametrize("look", ["recorder", "windows"])
def test_with_one_rank_a_machine_all_that_is_no_wait_is_network(tmp_path: Path, look: str) -> None:
    attempt = train(tmp_path, late_by_3, (MS, 2 * MS), look, "ab")
    assert attempt.clocks[1] is None
    run = load_run(tmp_path)
    text = card.render(build_report(run, [attempt], UNIX))
    assert "node 1 not compared with node 0: NCCL does not tell when its collectives end" in text
    # No machine holds a second rank: there is no interconnect.
    assert means(attempt) == {"comm": 3.5, "interconnect": 0.0, "network": 2.0, "straggler": 1.5, "bubble": 0.0}
    check_sums(attempt)


@pytest.mark.parametrize("seed", range(6))
def test_durations_tell_as_much_as_the_true_ends(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    computing = {
        (rank, step): (drawn.randint(1, 8) * MS, drawn.randint(1, 8) * MS) for rank in (0, 1) for step in range(STEPS)
    }
    transfers = drawn.randint(1, 6) * MS, drawn.randint(1, 6) * MS

    def work(rank: int, step: int) -> tuple[int, int]:
        return computing[rank, step]

    truth = train(tmp_path / "truth", work, transfers, "truth")
    told = train(tmp_path / "told", work, transfers, "recorder")
    check_sums(told)
    for one, two in zip(truth.ranks, told.ranks, strict=True):
        assert (one.times.times["comm"] == two.times.times["comm"]).all()
        apart = np.abs(one.times.times["straggler"] - two.times.times["straggler"])
        assert (apart <= 2000).all()  # times are kept in microseconds


def test_a_rank_that_is_not_timed_leaves_the_parts_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = rank_of

    def one_only(number: int, directory: Path, nodes: str, look: str) -> Rank:
        return made(number, directory, nodes, look if not number else "nothing")

    monkeypatch.setitem(globals(), "rank_of", one_only)
    attempt = train(tmp_path, late_by_3, (MS, 2 * MS), "recorder")
    assert means(attempt) == {"comm": 3.5, "interconnect": None, "network": None, "straggler": None, "bubble": None}
    check_sums(attempt)


def test_it_is_said_that_nothing_was_timed(tmp_path: Path) -> None:
    rank = rank_of(0, tmp_path, "aa", "nothing")
    rank.helper.flight_recorder = FlightRecorder(lambda: pickle.dumps({"entries": []}))
    rank.compute(MS, first=True)
    rank.all_reduce(rank.device.now(), rank.device.now() + MS, False)
    rank.step()
    rank.helper.stop()
    rank.writer.close()
    (note,) = load_run(tmp_path).ranks[0].notes
    assert note.message == "not timed: torch's Flight Recorder told no duration"


def test_a_recorder_that_fails_ends_the_durations_and_nothing_else(tmp_path: Path) -> None:
    rank = rank_of(0, tmp_path, "aa", "nothing")

    def dump() -> bytes:
        raise RuntimeError("no recorder")

    rank.helper.flight_recorder = FlightRecorder(dump)
    for _ in range(3):
        rank.compute(MS, first=True)
        rank.all_reduce(rank.device.now(), rank.device.now() + MS, False)
        rank.step()
    rank.helper.stop()
    rank.writer.close()
    data = load_run(tmp_path).ranks[0]
    assert len(data.steps) == 3
    assert [note.message for note in data.notes] == ["no more durations: RuntimeError: no recorder"]


def test_broadcasts_are_not_split_by_clocks_that_have_nothing_to_do_with_each_other(tmp_path: Path) -> None:
    attempt = train(tmp_path, late_by_3, (MS, 2 * MS), "recorder", op="broadcast")
    assert means(attempt)["straggler"] is None
    assert attempt.notes[0].endswith("only arrivals tell of broadcast, and devices have no common clock")


def test_what_was_timed_in_the_hosts_memory_says_nothing_of_links_between_devices(tmp_path: Path) -> None:
    attempt = train(tmp_path, late_by_3, (MS, 2 * MS), "recorder", "aabb")
    check_sums(attempt)
    told = means(attempt)
    assert (told["interconnect"], told["network"]) == (None, None)
    assert told["straggler"] is not None
