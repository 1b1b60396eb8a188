"""The words of a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddlprof.analysis.diagnosis import Verdict
from ddlprof.analysis.findings import Finding
from ddlprof.analysis.job_time import JOB_PARTS, JobTime
from ddlprof.analysis.late_rank import LateRank
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.sources import Sources, SourceShare
from ddlprof.analysis.summary import Spread, Summary
from ddlprof.analysis.traffic import CommTotals
from ddlprof.analysis.verdict import (
    _alone,
    _finding_of,
    _first_of_job,
    _hiding,
    _of_computing,
    _of_late_rank,
    _with_cause,
    advise,
)
from ddlprof.model import source_locations
from ddlprof.model.classes import TIMES
from ddlprof.model.source_locations import SourceLocation
from tests.golden.runs import MS
from tests.unit.analysis.rules.made_up import facts_of


def facts(fetch: Any = 20.0, **known: Any) -> Facts:
    means = {
        "step": 100.0, "compute": 60.0, "data": 30.0, "data_fetch": fetch, "data_prep": 8.0, "h2d": 1.0,
        "comm": 5.0, "straggler": 2.0, "other": 4.0,
    }  # fmt: skip
    summary = Summary({n: Spread(means[n] * MS if n in means else None) for n in TIMES}, 50, 0)
    values: dict[str, Any] = {
        "summary": summary, "loader_workers": 2, "cores_per_rank": 4, "precision": "fp32", "device": "cpu",
        "cpu_percent": 50.0, "strategy": "ddp",
    }  # fmt: skip
    return facts_of(**(values | known))


@pytest.mark.parametrize(
    ("cause", "workers", "cores", "expected"),
    [
        ("prep", 0, 4, "DataLoader(num_workers=1)"),
        ("prep", 0, None, "DataLoader(num_workers=1)"),
        ("fetch", 2, 4, "3 loader workers in place of 2 (they wait"),
        ("fetch", 8, 4, "12 loader workers in place of 8 (they wait"),
        ("fetch", 1, 4, "2 loader workers in place of 1 (they wait"),
        ("prep", 2, 4, "3 loader workers in place of 2 (there are 4 cores a rank)"),
        ("prep", 4, 4, "4 loader workers already fill 4 cores a rank"),
        ("prep", 1, 1, "1 loader worker already fills 1 core a rank"),
        ("prep", 2, 1, "2 loader workers already fill 1 core a rank"),
        (None, None, 4, "torch.utils.data.DataLoader"),
    ],
)
def test_advice_for_data(cause: str | None, workers: int | None, cores: int | None, expected: str) -> None:
    verdict = Verdict("DATA-BOUND", "critical", "data", 0.3, cause)
    known: dict[str, Any] = {"loader_workers": workers, "cores_per_rank": cores}
    why, action = advise(verdict, facts(**known, fetch=28.0 if cause == "fetch" else 20.0))
    assert expected in action
    assert why.startswith("the loop waits 30 ms a step for its batches")


@pytest.mark.parametrize("stall", ["data", "h2d", "comm", "interconnect", "network", "straggler", "other"])
def test_every_verdict_has_one_line_of_why_and_one_of_next(stall: str) -> None:
    line = SourceShare(SourceLocation("a.py:1 f"), 0.5, True)
    known_too = {"late_rank": LateRank(3, 0.9, "data", 40 * MS, 10 * MS), "sources": Sources(20, [line])}
    for known in ({}, known_too):
        lines = advise(Verdict(f"{stall.upper()}-BOUND", "warning", stall, 0.15), facts(**known))
        assert all(lines)
        assert not any("\n" in line or "None" in line for line in lines)


def test_advice_names_what_was_found() -> None:
    straggler = Verdict("STRAGGLER-BOUND", "warning", "straggler", 0.15)
    for cause in ("data", "compute", "h2d", "other", None):
        why, action = advise(straggler, facts(late_rank=LateRank(3, 0.9, cause)))
        assert "rank 3" in why
        assert "rank 3" in action
    network = Verdict("NETWORK-BOUND", "warning", "network", 0.05)
    why, _ = advise(network, facts(comm=CommTotals(14 * MS, 0.93, ["allreduce", "broadcast", "barrier"])))
    assert why == (
        "computing waits 5 ms a step for communication between machines: allreduce and broadcast take 14 ms in all, "
        "0.93 GB/s bus bandwidth"
    )


def test_what_was_looked_at_in_vain_is_said_beside_other_work() -> None:
    given = facts(queued_share=0.4, other_cores=2.0, busy_cores_per_rank=2.0)
    _, action = advise(Verdict("COMPUTE-BOUND", "warning", None, 0.6), given)
    assert action.startswith("end the other work")
    assert _alone(action, given) == f"{action} (nothing else was found; looked at: threads, precision)"
    assert _alone("larger batches", given) == "larger batches"


def test_no_part_is_larger_than_its_whole() -> None:
    verdict = Verdict("COMM-BOUND", "critical", "comm", 0.152)
    why, _ = advise(verdict, facts(comm=CommTotals(14.5 * MS, None, ["allreduce"])))
    assert why == "computing waits 15 ms a step for communication: allreduce"


USED: dict[str, tuple[dict[str, Any], str]] = {
    "h2d": ({"pin_memory": True}, "pin_memory"),
    "data": ({"loader_workers": 3}, "DataLoader(num_workers"),
    "comm": ({"micro_batches": 4}, "accumulation with no_sync()"),
    "network": ({"comm_hook": "a_hook"}, "bf16_compress_hook"),
    "interconnect": ({"strategy": "fsdp"}, "no_sync"),
}


@pytest.mark.parametrize("stall", sorted(USED))
def test_what_the_job_does_already_is_not_recommended(stall: str) -> None:
    known, words = USED[stall]
    device = "H100" if stall == "network" else "cpu"
    without = {"pin_memory": False, "comm_hook": "", "micro_batches": 1, "loader_workers": 0, "device": device}
    verdict = Verdict(f"{stall.upper()}-BOUND", "critical", stall, 0.3)
    assert words in advise(verdict, facts(**without))[1]
    assert words not in advise(verdict, facts(**without | known))[1]


def test_what_is_not_known_is_not_presupposed() -> None:
    assert "where" in advise(Verdict("H2D-BOUND", "critical", "h2d", 0.3), facts())[1]
    assert "where there is no hook" in advise(Verdict("COMM-BOUND", "critical", "comm", 0.3), facts(device="H100"))[1]
    assert advise(Verdict("COMPUTE-BOUND", "ok"), facts(device="H100", precision=None))[1] == "a faster device"


def test_accumulation_without_no_sync_is_seen_in_what_is_exchanged() -> None:
    verdict = Verdict("COMM-BOUND", "critical", "comm", 0.3)
    for times, expected in ((4.0, "gradients are exchanged 4 times a step"), (1.0, "more micro-batches")):
        comm = CommTotals(40 * MS, None, ["allreduce"], reduced_bytes=times * 1e6)
        action = advise(verdict, facts(comm=comm, micro_batches=4, gradient_bytes=1_000_000))[1]
        assert expected in action
        assert ("no_sync()" in action) == (times > 1)


WHATS = sorted(word for name, word in vars(source_locations).items() if name.isupper())


@pytest.mark.parametrize("what", [*WHATS, "", "a word of a later version"])
def test_advice_for_a_source_line_depends_on_what_it_is(what: str) -> None:
    line = SourceShare(SourceLocation("train.py:3 main", what), 0.97, True)
    why, action = advise(Verdict("OTHER-BOUND", "critical", "other", 0.3), facts(sources=Sources(40, [line])))
    assert "97 % of it" in why
    assert why.endswith(" train.py:3 main")
    assert "in another thread or process" not in action or what == "logging"
    if what in ("forward", "evaluation"):
        assert "forward" in action or "evaluate" in action
    assert "no_grad" not in action, "the training may need the gradients"


@pytest.mark.parametrize(
    ("what", "share", "told"),
    [("", 0.6, True), (source_locations.DRAWS, 0.6, True), (source_locations.ROLLOUT, 0.6, False), ("", 0.3, False)],
)
def test_a_line_that_most_of_a_rollout_passes_at_is_told_in_place_of_acting(
    what: str, share: float, told: bool
) -> None:
    line = SourceShare(SourceLocation("train.py:3 sample", what), share, True)
    spreads = facts().summary.spreads | {"other": Spread(30.0 * MS), "rollout": Spread(24.0 * MS)}
    known = facts(sources=Sources(40, [line]), summary=Summary(spreads, 50, 0))
    why, action = advise(Verdict("ROLLOUT-BOUND", "critical", "rollout", 0.24), known)
    assert ("train.py:3 sample" in why) is told
    assert ("inference engine" in action) is not told


def test_a_source_line_that_may_be_chance_is_not_named() -> None:
    line = SourceShare(SourceLocation("train.py:3 main"), 0.6, False)
    why, action = advise(Verdict("OTHER-BOUND", "critical", "other", 0.3), facts(sources=Sources(10, [line])))
    assert "train.py" not in why + action


def test_compute_bound_depends_on_the_device_and_names_the_largest_stall() -> None:
    why, action = advise(Verdict("COMPUTE-BOUND", "ok"), facts())
    assert why == "computing takes 60 % of the step, the largest stall is waiting for data with 30 %"
    assert action == "a faster machine, or an accelerator (nothing cheaper was found; looked at: precision)"
    for precision, compiled, expected in (
        ("fp32", False, "mixed precision (torch.autocast), torch.compile, or a faster device"),
        ("amp-bf16", False, "torch.compile, or a faster device"),
        ("bf16", True, "a faster device"),
    ):
        known = facts(device="NVIDIA A10G", precision=precision, compiled=compiled)
        assert advise(Verdict("COMPUTE-BOUND", "ok"), known)[1].startswith(expected)


def test_a_faster_machine_is_not_recommended_where_this_one_is_idle() -> None:
    why, action = advise(Verdict("COMPUTE-BOUND", "ok"), facts(busy_cores_per_rank=0.26, cores_per_rank=2))
    assert "busy with 26 % of one thread a rank" in why
    assert "faster" not in action
    why, action = advise(Verdict("COMPUTE-BOUND", "ok"), facts(busy_cores_per_rank=1.1, cores_per_rank=8))
    assert "it keeps 1.1 of 8 cores a rank busy" in why
    assert "more threads" in action
    for busy, cores in ((1.0, 1), (7.0, 8)):
        action = advise(Verdict("COMPUTE-BOUND", "ok"), facts(busy_cores_per_rank=busy, cores_per_rank=cores))[1]
        assert action.startswith("a faster machine, or an accelerator")


def test_ranks_that_compete_for_cores_are_told() -> None:
    verdict = Verdict("STRAGGLER-BOUND", "warning", "straggler", 0.15)
    assert "cores (95 % busy)" in advise(verdict, facts(cpu_percent=95.0))[1]
    assert "cores" not in advise(verdict, facts(cpu_percent=95.0, device="NVIDIA A10G"))[1]
    assert "cores" not in advise(verdict, facts(cpu_percent=None))[1]


@pytest.mark.parametrize(
    ("verdict", "known"),
    [
        (Verdict("COMPUTE-BOUND", "ok"), {}),
        (Verdict("COMPUTE-BOUND", "ok"), {"device": "NVIDIA A10G"}),
        (Verdict("COMPUTE-BOUND", "ok"), {"busy_cores_per_rank": 1.1, "cores_per_rank": 8}),
        (Verdict("STRAGGLER-BOUND", "warning", "straggler", 0.15), {"cpu_percent": 95.0}),
        (Verdict("UNDECIDED", "unknown", "other", 0.2, reason="noise"), {}),
    ],
)
def test_a_training_that_waits_for_processors_gets_no_advice_that_needs_more(
    verdict: Verdict, known: dict[str, Any]
) -> None:
    why, action = advise(verdict, facts(**known, queued_share=0.76))
    assert "for 76 % of the time the training is ready to run and waits for a processor" in why
    assert action.startswith("end the other work on the machine, or give the training processors of its own")
    why, action = advise(verdict, facts(**known, queued_share=0.05))
    assert "waits for a processor" not in why
    assert "other work" not in action


def test_where_no_processor_is_free_more_workers_are_no_cure() -> None:
    verdict = Verdict("DATA-BOUND", "critical", "data", 0.3, "prep")
    why, action = advise(verdict, facts(queued_share=0.76))
    assert "the machine is shared" in why
    assert action == "cheaper transforms, or prepare the data beforehand: no core is free for more workers"
    why, action = advise(verdict, facts(queued_share=0.76, other_cores=0.1))
    assert "the job's own processes fill it" in why


def test_waiting_for_storage_needs_no_processor() -> None:
    verdict = Verdict("DATA-BOUND", "critical", "data", 0.3, "fetch")
    why, action = advise(verdict, facts(queued_share=0.76, fetch=28.0))
    assert why.endswith(
        "the machine is shared: for 76 % of the time the training is ready to run and waits for a processor"
    )
    assert "3 loader workers in place of 2 (they wait" in action


def test_the_late_rank_is_not_blamed_for_what_others_take() -> None:
    late = LateRank(3, 0.9, "compute", 50 * MS, 20 * MS, queued_share=0.6)
    verdict = Verdict("STRAGGLER-BOUND", "warning", "straggler", 0.15)
    why, action = advise(verdict, facts(late_rank=late, queued_share=0.6, world_size=4))
    assert "mostly for rank 3, which waits 60 % of its time for a processor" in why
    assert action.startswith("look at what else runs on rank 3's machine")
    assert "batches" not in action
    own = facts(late_rank=late, queued_share=0.6, cpu_threads=6, loader_workers=0, world_size=4)
    assert "OMP_NUM_THREADS=4" in advise(verdict, own)[1]


@pytest.mark.parametrize("reason", ["few_steps", "looking", "noise", "comm_unmeasured", "device_unmeasured"])
def test_undecided_says_why(reason: str) -> None:
    verdict = Verdict("UNDECIDED", "unknown", "other", 0.2, reason=reason)
    assert all(advise(verdict, facts(overhead_s=0.03)))


@pytest.mark.parametrize("reason", ["few_steps", "noise", "comm_unmeasured"])
def test_nothing_trains_longer_to_become_another_trace(reason: str) -> None:
    verdict = Verdict("UNDECIDED", "unknown", "other", 0.2, reason=reason)
    action = advise(verdict, facts(imported=True))[1]
    assert "let it train" not in action
    assert "doctor" not in action
    assert ("torch.profiler" in action) == (reason != "comm_unmeasured")


def test_a_faster_machine_is_proposed_where_nothing_else_is() -> None:
    computes = Verdict("COMPUTE-BOUND", "ok", None, 0.97)
    kept = Finding("kept_graphs", "warning", "losses are kept with their graphs", "", "loss.item()", 50)
    assert _of_computing(computes, None, [kept]) is kept
    assert _of_computing(computes, kept, [kept]) is None
    shared = Finding("shared_machine", "info", "the training waits for processors", "", "end the other work", 50)
    assert _of_computing(computes, shared, [kept, shared]) is kept
    assert _of_computing(computes, None, [replace(kept, severity="info")]) is None
    breaks = Finding("graph_breaks", "info", "", "", "no .item()", 40, None, about="compute")
    assert _finding_of(computes, "a faster machine", [breaks]) is breaks
    assert _of_computing(Verdict("DATA-BOUND", "critical", "data", 0.6), None, [kept]) is None


@pytest.mark.parametrize(
    ("name", "gain_s", "severity", "first"),
    [
        ("COMPUTE-BOUND", 0.6, "warning", True),
        ("COMPUTE-BOUND", 0.14, "warning", False),  # hardly more than the stall
        ("COMPUTE-BOUND", None, "warning", False),
        ("COMPUTE-BOUND", 0.6, "info", False),
        ("DATA-BOUND", 0.6, "warning", False),  # that is what bounds the step
    ],
)
def test_where_a_stall_does_not_bound_the_step_more_may_be_gained_from_computing(
    name: str, gain_s: float | None, severity: str, first: bool
) -> None:
    stall = Verdict(name, "warning", "data", 0.11)
    loads = Finding("loader_workers", "warning", "made in the loop", "", "workers", 50, 0.11, gain_s=0.1, about="data")
    loop = Finding("python_loop", severity, "the loss is a loop", "", "vmap", 50, gain_s=gain_s, about="compute")
    assert _of_computing(stall, loads, [loads, loop]) is (loop if first else None)


def test_the_reason_says_why_computing_takes_so_long() -> None:
    computes, given = Verdict("COMPUTE-BOUND", "ok", None, 0.97), facts(queued_share=0.4)
    why, _ = advise(computes, given)
    loop = Finding("python_loop", "warning", "the loss is a loop", "95 % of it", "vmap", 50, about="compute")
    told = _with_cause(why, computes, loop, given)
    assert "; the loss is a loop: 95 % of it; the machine is shared" in told
    assert _with_cause(told, computes, loop, given) == told
    assert _with_cause(why, Verdict("DATA-BOUND", "critical", "data", 0.6), loop, given) == why


def test_a_debugger_comes_before_what_was_measured_under_it() -> None:
    slow = Finding("loader_workers", "critical", "batches are made in the loop", "", "workers", 50, 0.5)
    debugger = Finding("interpreter_hook", "warning", "a debugger watches", "pydevd", "run without it", 50)
    assert _hiding([slow, debugger]) is debugger
    assert _hiding([slow, replace(debugger, severity="info")]) is None


@pytest.mark.parametrize(
    ("stall_share", "gain_s", "share", "severity", "first"),
    [
        (0.9, None, 0.7, "critical", True),  # the steps are a fifth of the job
        (0.9, 0.09, 0.19, "warning", True),
        (0.9, None, 0.7, "info", False),
        (0.9, None, 0.1, "critical", False),
        (None, None, 0.3, "critical", True),
        (None, 0.18, 0.3, "critical", False),
    ],
)
def test_what_takes_most_of_the_job_comes_first(
    stall_share: float | None, gain_s: float | None, share: float, severity: str, first: bool
) -> None:
    parts: dict[str, float | None] = dict.fromkeys(JOB_PARTS, 0.0)
    job = JobTime(100.0, parts | {"steps": 20.0, "epoch_start": 70.0}, steps=200)
    found = Finding("epoch_start", severity, "the job waits", "5 epochs", "keep the workers", 5, share, of="job")
    stall = None if stall_share is None else "data"
    verdict = Verdict("DATA-BOUND", "critical", stall, stall_share)
    of_step = Finding("storage", "critical", "the loop waits", "", "a disk", 50, 0.9, gain_s=gain_s)
    assert _first_of_job(verdict, of_step, [of_step, found], job) == (found if first else None)
    assert _first_of_job(verdict, None, [found], None) is None


@pytest.mark.parametrize(
    ("saves_part", "gain_s", "rule"),
    [
        (True, None, "evaluation_share"),  # more of the job than the stall, of which nobody knows what is gained either
        (True, 0.08, "evaluation_share"),
        (True, 0.12, None),  # a quarter of the job
        (False, 0.12, "evaluation_share"),
    ],
)
def test_what_saves_a_part_that_nobody_knows_is_not_acted_on_before_a_gain_like_it(
    saves_part: bool, gain_s: float | None, rule: str | None
) -> None:
    parts: dict[str, float | None] = dict.fromkeys(JOB_PARTS, 0.0)
    job = JobTime(100.0, parts | {"steps": 60.0, "evaluation": 35.0}, steps=200)
    part = Finding("evaluation_share", "critical", "it evaluates", "", "no_grad", 5, 0.35, "job", saves_part=saves_part)
    of_step = Finding("storage", "critical", "the loop waits", "", "a disk", 50, 0.5, gain_s=gain_s)
    found = _first_of_job(Verdict("DATA-BOUND", "critical", "data", 0.5), of_step, [of_step, part], job)
    assert (found.rule if found is not None else None) == rule
    all_of_it = Finding("checkpoint_share", "warning", "it saves", "", "less often", 5, 0.2, "job")
    both = _first_of_job(Verdict("COMPUTE-BOUND", "ok"), None, [part, all_of_it], job)
    assert both == (all_of_it if saves_part else part)


@pytest.mark.parametrize(
    ("gain_s", "rule"), [(0.028, "many_messages"), (0.002, "gradient_traffic"), (None, "gradient_traffic")]
)
def test_of_two_cures_of_communication_the_one_that_gains_more_is_next(gain_s: float | None, rule: str) -> None:
    more = Finding("many_messages", "critical", "", "", "torch.cat", 40, 0.6, gain_s=gain_s, about="comm")
    less = Finding("gradient_traffic", "critical", "", "", "faster links", 40, 0.7, gain_s=0.006, about="comm")
    found = _finding_of(Verdict("INTERCONNECT-BOUND", "critical", "interconnect", 0.7), "faster links", [more, less])
    assert found is not None
    assert found.rule == rule


@pytest.mark.parametrize(
    ("cause", "stall", "own_ms", "waits_ms", "gain_s", "first"),
    [
        ("data", "data", 55, 27, 0.055, True),
        ("data", "data", 55, None, 0.055, True),
        ("data", "data", 55, 15, 0.055, False),  # the other waits for 30 ms, most of it for this one
        ("data", "data", 55, 27, 0.02, False),
        ("data", "data", 40, 27, 0.055, False),  # the others have a part of the stall as well
        ("compute", "data", 55, 15, 0.055, False),
        ("compute", "data", 55, None, 0.055, False),
        ("data", None, 55, 27, 0.055, False),
    ],
)
def test_a_stall_that_one_rank_has_is_acted_on_as_its_lateness(
    cause: str, stall: str | None, own_ms: int, waits_ms: int | None, gain_s: float, first: bool
) -> None:
    waits = facts().summary.spreads | {"straggler": Spread(waits_ms * MS if waits_ms is not None else None)}
    late_rank = LateRank(1, 0.9, cause, own_ms * MS, 1 * MS)
    known = facts(summary=Summary(waits, 50, 0), late_rank=late_rank, world_size=2)
    late = Finding("straggler", "critical", "rank 1 is late", "", "its storage", 50, 0.25, gain_s=gain_s)
    own = Finding("storage", "critical", "the loop waits", "", "a disk", 50, 0.25, gain_s=0.028)
    verdict = Verdict("DATA-BOUND", "critical", stall, 0.25)
    assert _of_late_rank(verdict, own, [own, late], known) == (late if first else None)
    assert _of_late_rank(verdict, own, [own], known) is None


@pytest.mark.parametrize(
    ("stall_ms", "waits_ms", "last_share", "gain_s", "own_s", "first"),
    [
        (4.7, 3.2, 0.9, 0.0052, 0.0023, True),  # rank 0 has 6 ms of its own, a mean of 3 over two ranks
        (5.3, 3.2, 0.9, 0.0052, 0.0023, False),
        (4.7, 2.0, 0.9, 0.0052, 0.0023, False),  # the others wait for 4 ms
        (4.7, 3.2, 0.6, 0.0052, 0.0023, False),  # for 6.4 ms, of which they wait for 3.8 ms for rank 0
        (4.7, 3.2, 0.9, 0.0020, 0.0023, False),
        (4.0, 2.4, 0.95, 0.0060, 0.0050, False),  # they wait for 4.6 ms, less than the own finding gains
    ],
)
def test_a_late_rank_that_takes_longer_than_the_largest_stall_is_acted_on(
    stall_ms: float, waits_ms: float, last_share: float, gain_s: float, own_s: float, first: bool
) -> None:
    means = {"step": 17.0, "compute": 6.0, "interconnect": stall_ms, "straggler": waits_ms, "other": 3.5}
    summary = Summary({name: Spread(means[name] * MS if name in means else None) for name in TIMES}, 50, 0)
    known = facts(summary=summary, late_rank=LateRank(0, last_share, "other", 6.7 * MS, 0.3 * MS), world_size=2)
    late = Finding("straggler", "warning", "rank 0 is late", "", "logging", 50, 0.18, gain_s=gain_s)
    own = Finding("gradient_traffic", "critical", "", "", "larger batches", 50, 0.27, gain_s=own_s, about="comm")
    verdict = Verdict("COMPUTE-BOUND", "critical", "interconnect", 0.27)
    assert _of_late_rank(verdict, own, [own, late], known) == (late if first else None)
