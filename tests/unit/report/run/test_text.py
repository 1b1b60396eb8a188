"""The card: what it says of runs that went well, badly, or nowhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.model import codec
from ddlprof.model.records import (
    NO_BACKWARD,
    NO_TORCH,
    NONE_THAT_STEPPED,
    CollectiveShape,
    CollectiveTimes,
    ContextRow,
    Drop,
    End,
    Flag,
    Overhead,
)
from ddlprof.model.source_locations import SourceLocation
from ddlprof.report.run import text as card
from ddlprof.report.run.data import ClockLine, ReportData, build_report
from ddlprof.store import load_run
from tests.golden.runs import (
    MS,
    NOW_UNIX_NS,
    ORIGIN_UNIX_NS,
    header,
    manifest,
    simple_run,
    step,
    with_collectives,
    write_rank,
)


def report_of(directory: Path, now_unix_ns: int = NOW_UNIX_NS) -> ReportData:
    run = load_run(directory)
    return build_report(run, analyse(run), now_unix_ns)


def card_of(directory: Path, now_unix_ns: int = NOW_UNIX_NS) -> dict[str, str]:
    """The lines by label; of several with one label, the last."""
    text = card.render(report_of(directory, now_unix_ns))
    assert text.endswith("\n")
    return {line[:9].strip(): line[9:] for line in text.splitlines()}


def test_one_process(tmp_path: Path) -> None:
    lines = card_of(simple_run(tmp_path, data_ms=1))
    head = "train (SmallNet) · 1 node x 1 process · 40 steps (3 warm-up dropped) · 1 of 1 rank complete"
    assert lines["ddlprof"] == head
    assert lines["Step"] == "10.0 ms mean (p95 10.0) = compute 8.0 + data 1.0 + other 1.0"
    assert lines["Verdict"] == "mostly computing; the largest avoidable stall is data, 10 % (warning; 37 steps, 1 rank)"
    assert lines["Overhead"] == "hooks 20 µs a step (0.2 %), helper thread 0.5 % of a core"
    assert "Stopped" not in lines
    assert "Rank" not in lines


def test_what_bounds_the_step_is_no_less_than_a_third_of_it(tmp_path: Path) -> None:
    for data_ms, said in (
        (2, "mostly computing; the largest avoidable stall is data, 18 % (warning; 37 steps, 1 rank)"),
        (9, "DATA-BOUND (50 % of the step, critical; 37 steps, 1 rank)"),
    ):
        assert card_of(simple_run(tmp_path / str(data_ms), data_ms=data_ms))["Verdict"] == said
    parts: dict[str, Any] = {"compute_ms": 4, "data_ms": 2.5, "comm_ms": 1, "other_ms": 2}
    said = "computing is the largest part; the largest avoidable stall is data, 26 % (critical; 37 steps, 1 rank)"
    assert card_of(simple_run(tmp_path / "parts", **parts))["Verdict"] == said


def test_short_steps_are_in_microseconds(tmp_path: Path) -> None:
    lines = card_of(simple_run(tmp_path, compute_ms=0.4, data_ms=0.02, other_ms=0.01))
    assert lines["Step"] == "430 µs mean (p95 430) = compute 400 + data 20 + other 10"


def test_what_was_not_measured_is_not_in_the_sum_but_in_a_note(tmp_path: Path) -> None:
    lines = card_of(simple_run(tmp_path, data_ms=None))
    assert "data" not in lines["Step"]
    assert lines["Note"].startswith(
        "data: no DataLoader was used, so waiting for input is in other or compute; --data-c"
    )


def test_a_hook_that_failed_is_said_once_for_all_ranks(tmp_path: Path) -> None:
    for rank in range(3):
        notes = [codec.encode_note("data", "not measured: broken")]
        notes += [codec.encode_note("h2d", "only here")] if rank == 1 else []
        write_rank(tmp_path, header(rank, 4), [step(n, data_ms=None) for n in range(9)], lines=notes)
    assert report_of(tmp_path).notes == [
        "data: not measured: broken",
        "h2d: only here (rank 1)",
        "3 of 4 ranks left a file: 0-2",
    ]


def test_torn_ranks_say_where_and_when_they_stopped(tmp_path: Path) -> None:
    for rank, steps in enumerate((30, 20, 20, 0)):
        end = [End("ok", 0, 300 * MS)] if rank == 0 else []
        write_rank(tmp_path, header(rank, 4), [step(n) for n in range(steps)], records=end)
    text = card.render(report_of(tmp_path, ORIGIN_UNIX_NS + 3 * 3600 * 10**9))
    assert "Stopped  ranks 1, 2: no word (killed?) after step 19, 2 hours ago\n" in text
    assert "Stopped  rank 3: no word (killed?) before its first step, 2 hours ago\n" in text
    assert "· 1 of 4 ranks complete\n" in text


def test_many_stopped_ranks_take_few_lines(tmp_path: Path) -> None:
    ends = [End("ok", 0, 900 * MS), End("exception", 1, 900 * MS), None]
    for rank in range(64):
        end = ends[0] if rank >= 32 else ends[1] if rank in (3, 9) else None
        rows = [step(n) for n in range(0 if rank == 7 else 20 + rank)]
        head = header(rank, 64, node="abcdefgh"[rank // 8])
        write_rank(tmp_path, head, rows, records=[end] if end else [])
    lines = card.render(report_of(tmp_path)).splitlines()
    assert [line for line in lines if line.startswith("Stopped")] == [
        "Stopped  ranks 0-2, 4-8, 10-31 (node 0-3): no word (killed?) after step 50 at the latest, 4 minutes ago",
        "Stopped  ranks 3, 9 (node 0, 1): ended by exception after steps 22 to 28, 4 minutes ago",
    ]
    assert "· 8 nodes x 8 processes ·" in lines[0]
    assert lines[0].endswith("· 34 of 64 ranks complete")


def test_ends_of_every_kind_take_few_lines(tmp_path: Path) -> None:
    for attempt in range(9):
        write_rank(tmp_path, header(0, 1, attempt), [step(n) for n in range(5)], records=[End("exit", 1, 60 * MS)])
    stopped = [line for line in card.render(report_of(tmp_path)).splitlines() if line.startswith("Stopped")]
    assert stopped[0] == "Stopped  rank 0 of attempt 0: ended by exit after step 4, 4 minutes ago"
    assert stopped[4:] == ["Stopped  5 more ranks: ddlprof export writes all of them to ranks.csv"]


def test_unreadable_files_of_many_ranks_are_one_note(tmp_path: Path) -> None:
    write_rank(tmp_path, header(0, 9), [step(n) for n in range(9)])
    for rank in range(1, 9):
        (tmp_path / "attempt-0" / f"rank-{rank}.jsonl").write_text("")
    notes = report_of(tmp_path).notes
    assert len(notes) == 2
    assert notes[0].startswith("attempt-0/rank-1.jsonl, attempt-0/rank-2.jsonl, ")
    assert notes[0].endswith(" and 4 more: unreadable (the file has no header): the report is without this rank")
    assert notes[1] == "1 of 9 ranks left a file: 0"


def two_machines(directory: Path, clock_ms: float, transfer_ms: float) -> dict[str, str]:
    """Two ranks that issue an all-reduce together, with unix clocks that differ; the card's lines."""
    for rank, node in enumerate("ab"):
        head = header(rank, 2, node=node)
        head = replace(head, origin_unix_ns=ORIGIN_UNIX_NS + rank * round(clock_ms * MS))
        times = CollectiveTimes(1000, round(1000 + 1000 * transfer_ms), 1000, 0)
        rows = [with_collectives(step(n), (n,)) for n in range(9)]
        write_rank(directory, head, rows, [CollectiveShape("0", "allreduce", 8, 2)], [times] * 9)
    return card_of(directory)


