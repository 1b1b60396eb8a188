"""What is advised where the loop waits for data, and what it would gain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlprof.analysis.data_lines import DataLines
from ddlprof.analysis.features import SampleCost
from ddlprof.analysis.job_time import JOB_PARTS, JobTime
from ddlprof.analysis.rules.apply import RULES, apply_rules
from ddlprof.analysis.rules.compute import free_processors
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.signals import DataWaitBursts
from ddlprof.analysis.sources import Sources, SourceShare
from ddlprof.model.source_locations import START, START_ITEMS, SourceLocation
from tests.unit.analysis.rules.input_cases import BLOCKED, WAITING, made_at, start_at, starting
from tests.unit.analysis.rules.input_cases import job as job_of
from tests.unit.analysis.rules.made_up import ddp, facts

SLOW: dict[str, float | None] = {"compute": 10.0, "data": 90.0, "data_fetch": 80.0, "data_prep": 5.0}
SLEEPS = SampleCost(1e-5, None, 0.003)
BURSTS = DataWaitBursts(number=5, longest_s=0.4, calm_share=0.8, calm_wait_share=0.05, steps=100)


def job(started_s: float, epochs: int = 5) -> JobTime:
    """A job of 1000 steps that starts its workers in so many seconds."""
    parts: dict[str, float | None] = dict.fromkeys(JOB_PARTS, 0.0)
    return JobTime(100 + started_s, parts | {"epoch_start": started_s, "steps": 100.0}, epochs=epochs, steps=1000)


def gains(given: Facts) -> dict[str, tuple[str, float | None]]:
    return {each.rule: (each.next, each.gain_s) for each in apply_rules(given, RULES)}


def test_batches_in_another_order_are_made_as_fast_as_the_workers_are_on_average() -> None:
    given = facts(SLOW, loader_workers=2, in_order=True, loader=SLEEPS, samples_per_step=32.0)
    action, gain_s = gains(given)["delivery_order"]
    assert action.startswith("DataLoader(in_order=False), where batches may come in another order, 10 workers")
    assert gain_s == pytest.approx(0.1 - 0.00301 * 32 / 2)


def test_torch_without_that_setting_needs_more_workers() -> None:
    action, gain_s = gains(facts(SLOW, loader_workers=2, loader=SLEEPS))["delivery_order"]
    assert (
        action == "10 loader workers in place of 2 (they wait, so they need no core each), or a copy on a faster disk"
    )
    assert gain_s == pytest.approx(0.09)


@pytest.mark.parametrize(
    ("seconds_a_sample", "rule"),
    [(0.008, "prefetch_factor"), (0.011, "loader_workers")],  # of 32 samples and 4 workers, beside 70 ms of computing
)
def test_a_longer_queue_is_for_workers_that_are_fast_enough(seconds_a_sample: float, rule: str) -> None:
    means: dict[str, float | None] = {"compute": 70.0, "data": 30.0, "data_fetch": 3.0, "data_prep": 26.0}
    given = facts(means, loader_workers=4, bursts=BURSTS, loader=SampleCost(seconds_a_sample, None, 0.0))
    assert rule in gains(given)
    assert len({"prefetch_factor", "loader_workers"} & gains(given).keys()) == 1


def test_starting_more_workers_is_taken_off_their_gain() -> None:
    means: dict[str, float | None] = {"compute": 70.0, "data": 30.0, "data_fetch": 3.0, "data_prep": 26.0}
    action, gain_s = gains(facts(means, job=job(20.0)))["loader_workers"]
    assert action.startswith("6 loader workers in place of 4")
    assert gain_s == pytest.approx(0.030 - 20 / 2 / 1000)
    assert "loader_workers" not in gains(facts(means, job=job(60.0)))


def test_workers_of_several_epochs_are_kept() -> None:
    action, _ = gains(facts(SLOW, loader_workers=0, job=job(0.0)))["storage"]
    assert action.endswith("DataLoader(num_workers=9, persistent_workers=True)")
    action, _ = gains(facts(SLOW, loader_workers=0, job=job(0.0, epochs=1)))["storage"]
    assert action.endswith("DataLoader(num_workers=9)")


def test_a_busy_machine_is_a_remark_beside_the_cause() -> None:
    found = apply_rules(facts(SLOW, loader_workers=2, loader=SLEEPS, queued_share=0.5), RULES)
    assert [each.rule for each in found] == ["delivery_order", "shared_machine"]
    assert found[-1].severity == "info"


def test_the_jobs_own_workers_are_no_other_work() -> None:
    own = facts(queued_share=0.5, other_cores=0.1, cores_per_rank=4)
    assert "other work" not in free_processors(own)
    assert free_processors(own) == "fewer loader workers, or a machine with more cores"
    others = replace(own, host=replace(own.host, other_cores=1.5))
    assert free_processors(others).startswith("end the other work on the machine")


def test_what_is_handed_over_is_no_reason_for_workers() -> None:
    handed: dict[str, float | None] = {"compute": 70.0, "data": 30.0, "data_fetch": 0.0, "data_prep": 1.0}
    found = gains(facts(handed, batch_tensors=301, batch_bytes=10_000, loader=SampleCost(1e-5, None, 0.0)))
    assert found.keys() == {"hand_over"}
    action, gain_s = found["hand_over"]
    assert "torch.cat" in action
    assert "num_workers=0" in action
    assert gain_s == pytest.approx(0.029 - 32e-5)


@pytest.mark.parametrize(
    ("what", "known", "rules"),
    [
        ("data opens", {}, ["data_line"]),
        ("data", {}, ["loader_workers", "data_line"]),  # nobody knows what would be better there
        ("data", {"queued_share": 0.5}, ["data_line", "shared_machine"]),  # no core for a worker
    ],
)
def test_a_line_comes_before_workers_where_it_is_the_better_advice(
    what: str, known: dict[str, float], rules: list[str]
) -> None:
    means: dict[str, float | None] = {"compute": 70.0, "data": 30.0, "data_fetch": 3.0, "data_prep": 26.0}
    lines = DataLines(Sources(40, [SourceShare(SourceLocation("train.py:9 D.__getitem__", what), 0.9, True)]))
    found = apply_rules(facts(means, loader_workers=0, data_lines=lines, **known), RULES)
    assert [each.rule for each in found] == rules
    (line,) = (each for each in found if each.rule == "data_line")
    assert "train.py:9 D.__getitem__" in line.next
    named = [each.evidence for each in found if each.rule == "loader_workers"]
    assert all(evidence.endswith("90 % of what they take is at train.py:9 D.__getitem__") for evidence in named)
    assert line.gain_s == pytest.approx(0.027)


@pytest.mark.parametrize(("workers", "ranks", "gain_ms"), [(0, 2, 15), (0, 4, 22.5), (2, 1, 30), (1, 1, None)])
@pytest.mark.parametrize("means", [WAITING, BLOCKED])
def test_more_workers_would_wait_for_the_same_lock(
    means: dict[str, float | None], workers: int, ranks: int, gain_ms: float | None
) -> None:
    given = facts(means, loader_workers=workers, ranks_per_node=ranks, data_lines=made_at("data locks"))
    found = apply_rules(given, RULES)
    told = [each for each in found if "without the lock where nobody writes" in each.next]
    assert bool(told) == (gain_ms is not None)  # one alone waits for nobody of the job
    assert not told or (found == told and told[0].rule == "data_line" and told[0].severity != "info")
    assert not told or told[0].gain_s == pytest.approx((gain_ms or 0) / 1000)
    (other, *_) = apply_rules(replace(given, data_lines=made_at("data turns")), RULES)  # perhaps a semaphore
    assert ("under the lock or semaphore only what must be" in other.next) == bool(told)


def test_what_workers_gain_without_a_lock_is_that_none_waits_for_another() -> None:
    means: dict[str, float | None] = {"compute": 2.0, "data": 98.0, "data_fetch": 90.0, "data_prep": 2.0}
    for workers, gain_ms in ((2, 50.0), (4, 75.0)):
        (found,) = apply_rules(facts(means, loader_workers=workers, data_lines=made_at("data locks", 0.95)), RULES)
        assert found.gain_s == pytest.approx(gain_ms / 1000)


@pytest.mark.parametrize(
    ("start", "device", "why", "cure"),
    [
        ("fork", "cpu", "anew each time", "persistent_workers=True"),
        ("spawn", "cpu", "by spawn: each imports the script and gets a pickled copy", 'multiprocessing_context="fork"'),
        ("spawn", "NVIDIA A10G", "by spawn", "persistent_workers=True"),
        ("forkserver", "cpu", "by forkserver", "persistent_workers=True"),
    ],
)
def test_why_workers_start_slowly_depends_on_how_they_are_started(start: str, device: str, why: str, cure: str) -> None:
    given = facts(job=starting(300), persistent_workers=False, loader=SampleCost(1e-3, None, 0.0), worker_start=start,
                  device=device)  # fmt: skip
    finding = next(each for each in apply_rules(given, RULES) if each.rule == "epoch_start")
    assert why in finding.evidence
    assert ("pickled" in finding.evidence) == (start != "fork")
    assert cure in finding.next
    assert ("fork" in finding.next) == (start == "spawn" and device == "cpu")


def test_going_through_the_data_before_the_training_is_told_from_any_slow_line() -> None:
    given = {what: facts(job=job_of("start_up", 500), starting=start_at(what)) for what in (START, START_ITEMS)}
    said = {what: apply_rules(each, RULES)[0] for what, each in given.items()}
    assert {what: each.severity for what, each in said.items()} == {START: "info", START_ITEMS: "critical"}
    assert "called at train.py:3 <module>" in said[START_ITEMS].evidence
    assert "lengths" in said[START_ITEMS].next
    assert said[START_ITEMS].share == pytest.approx(0.45)


@pytest.mark.parametrize(("turns_s", "severity"), [(200.0, "critical"), (99.0, "info"), (0.0, "info")])
def test_ranks_that_prepare_one_after_another_are_told(turns_s: float, severity: str) -> None:
    given = ddp(2, job=job_of("start_up", 500), starting=start_at(START, turns_s=turns_s))
    found = next(each for each in apply_rules(given, RULES) if each.rule == "start_up")
    assert found.severity == severity
    assert ("let one rank do it" in found.next) == (severity == "critical")
    assert found.share == (0.2 if severity == "critical" else 0.45)


def test_workers_that_repeat_their_data_are_not_given_more() -> None:
    given = facts(SLOW, repeated_batches=True, loader_workers=2, job=job_of("start_up", 0))
    (finding,) = apply_rules(given, RULES)
    assert finding.rule == "repeated_samples"
    assert finding.share == pytest.approx(0.5)
    assert "get_worker_info()" in finding.next


def test_whole_batches_are_not_asked_for_where_the_data_set_gives_them() -> None:
    short: dict[str, float | None] = {"compute": 0.7, "data": 0.3, "data_fetch": 0.0, "data_prep": 0.3}
    said = [
        apply_rules(facts(short, loader_workers=0, whole_batches=whole), RULES)[0].next for whole in (False, True, None)
    ]
    assert ["sample by sample" in each for each in said] == [True, False, True]


def test_no_line_of_input_is_told_where_threads_fill_the_processors() -> None:
    line = SourceShare(SourceLocation("train.py:9 D.__getitem__", "data"), 0.9, True)
    given = facts({"compute": 60.0, "data": 40.0}, data_lines=DataLines(Sources(40, [line])), loader_workers=0,
                  device="cpu", cpu_threads=16, cpu_percent=99.0)  # fmt: skip
    assert "host_contention" in {each.rule for each in apply_rules(given, RULES)}
    assert "data_line" not in {each.rule for each in apply_rules(given, RULES)}
    assert "data_line" in {each.rule for each in apply_rules(replace(given, host=facts().host), RULES)}
