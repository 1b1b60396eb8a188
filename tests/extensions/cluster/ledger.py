"""A second account of a simulation, kept from a policy's decisions alone: who held what, from when to when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from ddlprof.extensions.cluster.jobs import Job, JobState, Simulated
from ddlprof.extensions.cluster.machines import Allocation, Cluster, Level, Placement
from ddlprof.extensions.cluster.packing import idle_gpus, movable, unprotected
from ddlprof.extensions.cluster.policy import Decision, Policy
from ddlprof.extensions.cluster.speeds import Speeds, StepTime

CLOSE_S = 1e-5


class PowersOfTwo:
    """Twice as slow on several machines, four times on several racks; more GPUs help up to the next power of two.

    All times are exact in binary, so that a shifted clock gives the same ones to the last bit.
    """

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        factor = {Level.MACHINE: 1.0, Level.RACK: 2.0, Level.NETWORK: 4.0}[placement.level]
        if placement.gpu_models == ("T4",):
            factor *= 2
        gpus = 2.0 ** (job.gpus.bit_length() - placement.gpus.bit_length())
        step_s = (job.step_s or 1.0) * batch / job.batch * gpus * factor
        return StepTime(step_s, step_s, step_s, comm_s=step_s * (1 - 1 / factor))


@dataclass
class Span:
    job: Job
    allocation: Allocation
    begin_s: float
    is_first: bool
    lease_end_s: float
    end_s: float | None = None
    has_ended: bool = False
    """It was not there any more when the policy was asked next; the outcome says since when."""


@dataclass
class Ledger:
    """Stands between the simulation and a policy."""

    policy: Policy
    spans: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    asked: list[float] = field(default_factory=list)

    @property
    def lease_s(self) -> float:
        return self.policy.lease_s

    @property
    def round_s(self) -> float | None:
        return self.policy.round_s

    def open(self, job_id: str) -> Span | None:
        spans = self.spans[job_id]
        return spans[-1] if spans and spans[-1].end_s is None and not spans[-1].has_ended else None

    def decide(
        self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], cluster: Cluster, predictor: Speeds
    ) -> Decision:
        self.asked.append(now_s)
        present = {state.job.job_id for state in (*queue, *running)}
        for job_id in self.spans:
            if job_id not in present and (ended := self.open(job_id)):
                ended.has_ended = True
        assert not {state.job.job_id for state in queue} & {state.job.job_id for state in running}
        assert [state.job.submit_s for state in queue] == sorted(state.job.submit_s for state in queue)
        for state in queue:
            assert state.allocation is None
            assert self.open(state.job.job_id) is None
        for state in running:
            span = self.open(state.job.job_id)
            assert span is not None
            assert span.allocation == state.allocation
            assert state.may_move(now_s) if self.lease_s == 0 else span.lease_end_s == pytest.approx(state.lease_end_s)
            if self.round_s is None:
                assert now_s <= span.lease_end_s + CLOSE_S or self.lease_s == 0, "it was to be asked at the lease's end"
        _check_shortcuts(cluster, running, now_s)
        decision = self.policy.decide(now_s, queue, running, cluster, predictor)
        self._note(now_s, queue, running, decision)
        return decision

    def _note(self, now_s: float, queue: Sequence[JobState], running: Sequence[JobState], decision: Decision) -> None:
        for state in running:
            span = self.open(state.job.job_id)
            assert span is not None
            if span.lease_end_s > now_s + CLOSE_S:
                continue
            wanted = decision.allocations.get(state.job.job_id)
            if wanted is not None and same(wanted, span.allocation, state.job):
                span.lease_end_s = now_s + self.lease_s
            else:
                span.end_s = now_s
        for state in (*queue, *running):
            wanted = decision.allocations.get(state.job.job_id)
            if wanted is not None and self.open(state.job.job_id) is None:
                before = self.spans[state.job.job_id]
                before.append(Span(state.job, wanted, now_s, not before, now_s + self.lease_s))


def _check_shortcuts(cluster: Cluster, running: Sequence[JobState], now_s: float) -> None:
    """What the simulation has counted is what a plain list of the jobs says."""
    plain = list(running)
    assert {state.job.job_id for state in movable(running, now_s)} == {
        state.job.job_id for state in movable(plain, now_s)
    }
    for quick, slow in (
        (idle_gpus(cluster, running), idle_gpus(cluster, plain)),
        (unprotected(cluster, running, now_s), unprotected(cluster, plain, now_s)),
    ):
        assert quick.by_machine == slow.by_machine
        for gpus in (1, cluster.most_of_one_model):
            assert quick.place(gpus) == slow.place(gpus)


def same(one: Allocation, other: Allocation, job: Job) -> bool:
    return one.parts == other.parts and (one.batch or job.batch) == (other.batch or job.batch)


def check(ledger: Ledger, simulated: Simulated, jobs: Sequence[Job], cluster: Cluster, restart_s: float) -> None:
    """Everything that must hold for every policy."""
    assert sorted(outcome.job.job_id for outcome in simulated.outcomes) == sorted(job.job_id for job in jobs)
    speeds = PowersOfTwo()
    for outcome in simulated.outcomes:
        job, spans = outcome.job, ledger.spans[outcome.job.job_id]
        held = done = comm = gpu_s = 0.0
        assert spans[-1].end_s is None, "it ran until it ended"
        spans[-1].end_s = outcome.end_s
        for span in spans:
            assert span.end_s is not None
            assert span.begin_s >= job.submit_s - CLOSE_S
            batch = span.allocation.batch or job.batch
            assert job.fewest_gpus <= span.allocation.gpus <= job.most_gpus, "gangs are whole"
            placement = cluster.placement(span.allocation)
            assert len(placement.gpu_models) == 1
            step = speeds.step(job, placement, batch)
            held_s = span.end_s - span.begin_s
            works_s = max(held_s - (0.0 if span.is_first else restart_s), 0.0)
            held += held_s
            done += works_s / step.step_s * batch
            comm += works_s * step.comm_s / step.step_s * span.allocation.gpus
            gpu_s += held_s * span.allocation.gpus
        assert done == pytest.approx(job.samples, rel=1e-6), "all work is done, and no more"
        assert outcome.held_gpu_s == pytest.approx(gpu_s, abs=CLOSE_S)
        assert outcome.comm_gpu_s == pytest.approx(comm, abs=CLOSE_S)
        assert outcome.waited_s == pytest.approx(outcome.completion_s - held, abs=CLOSE_S)
        assert (outcome.starts, outcome.first_start_s) == (len(spans), spans[0].begin_s)
    total = sum(
        (after - before) * gpus
        for (before, gpus, _), (after, _, _) in zip(simulated.usage, simulated.usage[1:], strict=False)
    )
    assert total == pytest.approx(sum(outcome.held_gpu_s for outcome in simulated.outcomes))
    assert simulated.usage[-1][1:] == (0, 0)
    assert ledger.asked == sorted(set(ledger.asked)), "one question for each moment"
    _check_machines(ledger, cluster)


def _check_machines(ledger: Ledger, cluster: Cluster) -> None:
    """No GPU is given twice."""
    changes = sorted(
        (time_s, kind, index, gpus)
        for spans in ledger.spans.values()
        for span in spans
        for index, gpus in span.allocation.parts
        for time_s, kind in ((span.begin_s, 1), (span.end_s or 0.0, 0))
    )
    used = [0] * len(cluster.machines)
    for _, kind, index, gpus in changes:
        used[index] += gpus if kind else -gpus
        assert used[index] <= cluster.machines[index].gpus
    assert not any(used)