def test_clocks_are_on_the_card_only_if_it_matters(tmp_path: Path) -> None:
    assert "Clocks" not in two_machines(tmp_path / "close", 4, 0.5)
    said = "; start_s in the CSV files is corrected, no class depends on it"
    assert two_machines(tmp_path / "apart", -30, 0.5)["Clocks"] == (
        "up to 30.0 ms apart (node 1), known to ±0.5 ms" + said
    )
    assert two_machines(tmp_path / "vague", 4, 5)["Clocks"] == "up to 4.00 ms apart (node 1), known to ±5.00 ms" + said
    assert report_of(tmp_path / "apart").clocks == [ClockLine(0, 0, 0, 0), ClockLine(1, -0.03, 0.000501, 0)]


def test_machines_that_no_collective_links_are_said(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_rank(tmp_path, header(rank, 2, node="ab"[rank]), [step(n) for n in range(9)])
    assert card_of(tmp_path)["Clocks"] == "node 1 not compared with node 0: no collective links them"


def test_a_run_that_still_writes_may_be_running(tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [step(n) for n in range(30)])
    assert card_of(tmp_path, ORIGIN_UNIX_NS + 10**9)["Stopped"].startswith("rank 0: still running, or killed,")


def test_restarts_are_told_apart(tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [step(n) for n in range(5)], records=[End("exception", 1, 60 * MS)])
    write_rank(tmp_path, header(attempt=1), [step(n) for n in range(30)], records=[End("ok", 0, 400 * MS)])
    lines = card_of(tmp_path)
    assert "· attempt 1 of 0-1 ·" in lines["ddlprof"]
    assert lines["Stopped"] == "rank 0 of attempt 0: ended by exception after step 4, 4 minutes ago"


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (None, "stopped before its first optimizer.step() returned"),
        (End("ok", 0, MS), "no optimizer.step() was seen"),
        (End("exception", 1, MS), "the script ended (exception) before"),
        (End("exit", 7, MS), "the script ended (exit) before"),
    ],
    ids=["killed", "ok", "exception", "exit"],
)
def test_a_run_without_steps_says_why(tmp_path: Path, end: End | None, why: str) -> None:
    write_rank(tmp_path, header(), [], records=[end] if end else [])
    lines = card_of(tmp_path)
    assert lines["Verdict"] == "no step was measured"
    assert why in lines["why"]
    assert lines["next"]
    assert "Step" not in lines
    assert "export" not in lines["Files"]


