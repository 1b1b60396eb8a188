"""`ddlprof report --format trace`: what is on which track, and that the result is what viewers take."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.analysis.run import analyse
from ddlprof.base.errors import UserError
from ddlprof.cli.app import main
from ddlprof.model.records import NEVER, CollectiveShape, CollectiveTimes, ContextRow, End
from ddlprof.report.run import trace
from ddlprof.report.run.trace_events import rows_of
from ddlprof.store import load_run
from tests.golden.runs import HERE, MS, header, simple_run, step, with_collectives, write_rank
from tests.trace_format import problems

GOLDEN = HERE / "two-ranks"
Window = tuple[int | None, int | None]


def traced(run: Path, steps: Window = (None, None)) -> dict[str, Any]:
    data = load_run(run)
    text = "".join(trace.render(data, analyse(data), steps))
    found: dict[str, Any] = json.loads(text)
    assert problems(found) == []
    return found


def processes(found: dict[str, Any]) -> list[str]:
    return [e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"]


def slices(found: dict[str, Any], track: str, pid: int = 1) -> list[dict[str, Any]]:
    tids = {
        e["tid"]
        for e in found["traceEvents"]
        if e["name"] == "thread_name" and e["args"]["name"].startswith(track) and e["pid"] == pid
    }
    return [e for e in found["traceEvents"] if e["ph"] in "Xi" and e["tid"] in tids]


def test_one_process_for_each_rank_named_and_with_its_end() -> None:
    assert processes(traced(GOLDEN)) == ["rank 0 · host-a · ended by exception", "rank 1 · host-a · torn"]


def test_typical_steps_are_steady_ones() -> None:
    steps = slices(traced(GOLDEN), "steps")
    assert len(steps) == trace.TYPICAL_STEPS
    assert all(step["args"]["steady"] for step in steps)


def test_steps_are_those_of_the_csv_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ddlprof", "export", str(GOLDEN), "--out", str(tmp_path)])
    assert main() == 0
    rows = list(csv.DictReader((tmp_path / "steps.csv").read_text(encoding="utf-8").splitlines()))
    found = traced(GOLDEN, (0, 30))
    for pid, rank in ((1, "0"), (2, "1")):
        shown = slices(found, "steps", pid)
        mine = [row for row in rows if row["rank"] == rank]
        assert [f"step {row['step']}" for row in mine] == [step["name"] for step in shown]
        for row, one in zip(mine, shown, strict=True):
            assert one["args"]["start_s"] == pytest.approx(float(row["start_s"]), abs=2e-6)
            for name in ("step", "compute", "data_prep", "comm", "straggler", "compute_forward"):
                told = one["args"].get(f"{name}_ms")
                assert (told is None) == (row[f"{name}_s"] == "")
                assert told is None or told == pytest.approx(float(row[f"{name}_s"]) * 1e3)
            assert one["args"].get("flags", "") == row["flags"]


def test_classes_fill_the_step_and_parts_their_class() -> None:
    found = traced(GOLDEN)
    laid = slices(found, "classes")
    for one in slices(found, "steps"):
        inside = [e for e in laid if one["ts"] <= e["ts"] < one["ts"] + one["dur"]]
        top = [e for e in inside if e["name"] in ("compute", "data", "h2d", "comm", "other")]
        assert sum(e["dur"] for e in top) == pytest.approx(one["dur"], abs=len(top))
        parts = {e["name"]: e for e in inside if e["name"].startswith("compute_")}
        assert ("compute_forward" in parts) == ("compute_forward_ms" in one["args"])
        assert not parts or parts["compute_forward"]["ts"] == one["ts"]


def test_what_was_not_measured_is_not_there(tmp_path: Path) -> None:
    found = traced(simple_run(tmp_path, data_ms=None))
    assert "data_ms" not in slices(found, "steps")[0]["args"]
    assert slices(found, "steps")[0]["args"]["h2d_ms"] == 0
    assert {e["name"] for e in slices(found, "classes")} == {"compute", "other"}


def test_a_single_rank_has_no_collectives_and_no_flows(tmp_path: Path) -> None:
    found = traced(simple_run(tmp_path))
    assert processes(found) == ["rank 0 · host-a"]
    assert not [e for e in found["traceEvents"] if e["ph"] in "sf" or "collectives" in str(e["args"].get("name"))]


def test_flows_lead_to_the_rank_that_came_last() -> None:
    found = traced(GOLDEN)
    ends = [e["pid"] for e in found["traceEvents"] if e["ph"] == "f"]
    begins = [e["pid"] for e in found["traceEvents"] if e["ph"] == "s"]
    first = slices(found, "collectives", 1)
    assert len(ends) == len(first) == 2 * trace.TYPICAL_STEPS
    assert set(zip(begins, ends, strict=True)) == {(1, 2)}
    waited = [e for e in first if e["args"].get("arrived") == "before the last"]
    of_waiting = {(e["pid"], e["tid"], e["ts"]) for e in waited}
    begun = {(e["pid"], e["tid"], e["ts"]) for e in found["traceEvents"] if e["ph"] == "s"}
    assert of_waiting
    assert of_waiting <= begun


def test_a_collective_whose_end_nobody_knows_is_a_moment(tmp_path: Path) -> None:
    shapes = (CollectiveShape("0", "allreduce", 1000, 2),)
    for rank in range(2):
        rows = [with_collectives(step(n), (n,)) for n in range(9)]
        write_rank(tmp_path, header(rank, 2), rows, shapes, [CollectiveTimes(500, NEVER, NEVER, NEVER)] * 9)
    moments = slices(traced(tmp_path), "collectives")
    assert {e["ph"] for e in moments} == {"i"}
    assert "duration_ms" not in moments[0]["args"]


def test_counters_hold_the_last_reading_from_before(tmp_path: Path) -> None:
    rows = [step(n) for n in range(40)]
    counters = [ContextRow(t * MS, 10.0 * n, None, n << 20, None, None, None) for n, t in enumerate((0, 100, 120, 990))]
    write_rank(tmp_path, header(), rows, records=[*counters, End("ok", 0, 400 * MS)])
    found = [e for e in traced(tmp_path, (11, 14))["traceEvents"] if e["ph"] == "C"]
    assert [(e["ts"], e["args"]["value"]) for e in found if e["name"] == "host CPU %"] == [(0, 10), (10_000, 20)]
    assert {e["name"] for e in found} == {"host CPU %", "process memory MiB"}


def test_ranks_of_two_machines_are_on_one_clock(tmp_path: Path) -> None:
    shapes = (CollectiveShape("0", "allreduce", 1000, 2),)
    for rank, ahead_s in ((0, 0), (1, 100)):
        rows = [with_collectives(step(n), (n,)) for n in range(9)]
        head = header(rank, 2, node="ab"[rank])
        head = type(head)(*(getattr(head, name) for name in head.__slots__))
        object.__setattr__(head, "origin_unix_ns", head.origin_unix_ns + ahead_s * 10**9)
        write_rank(tmp_path, head, rows, shapes, [CollectiveTimes(5000, 5100, 5000, 100)] * 9)
    found = traced(tmp_path)
    starts = [slices(found, "steps", pid)[0]["ts"] for pid in (1, 2)]
    assert abs(starts[0] - starts[1]) < 1000
    assert "clock ±" in processes(found)[1]


def test_steps_of_choice() -> None:
    assert {e["name"] for e in slices(traced(GOLDEN, (28, None)), "steps")} == {"step 28", "step 29"}
    with pytest.raises(UserError, match=r"--step-range 30:40: no such step was kept; there are steps 0 to 29"):
        traced(GOLDEN, (30, 40))


def test_too_many_events_are_refused_and_a_window_that_fits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "MAX_EVENTS", 200)
    with pytest.raises(
        UserError, match=r"30 steps of 2 ranks make up to 1,\d+ events, .* --step-range 0:4$"
    ) as refused:
        traced(GOLDEN, (0, 30))
    first, _, end = str(refused.value).rpartition(" ")[2].partition(":")
    assert len(traced(GOLDEN, (int(first), int(end)))["traceEvents"]) <= 200
    assert len(slices(traced(GOLDEN), "steps")) < trace.TYPICAL_STEPS
    monkeypatch.setattr(trace, "MAX_EVENTS", 1)
    assert len(slices(traced(GOLDEN, (3, 4)), "steps")) == 1


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [])
    with pytest.raises(UserError, match="no step was recorded"):
        traced(tmp_path)


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_into_a_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    monkeypatch.setattr(sys, "argv", ["ddlprof", "report", str(GOLDEN), "--format", "trace", "-o", str(path)])
    assert main() == 0
    content = path.read_bytes()
    text = gzip.decompress(content) if name.endswith(".gz") else content
    assert problems(json.loads(text)) == []
    assert list(tmp_path.iterdir()) == [path]


def test_a_trace_that_is_refused_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    words = ["ddlprof", "report", str(GOLDEN), "--format", "trace", "--step-range", "90:91", "-o", str(path)]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 2
    assert path.read_text() == "old"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=30))
def test_rows_hold_what_does_not_overlap_and_are_few(spans: list[tuple[int, int]]) -> None:
    spans = sorted((start, start + length) for start, length in spans)
    rows = rows_of(spans)
    for number, (start, _) in enumerate(spans):
        for other, (_, until) in enumerate(spans[:number]):
            assert rows[number] != rows[other] or until <= start
    most = max((sum(s <= at < e for s, e in spans) for at, _ in spans), default=0)
    assert max(rows, default=-1) + 1 == most


def changed(found: dict[str, Any], phase: str, **values: Any) -> list[str]:
    """What is said of the trace if the first event of this phase were another."""
    events = [dict(e) for e in found["traceEvents"]]
    one = next(e for e in events if e["ph"] == phase)
    one.update(values)
    return problems({"traceEvents": [{k: v for k, v in e.items() if v is not None} for e in events]})


def test_a_wrong_trace_is_found_out() -> None:
    found = traced(GOLDEN)
    slice_, flow = (next(e for e in found["traceEvents"] if e["ph"] == phase) for phase in "Xs")
    for phase, values in (
        ("X", {"ts": -1}), ("X", {"ts": 0.5}), ("X", {"dur": None}), ("X", {"dur": slice_["dur"] + 10_000}),
        ("X", {"ts": slice_["ts"] + 1_000_000}), ("X", {"ph": "B"}), ("X", {"tid": 9999}),
        ("s", {"id": 9999}), ("s", {"ts": 0}), ("s", {"ts": flow["ts"] + 10**9}), ("f", {"bp": None}),
        ("M", {"name": "process_nmae"}), ("C", {"args": {"value": float("nan")}}), ("C", {"pid": 77}),
    ):  # fmt: skip
        if any(e["ph"] == phase for e in found["traceEvents"]):
            assert changed(found, phase, **values), (phase, values)
