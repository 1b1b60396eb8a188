"""Durations from torch's Flight Recorder: which entry is whose."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.collect.accelerator import flight_recorder as module
from ddlprof.collect.accelerator.flight_recorder import FlightRecorder, ask_for_timing, match, of_torch, why_not
from ddlprof.collect.accelerator.known import LIMITS
from ddlprof.collect.hooks.collective import IssuedCollective

OFFSET = 10**18
US = 1000


def issued(at_us: int, op: str = "allreduce", group: str = "0") -> IssuedCollective:
    return IssuedCollective(group, 0, op, 1000, 2, at_us * US)


def entry(at_us: int, duration_ms: float | None, name: str = "nccl:all_reduce", group: str = "0") -> dict[str, Any]:
    """As torch 2.13 writes them."""
    made = {
        "record_id": at_us, "pg_id": 0, "pg_name": (group, "default_pg"), "collective_seq_id": 1, "p2p_seq_id": 0,
        "op_id": 1, "profiling_name": name, "time_created_ns": OFFSET + at_us * US, "input_sizes": [[1000]],
        "input_dtypes": ["Float"], "output_sizes": [[1000]], "output_dtypes": ["Float"],
        "state": "scheduled" if duration_ms is None else "completed", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": duration_ms is not None, "timeout_ms": 600000,
        "is_p2p": False, "thread_id": "1", "thread_name": "pt_main_thread",
    }  # fmt: skip
    return made if duration_ms is None else {**made, "duration_ms": duration_ms}


def durations(collectives: list[IssuedCollective], *entries: dict[str, Any]) -> list[float | None]:
    match(collectives, entries, OFFSET)
    return [None if c.duration is None else c.duration / 1e6 for c in collectives]


def test_each_gets_its_own() -> None:
    collectives = [issued(0), issued(100, "_allgather_base"), issued(150, group="tp"), issued(200)]
    entries = [
        entry(10, 1.5), entry(120, 2.5, "nccl:_all_gather_base"), entry(160, 4.0, group="tp"), entry(230, 0.25),
    ]  # fmt: skip
    assert durations(collectives, *entries) == [1.5, 2.5, 4.0, 0.25]


def test_what_is_under_way_stays_unknown_and_is_told_later() -> None:
    collectives = [issued(0), issued(100)]
    assert durations(collectives, entry(10, 1.0), entry(120, None)) == [1.0, None]
    assert durations(collectives, entry(10, 1.0), entry(120, 2.0)) == [1.0, 2.0]


def test_another_operation_is_not_taken_for_it() -> None:
    assert durations([issued(0), issued(100)], entry(10, 1.0, "nccl:broadcast"), entry(120, 2.0)) == [None, 2.0]


def test_the_ring_is_read_only_where_it_can_tell_something(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], time_ns=lambda: OFFSET, perf_counter_ns=lambda: 0)
    monkeypatch.setattr(module, "time", clock)
    reads: list[int] = []

    def dump() -> bytes:
        reads.append(1)
        return pickle.dumps({"version": "2.10", "entries": [entry(10, 1.5)]})

    recorder = FlightRecorder(dump)
    steps: list[Any] = [SimpleNamespace(collectives=[issued(0), issued(100)])]
    known = issued(0)
    known.end = 5
    assert not recorder.due([])
    assert not recorder.due([SimpleNamespace(collectives=[known])])  # type: ignore[list-item]
    assert recorder.due(steps)
    recorder.fill(steps)
    assert [c.duration for c in steps[0].collectives] == [1_500_000, None]
    assert not recorder.due(steps)
    assert recorder.due(steps, last=True)
    now[0] += 1.5
    assert recorder.due(steps)
    assert len(reads) == 1


def torch_of(version: str, initialized: bool = True, **functions: Any) -> Any:
    return SimpleNamespace(
        __version__=version,
        _C=SimpleNamespace(_distributed_c10d=SimpleNamespace(**functions)),
        distributed=SimpleNamespace(is_initialized=lambda: initialized),
    )


def test_it_asks_torch_without_stacks() -> None:
    asked: list[dict[str, bool]] = []

    def dump(**how: bool) -> bytes:
        asked.append(how)
        return pickle.dumps({"entries": []})

    of_torch(torch_of("2.13.0+cu129", _dump_nccl_trace=dump)).fill([])
    of_torch(torch_of("2.13.0+cu129", initialized=False, _dump_nccl_trace=dump)).fill([])
    assert asked == [{"includeCollectives": True, "includeStackTraces": False, "onlyActive": False}]


VARIABLES = ("TORCH_NCCL_ENABLE_TIMING", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE",
             "TORCH_NCCL_CUDA_EVENT_CACHE")  # fmt: skip


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_variables")
def test_what_doctor_says_of_rocm_agrees() -> None:
    """RCCL is built as NCCL, and its collectives are in the same ring."""
    assert why_not(torch_of("2.9.1+rocm6.4", _dump_nccl_trace=print)) is None
    _, lacking = LIMITS["ROCm"]
    assert "collectives are timed as on CUDA" in lacking
    assert "--time-collectives" not in lacking


@pytest.mark.usefixtures("no_variables")
def test_where_it_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    able = torch_of("2.7.0", _dump_nccl_trace=print)
    assert why_not(able) is None
    assert why_not(torch_of("2.6.1+cu124", _dump_nccl_trace=print)) == "needs torch 2.7, this is 2.6.1+cu124"
    assert "without NCCL" in str(why_not(torch_of("2.13.0+cpu")))
    for name in VARIABLES:
        monkeypatch.setenv(name, "0")
        assert why_not(able) == f"{name} is 0"
        with pytest.raises(RuntimeError, match=name):
            of_torch(able)
        monkeypatch.delenv(name)


def variables() -> dict[str, str]:
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


@pytest.mark.usefixtures("no_variables")
def test_what_is_asked_of_torch() -> None:
    ask_for_timing(torch_of("2.13.0"))
    assert variables() == {"TORCH_NCCL_ENABLE_TIMING": "1"}
    ask_for_timing(torch_of("2.8.0"))
    assert variables() == {"TORCH_NCCL_ENABLE_TIMING": "1", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}


@pytest.mark.usefixtures("no_variables")
def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "5000")
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "0")
    ask_for_timing(torch_of("2.8.0"))
    assert variables() == {"TORCH_NCCL_ENABLE_TIMING": "0", "TORCH_NCCL_TRACE_BUFFER_SIZE": "5000"}