def test_steps_that_do_not_add_up_are_not_said_to_be_missing(tmp_path: Path) -> None:
    """As those of a version that has a class more."""
    write_rank(tmp_path, header(), [replace(step(n), compute_ns=1) for n in range(9)], records=[End("ok", 0, MS)])
    lines = card_of(tmp_path)
    assert "classes do not add up" in lines["why"]
    assert "the version of ddlprof that recorded it" in lines["next"]
    assert "9 steps with impossible values" in lines["Note"]


@pytest.mark.parametrize("cause", [NO_TORCH, NO_BACKWARD, f"--step-optimizer Nope {NONE_THAT_STEPPED}: SGD"])
def test_a_run_without_steps_names_the_cause(tmp_path: Path, cause: str) -> None:
    write_rank(tmp_path, header(), [], records=[End("ok", 0, MS)], lines=[codec.encode_note("steps", cause)])
    lines = card_of(tmp_path)
    assert lines["why"] == cause
    assert "Note" not in lines


def test_a_run_that_died_before_any_rank_wrote(tmp_path: Path) -> None:
    manifest().write(tmp_path)
    lines = card_of(tmp_path)
    assert lines["Verdict"] == "no step was measured"
    assert lines["Files"] == str(tmp_path)


def test_source_lines_of_other_only_where_it_is_large(tmp_path: Path) -> None:
    samples = [codec.encode_location(0, SourceLocation("train.py:9 log")), codec.encode_samples(20, {0: 12})]
    for name, other_ms in (("small", 0.3), ("large", 3)):
        write_rank(tmp_path / name, header(), [step(n, other_ms=other_ms) for n in range(30)], lines=samples)
    assert "Other" not in card_of(tmp_path / "small")
    large = card_of(tmp_path / "large")
    assert large["Other"] == "train.py:9 log 100 % (of 12 stack samples)"
    assert "100 % of it at train.py:9 log" in large["why"]


