"""What findings about computing and pauses say to do, and what that gains at most."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddlprof.analysis.features import SampleCost
from ddlprof.analysis.issued import IssuedTraffic
from ddlprof.analysis.rules.facts import Facts, ProfilerWindow, Reductions
from ddlprof.analysis.saves import AfterSaves
from ddlprof.model import issuers, source_locations
from ddlprof.model.source_locations import SourceLocation
from tests.golden.runs import MS
from tests.unit.analysis.rules.input_cases import BLOCKED, WAITING, made_at
from tests.unit.analysis.rules.loop_cases import HOOKED, PAUSES, UPDATED, line, penalised
from tests.unit.analysis.rules.loop_cases import job as of_job
from tests.unit.analysis.rules.made_up import WINDOW, ddp, facts, summary
from tests.unit.analysis.rules.test_rules import (
    CHECKPOINTED,
    DOUBLE,
    DROPPED,
    GIB,
    GRADIENTS,
    HALF,
    HELD_UP,
    LOOPED,
    NEEDLESS,
    ODD,
    ON_CPU,
    ONE_BY_ONE,
    PASSING,
    REPEATED,
    SIZES,
    SPEAKS,
    UNDERFLOWS,
    UPDATING,
    after_backward,
    at_line,
    by,
    found,
    table,
)


@pytest.mark.parametrize(
    ("rule", "given", "gain_ms"),
    [
        ("padding", facts(UPDATING, padding_share=0.5), 33.5),  # the update takes the same without it
        ("double_precision", facts(UPDATING, **DOUBLE), 33.5),
        ("optimizer_loop", facts(UPDATING, **LOOPED), 19.5),
        ("few_threads", facts(**ON_CPU, graph_nodes=100), 97 * 7 / 8),
        ("recomputation", facts(**CHECKPOINTED), 97 / 4),
        ("ignored_labels", SPEAKS["ignored_labels"][0], 0.9 * 2 / 3 * 67),
        ("costly_line", SPEAKS["costly_line"][4], 0.9 * 97),  # half of the function and more
        ("costly_line", SPEAKS["costly_line"][5], 0.4 * 97),  # less of it: the line alone
        ("preconditioner", SPEAKS["preconditioner"][0], 0.5 * 0.9 * 30),
        ("gradient_loop", facts(UPDATING, optimizer_tensors=400, after_backward=after_backward(0.8)), 12),
        ("half_precision", facts(UPDATING, **HALF), 33.5),
        ("subnormals", facts(PASSING, **UNDERFLOWS), 0.8 * 50),  # backward, the update, both passes
        ("subnormals", facts(UPDATING, **UNDERFLOWS | {"subnormal_of": "states of the optimizer"}), 0.8 * 30),
        ("subnormals", facts(UPDATING, **UNDERFLOWS | {"subnormal_of": "parameters"}), 0.8 * 67),
        ("needless_gradients", facts(UPDATING, **NEEDLESS), 33.5),
        ("needless_gradients", facts(UPDATING, **DROPPED), 0.2 * 67),
        ("repeated_backward", facts(PASSING, **REPEATED), 0.6 * 50),
        ("host_contention", facts(**HELD_UP), 60),
        ("alignment", facts(UPDATING, **ODD), 67 * (2.5 - 1) / (2.5 + 1)),  # one of two products that were equal
        ("anomaly_mode", facts(anomaly_share=1.0, graph_nodes=1000), 30),
        ("anomaly_mode", facts(anomaly_share=1.0, layers=200), 30),
        ("anomaly_mode", facts(anomaly_share=1.0, layers=200, queued_share=0.5), 60),
        ("anomaly_mode", facts(anomaly_share=1.0, layers=2000), 0.9 * 97),
        ("parametrized", SPEAKS["parametrized"][0], 0.9 * 97),  # backward goes through what forward computed
        ("logging", SPEAKS["logging"][-1], 0.45 * 60),  # not through hooks
        ("costly_line", SPEAKS["costly_line"][2], 0.9 * 60),  # nor through one-hot vectors
    ],
)
def test_what_a_switch_gains_at_most(rule: str, given: Facts, gain_ms: float) -> None:
    (finding,) = found(rule, given)
    assert finding.gain_s == pytest.approx(gain_ms / 1000, rel=0.005)


def test_threads_are_what_other_work_leaves() -> None:
    (finding,) = found("host_contention", facts(**HELD_UP))
    assert "8 threads on 4 cores that other work leaves" in finding.evidence
    assert finding.next.startswith("OMP_NUM_THREADS=4 ")


def test_an_update_that_is_measured_well_is_told_though_the_passes_vary() -> None:
    given = facts(UPDATING, **LOOPED)
    spreads = dict(given.summary.spreads)
    noisy = replace(spreads["compute"], standard_error_ns=20.0 * MS)
    varies = replace(given, summary=replace(given.summary, spreads=spreads | {"compute": noisy}))
    assert found("optimizer_loop", varies)
    own = replace(spreads["compute_optimizer"], standard_error_ns=20.0 * MS)
    varies = replace(given, summary=replace(given.summary, spreads=spreads | {"compute_optimizer": own}))
    assert not found("optimizer_loop", varies)


def test_the_cure_of_pauses_depends_on_who_calls_the_collector() -> None:
    own, called = (found("collector", given)[0].next for given in SPEAKS["collector"])
    assert own.startswith("gc.collect(); gc.freeze(); gc.disable() before the loop")
    assert called.startswith("call gc.collect() only")
    assert not found("slow_line", SPEAKS["collector"][1])  # it is told once


def test_a_slow_line_that_communicates_is_told_so() -> None:
    waits: dict[str, float | None] = {"compute": 70.0, "other": 30.0}
    (elsewhere,) = found("slow_line", facts(waits, sources=line("")))
    (here,) = found("slow_line", facts(waits, sources=line(""), issued=IssuedTraffic([at_line(2, 1e3)])))
    assert "communicates" in here.title
    assert "communicates" not in elsewhere.title


@pytest.mark.parametrize(
    ("what", "number", "caller", "told"),
    [
        ("", 8, "train.py:40 main", True),
        ("", 10, "train.py:40 main", False),  # comes after the line
        ("", 8, "", False),  # in no helper
        (source_locations.SLEEP, 8, "train.py:40 main", False),
    ],
)
def test_a_line_behind_a_collective_of_a_helper_may_wait_for_it(
    what: str, number: int, caller: str, told: bool
) -> None:
    """It is said as what may be: what `many_messages` says of the collective does not hide the line."""
    place = SourceLocation(f"train.py:{number} main", issuers.SCRIPT, caller)
    sent = IssuedTraffic([replace(at_line(60, 5e4), place=place, op="allgather")])
    waits: dict[str, float | None] = {"compute": 50.0, "comm": 20.0, "other": 30.0}
    given = facts(waits, world_size=2, issued=sent, sources=line(what))
    assert found("many_messages", given)
    (finding,) = found("slow_line", given)
    assert "communicates" not in finding.title
    assert finding.next.startswith("do without the sleep" if what else "see what this line does")
    assert ("if it waits for what is sent at train.py:8 main: " in finding.next) is told
    assert ("all_reduce of those of each rank" in finding.next) is told


@pytest.mark.parametrize(
    ("what", "cure"),
    [
        (source_locations.METRIC, "fewer samples, a faster implementation of it, or less often"),
        (source_locations.LOGGING, "fewer samples, a faster implementation of it, or less often"),
        (source_locations.COLLECT, "collect less often, after gc.freeze() before the loop"),
        (source_locations.OWN_LOOP, "whole arrays or tensors in place of this loop"),
        ("", "see what this line does: less often, or in another thread or process"),
        (source_locations.SLEEP, "do without the sleep"),
    ],
)
def test_the_cure_of_a_line_between_steps_is_not_about_each_of_them(what: str, cure: str) -> None:
    (finding,) = found("between_steps", facts(job=of_job(60.0, 20.0), between=line(what)))
    assert finding.next.startswith(cure)
    assert "step" not in finding.next


def test_what_is_collected_for_a_checkpoint_is_no_work_for_a_thread() -> None:
    job, collects = of_job(60.0, 20.0), AfterSaves(1, 30, 0.5, 0.01, writer=0)
    (finding,) = found("after_checkpoints", facts(job=job, after_saves=collects, world_size=2))
    assert finding.title == "all ranks wait for what rank 1 does for the checkpoints of rank 0"
    assert "thread" not in finding.next
    assert "torch.distributed.checkpoint.async_save" in finding.next


def test_of_a_line_between_steps_what_may_be_in_evaluations_is_left_out() -> None:
    (finding,) = found("between_steps", facts(job=of_job(60.0, 20.0, 30.0), between=line("")))
    assert finding.share == pytest.approx((0.9 * 20 - 0.1 * 30) / 60)


@pytest.mark.parametrize(("before_s", "told"), [(12.0, True), (2.0, False)])
def test_what_is_done_once_is_told_where_phases_begin_with_most_of_it(before_s: float, told: bool) -> None:
    """Else the job stands still after evaluations, and a phase begins now and then."""
    phases = replace(of_job(60.0, 20.0), later_phases=1, before_phases_s=before_s)
    (finding,) = found("between_steps", facts(job=phases, between=line(source_locations.METRIC)))
    assert ("once, before the first" in finding.next) is told


def test_gradients_in_a_loop_may_need_one_another() -> None:
    one, several = (
        found("costly_line", facts(HOOKED, device="cpu", computing=line(what)))[0]
        for what in (source_locations.DERIVES, source_locations.DERIVES_EACH)
    )
    assert (one.severity, several.severity) == ("warning", "info")
    assert several.next.startswith("where none needs the one before")
    assert "the list of them" in several.next


def test_the_search_for_unused_parameters_warns_where_its_message_takes_long() -> None:
    told = [
        found("unused_search", by(replace(GRADIENTS, fastest_s=seconds), unused_iterations=4))[0].severity
        for seconds in (0.004, 0.006)
    ]
    assert told == ["info", "warning"]


@pytest.mark.parametrize(
    ("reason", "action"),
    [
        (SIZES.reason, "dynamic=True"),
        ("", "dynamic=True"),
        ("k == 0", "as a tensor or an argument that stays the same"),
    ],
)
def test_the_cure_of_compiling_again_depends_on_the_reason_of_torch(reason: str, action: str) -> None:
    (finding,) = found("recompilation", facts(recompiled=replace(SIZES, reason=reason)))
    assert action in finding.next
    assert reason in finding.evidence


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"peak_bytes": 2 * GIB}, "8 runs that differ in hyper-parameters would train as one about 1.4 times"),
        ({"peak_bytes": 20 * GIB}, "3 runs that differ in hyper-parameters would train as one about 1.3 times"),
        ({"peak_bytes": 40 * GIB}, None),  # two do not fit
        ({"peak_bytes": None}, None),
        ({"peak_bytes": 2 * GIB, "world_size": 2}, None),
        ({"peak_bytes": 2 * GIB, "window": ProfilerWindow(6, 0.15, 900.0, 8e-6)}, None),  # too little to gain
    ],
)
def test_what_many_launch_bound_runs_would_gain_as_one(given: dict[str, Any], said: str | None) -> None:
    (finding,) = found("launch_bound", facts(**{"window": WINDOW} | given))
    assert ("ddlprof fuse" in finding.next) is (said is not None)
    assert said is None or said in finding.next


@pytest.mark.parametrize(
    ("lag", "idle", "updates", "expected"),
    [
        (0.11, 0.5, 6, True),  # behind its host in one part of the step, and waiting for the rest of it
        (0.11, 0.2, 6, False),
        (0.01, 0.2, 6, True),
        (0.01, 0.05, 6, False),
        (0.11, 0.5, 2, False),
        (None, 0.5, 6, True),
    ],
)
def test_windows_say_better_than_the_lag_whether_the_device_waits(
    lag: float | None, idle: float, updates: int, expected: bool
) -> None:
    assert facts(lag_share=lag, window=ProfilerWindow(updates, idle, 300.0, 13e-6)).launch_bound is expected


ASLEEP: dict[str, Any] = {"device": "cpu", "cores_per_rank": 8, "busy_cores_per_rank": 0.3}


@pytest.mark.parametrize(
    ("rule", "known"),
    [
        ("padding", {"padding_share": 0.6}),
        ("anomaly_mode", {"anomaly_share": 1.0, "graph_nodes": 1000}),
        ("double_precision", DOUBLE),
        ("half_precision", HALF),
        ("needless_gradients", NEEDLESS),
        ("deterministic", {"deterministic": True}),
        ("few_threads", {"cpu_threads": 1, "graph_nodes": 100}),
    ],
)
def test_switches_are_no_cause_where_computing_is_mostly_waiting(rule: str, known: dict[str, Any]) -> None:
    assert found(rule, facts(**ASLEEP | known)) == []
    assert found(rule, facts(**ASLEEP | known | {"busy_cores_per_rank": 0.9})) != []
    assert found(rule, facts(**ASLEEP | known | {"busy_cores_per_rank": 0.9, "other_cores": 0.6})) == []
    waiting = {"busy_cores_per_rank": 0.4, "queued_share": 0.5}  # it would compute if it had a processor
    assert (found(rule, facts(**ASLEEP | known | waiting)) != []) == (rule != "few_threads")


def test_a_mode_for_debugging_is_critical_and_threads_that_nobody_tried_are_not() -> None:
    """Of anomaly mode only the least that it costs is known, of threads the most that they gain."""
    (anomaly,) = found("anomaly_mode", facts(anomaly_share=1.0, graph_nodes=200))
    assert anomaly.share == pytest.approx(0.06)
    assert anomaly.severity == "critical"
    (little,) = found("anomaly_mode", facts(anomaly_share=1.0, graph_nodes=100))
    assert little.severity == "info"
    (threads,) = found("few_threads", facts(**ON_CPU, graph_nodes=100))
    assert threads.share == pytest.approx(0.85, abs=0.01)
    assert threads.severity == "warning"


def test_pauses_of_a_collector_that_waits_for_a_processor_are_not_its_own() -> None:
    (finding,) = found("collector", facts(collector=PAUSES, queued_share=0.3))
    assert finding.gain_s == pytest.approx(0.0084)
    assert not found("collector", facts(collector=PAUSES, queued_share=0.8))


SHORT: dict[str, float | None] = {"compute": 0.7, "data": 0.3, "data_fetch": 0.0, "data_prep": 0.3}


@pytest.mark.parametrize(
    ("given", "gain_ms", "action"),
    [
        (facts(WAITING, loader_workers=0), 30, "num_workers=1"),
        (facts({"compute": 30.0, "data": 70.0}, loader_workers=0), 70, "num_workers=3"),
        (facts({"compute": 30.0, "data": 70.0}, loader_workers=0, cores_per_rank=1), 30, "num_workers=1"),
        (facts(WAITING, loader_workers=4), 30, "6 loader workers in place of 4 (there are 8 cores a rank)"),
        (facts(WAITING, loader_workers=4, cores_per_rank=5), 20, "5 loader workers in place of 4"),
        (facts(WAITING, loader_workers=8), None, "already fill 8 cores a rank"),
        (facts(WAITING, loader_workers=4, loader=SampleCost(0.02, None)), 20, "6 loader workers"),
        (facts(WAITING, loader_workers=None), 30, "torch.utils.data.DataLoader"),
        (facts(SHORT, loader_workers=0), None, "make batches at once"),
        (facts(WAITING, loader_workers=0, samples_per_step=2048.0), None, "make batches at once"),
    ],
)
def test_what_more_workers_gain_at_most(given: Facts, gain_ms: float | None, action: str) -> None:
    (finding,) = found("loader_workers", given)
    assert action in finding.next
    assert finding.gain_s == (None if gain_ms is None else pytest.approx(gain_ms / 1000))


@pytest.mark.parametrize(
    ("given", "compressed"),
    [
        (ddp(30), True),
        (ddp(30, reductions=None), True),
        (ddp(30, reductions=Reductions(1, 84, 84, 0.03, 0.03, 0.03), gradient_bytes=84), False),
        (ddp(30, reductions=None, gradient_bytes=84), False),
    ],
)
def test_few_bytes_are_not_compressed(given: Facts, compressed: bool) -> None:
    (finding,) = found("gradient_traffic", given)
    assert ("compressed gradients" in finding.next) == compressed
    assert ("links carry less" in finding.title) == compressed


@pytest.mark.parametrize(("network_ms", "compressed"), [(None, False), (5.0, False), (25.0, True)])
def test_processors_compress_what_crosses_machines(network_ms: float | None, compressed: bool) -> None:
    times = summary({"compute": 67.0, "comm": 30.0, "network": network_ms})
    given = replace(ddp(30, device="cpu", precision="fp32"), summary=times)
    (finding,) = found("gradient_traffic", given)
    assert ("fp16_compress_hook" in finding.next) == compressed
    assert finding.gain_s == (pytest.approx(0.015) if compressed else None)


@pytest.mark.parametrize(
    ("work", "premise"), [("reads", "if it is one file for all samples: "), ("unpacks", "if it is compressed: ")]
)
def test_the_cure_of_reading_has_its_premise(work: str, premise: str) -> None:
    (finding,) = found("data_line", facts(WAITING, data_lines=made_at(f"data {work}")))
    assert finding.next.startswith(premise)


def test_waiting_workers_need_no_cores() -> None:
    (finding,) = found("storage", facts(BLOCKED, loader_workers=8, cores_per_rank=8))
    assert "12 loader workers in place of 8" in finding.next
    assert finding.gain_s == pytest.approx(0.03)


def test_an_embedding_whose_rows_nobody_looks_up_is_not_exchanged_whole() -> None:
    """Of 110 MB of gradients, 102 MB are of an embedding of which a batch looks up few rows."""
    sent = {"gradient_bytes": 110_000_000, "precision": "fp32", "backend": "gloo"}
    (told,) = found("gradient_traffic", by(GRADIENTS, operators=table(400_000), **sent))
    assert "sparse=True" in told.next
    assert told.gain_s == pytest.approx(0.03 * 256 * (400_000 - 2 * 1280) / 110e6)  # beside the rows of both ranks
    many = {"world_size": 64}  # which look up as many rows as there are
    for other in (many, {"operators": table(400_000, head=True)}, {"operators": table(5_000)}, {"backend": "nccl"}):
        (told,) = found("gradient_traffic", by(GRADIENTS, **{"operators": table(400_000)} | sent | other))
        assert "sparse=True" not in told.next


def test_a_table_that_is_looked_up_twice_is_one() -> None:
    """As two calls, or as one operator with two."""
    embedding, update = table(400_000)
    twice = (replace(embedding, count=2.0),), (embedding, replace(embedding, shape=(640, 64)))
    for lookups, used in zip(twice, (2560, 1920), strict=True):
        (told,) = found("dense_embedding", facts(UPDATING, operators=(*lookups, update)))
        assert told.evidence.endswith(f"of 400,000 rows at most {used:,}")
        assert told.gain_s == pytest.approx(0.03 * 64 * (400_000 - used) / (64 * 400_000 + 20_000))
        assert "outside of clip_grad_norm_" in told.next


def test_a_shorter_history_takes_as_much_less() -> None:
    """Where it is kept: a run of 100 steps with one pass each keeps 50 of 1000 on average."""
    for history, passes, kept in ((100, 20, 97.5), (1000, None, 50)):
        known = {"optimizer_history": history, "passes_in_update": passes}
        (told,) = found("long_history", facts(UPDATED, optimizer="LBFGS", **known))
        assert told.severity == "warning"
        assert told.gain_s == pytest.approx(0.03 * (kept - 10) / (kept + 4))
        assert told.next.startswith(f"history_size=10 in place of {history}")
        assert told.evidence.endswith(f"at most {kept:.0f} of them")


def test_a_product_counts_for_more_on_processors_beside_a_term_of_all_weights() -> None:
    passes = 97 - 30
    for device, gain_ms in (("cpu", passes * 20 / (20 + 1 + 4)), (facts().device, passes * 20 / (20 + 1 + 2))):
        (told,) = found("weight_penalty", facts(UPDATED, **penalised(), device=device))
        assert told.gain_s == pytest.approx(gain_ms / 1000, rel=0.001)


@pytest.mark.parametrize(("size", "gain_ms"), [(50_000, 30 * (1 - 2 / 60)), (100_000, None)])
def test_messages_gain_by_their_number_where_they_are_latency(size: float, gain_ms: float | None) -> None:
    (told,) = found("bucket_size", by(replace(ONE_BY_ONE, bytes=60 * size), strategy="zero"))
    assert told.gain_s == (gain_ms and pytest.approx(gain_ms / 1000))


@pytest.mark.parametrize(("tokens", "told"), [(512.0, True), (None, True), (62.25, False)])
def test_batches_of_several_lengths_are_padded_to_their_longest(tokens: float | None, told: bool) -> None:
    (finding,) = found("padding", facts(padding_share=0.6, tokens_per_sample=tokens))
    assert ("longest" in finding.next) == told
    assert "similar length" in finding.next


def test_what_is_gathered_may_be_a_sum() -> None:
    (told,) = found("own_messages", by(replace(at_line(1, 1e8), op="allgather"), GRADIENTS))
    assert "all_reduce of those of each rank" in told.next
    (told,) = found("own_messages", by(at_line(1, 1e8), GRADIENTS))
    assert "all_reduce of those of each rank" not in told.next


@pytest.mark.parametrize(("op", "each", "inputs"), [("allgather", 2**16, True), ("allgather", 2**14, False),
                                                   ("allreduce", 2**16, False)])  # fmt: skip
def test_whole_inputs_need_not_be_gathered(op: str, each: int, inputs: bool) -> None:
    sent = replace(at_line(1, 1e8), op=op, largest_bytes=each * 32 * 2)
    (told,) = found("own_messages", by(sent, GRADIENTS, batch_per_rank=32))
    assert ("in the sampler" in told.next) == inputs
    assert ("async_op" in told.next) != inputs


def test_more_workers_than_cores_are_told_by_their_number() -> None:
    """Where they are known to compute: those that wait for storage take no processor from the training."""
    starved: dict[str, Any] = {"queued_share": 0.3, "loader_workers": 16, "cores_per_rank": 2}
    computing, waiting = SampleCost(1e-3, None, 1e-4), SampleCost(1e-4, None, 1e-3)
    for cost, told in (computing, True), (waiting, False), (SampleCost(1e-3, None), False), (None, False):
        (finding,) = found("shared_machine", facts(**starved, loader=cost))
        assert ("DataLoader(num_workers=2) in place of 16" in finding.next) is told