def test_too_few_steps_carry_no_verdict(tmp_path: Path) -> None:
    lines = card_of(simple_run(tmp_path, steps=2))
    assert lines["Verdict"].startswith("UNDECIDED")
    assert "1 step, 1 rank" in lines["Verdict"]


def test_looking_that_costs_more_than_the_stall_is_said(tmp_path: Path) -> None:
    rows = [step(n, compute_ms=0.08, data_ms=0, other_ms=0.02) for n in range(40)]
    write_rank(tmp_path, header(), rows, records=[Overhead(40 * 30_000, 40, 0, 1)])
    assert card_of(tmp_path)["why"] == "other is 20 % of the step, but the profiler's overhead is 30 %"


def test_a_flagged_step_is_kept_out_of_the_headline(tmp_path: Path) -> None:
    rows = [step(n, compute_ms=900 if n == 20 else 8, flags=Flag.EVALUATION if n == 20 else 0) for n in range(40)]
    write_rank(tmp_path, header(), rows)
    assert card_of(tmp_path)["Step"].startswith("10.0 ms mean (p95 10.0)")


def test_undecided_claims_no_share(tmp_path: Path) -> None:
    rows = [step(n, compute_ms=0.08, data_ms=0, other_ms=0.02) for n in range(40)]
    write_rank(tmp_path, header(), rows, records=[Overhead(40 * 30_000, 40, 0, 1)])
    assert card_of(tmp_path)["Verdict"] == "UNDECIDED (37 steps, 1 rank)"


def test_ranks_whose_communication_was_not_measured_are_undecided(tmp_path: Path) -> None:
    for rank in range(2):
        notes = [codec.encode_note("comm", "not measured: broken")]
        write_rank(tmp_path, header(rank, 2), [step(n, data_ms=0, comm_ms=None) for n in range(40)], lines=notes)
    lines = card_of(tmp_path)
    assert lines["Verdict"] == "UNDECIDED (37 steps, 2 ranks)"
    assert "communication between the ranks was not measured" in lines["why"]


def starved(folder: Path, queued_ms: float, **times_ms: Any) -> dict[str, str]:
    """The card of 400 ms of training that waited so long for a processor."""
    counters = [
        ContextRow(at * MS, 100.0, 0, 0, None, None, None, process_queued_ns=round(at / 400 * queued_ms * MS))
        for at in (0, 100, 400)
    ]
    write_rank(folder, header(), [step(n, **times_ms) for n in range(40)], records=counters)
    return card_of(folder)


def test_a_training_that_waited_for_processors_says_so(tmp_path: Path) -> None:
    lines = starved(tmp_path / "busy", 300, compute_ms=9.8, data_ms=0.1, other_ms=0.1)
    assert lines["Verdict"] == "COMPUTE-BOUND (98 % of the step, warning; on a shared machine; 37 steps, 1 rank)"
    assert lines["why"].endswith("for 75 % of the time the training is ready to run and waits for a processor")
    assert lines["next"].startswith("end the other work on the machine")
    assert lines["next"].endswith(": up to 7.5 of 10.0 ms")
    assert lines["Context"].startswith("CPU 100 % · waited for a processor 75 %")
    assert "Also" not in lines
    lines = starved(tmp_path / "quiet", 4, compute_ms=9.8, data_ms=0.1, other_ms=0.1)
    assert lines["Verdict"] == "COMPUTE-BOUND (98 % of the step; 37 steps, 1 rank)"
    assert lines["next"] == "a faster machine, or an accelerator"
    assert lines["Context"].startswith("CPU 100 % · waited for a processor 1 %")


def test_a_device_without_a_clock_gets_no_class_and_no_advice(tmp_path: Path) -> None:
    rows = [replace(step(n, compute_ms=None, data_ms=4, comm_ms=None), h2d_ns=None) for n in range(40)]
    samples = [codec.encode_location(0, SourceLocation("train.py:41 log")), codec.encode_samples(10, {0: 9})]
    write_rank(tmp_path, header(device="xpu"), rows, lines=samples)
    lines = card_of(tmp_path)
    assert lines["Step"] == "5.00 ms mean (p95 5.00) = data 4.00 + other 1.00"
    assert lines["Verdict"] == "UNDECIDED (37 steps, 1 rank)"
    assert "runs ahead of the device (xpu)" in lines["why"]
    assert not {"Device", "Other", "Also"} & lines.keys()


def test_counters_before_and_after_the_training_say_nothing(tmp_path: Path) -> None:
    counters = [
        ContextRow(at_ms * MS, percent, 0, 0, None, None, None)
        for at_ms, percent in ((-900, 100.0), (100, 20.0), (200, 40.0), (9000, 100.0))
    ]
    write_rank(tmp_path / "a", header(), [step(n) for n in range(40)], records=counters)
    assert card_of(tmp_path / "a")["Context"].startswith("CPU 30 %")
    write_rank(tmp_path / "b", header(), [step(n) for n in range(40)], records=counters[-1:])
    assert card_of(tmp_path / "b")["Context"].startswith("CPU 100 %")


def test_time_of_an_unmeasured_loader_is_told_to_be_in_other(tmp_path: Path) -> None:
    lines = card_of(simple_run(tmp_path, data_ms=None, other_ms=4))
    assert lines["why"].endswith("outside computing and communication, the loop's own loading of batches included")


@pytest.mark.parametrize(("cores", "quota", "busy"), [(8, None, "3.0 of 8 cores"), (64, 8.0, "3.0 of 8 cores")])
def test_the_cores_that_a_control_group_allows(tmp_path: Path, cores: int, quota: float | None, busy: str) -> None:
    counters = [ContextRow(100 * MS, 300 / cores, 0, 0, None, None, None)]
    write_rank(tmp_path, header(), [step(n, data_ms=0, other_ms=0) for n in range(40)], records=counters)
    facts = manifest()
    facts.host = {"available_cores": cores, "logical_cores": cores, "cpu_quota_cores": quota}
    facts.write(tmp_path)
    assert f"it keeps {busy} a rank busy" in card_of(tmp_path)["why"]


def test_what_could_not_be_read_is_one_note_with_its_number_and_the_first_reason(tmp_path: Path) -> None:
    def lost(count: int, reason: str) -> str:
        words = ("windows", "profiler window could not be read", "profiler windows could not be read")
        return codec.encode(Drop(*words, count, reason))

    rows = [step(n) for n in range(9)]
    write_rank(tmp_path, header(0, 2), rows, lines=[lost(1, "a graph was being captured")])
    write_rank(tmp_path, header(1, 2), rows)
    assert report_of(tmp_path).notes[0] == (
        "windows: 1 profiler window could not be read: a graph was being captured (rank 0)"
    )
    (tmp_path / "attempt-0" / "rank-1.jsonl").unlink()
    (tmp_path / "attempt-0" / "rank-1.steps").unlink()
    write_rank(tmp_path, header(1, 2), rows, lines=[lost(1, "first"), lost(4, "first")])
    assert report_of(tmp_path).notes[0] == (
        "windows: 5 profiler windows could not be read: a graph was being captured (the first)"
    )
