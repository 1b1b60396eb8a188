"""The clock of a simulated cluster: it starts and stops jobs as a policy decides, and lets no policy cheat.

A heap of our own instead of SimPy: there are five kinds of events and no processes, an end that is overtaken by a
preemption is told by a number instead of an interrupt, and all events of one moment are one question to the policy.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ddlprof.cluster.jobs import Job, JobState
from ddlprof.cluster.machines import Allocation, Cluster
from ddlprof.cluster.policy import Decision, Policy
from ddlprof.cluster.speeds import Speeds
from ddlprof.model.errors import UserError

_SAME_MOMENT_S = 1e-6
"""Events closer than this are one moment; more than the rounding of sums of seconds over years."""


@dataclass(frozen=True)
class Outcome:
    """What became of a job. Seconds from the start of the trace."""

    job: Job
    first_start_s: float
    end_s: float
    held_gpu_s: float
    """GPU-seconds it held, restarts included."""
    comm_gpu_s: float
    """GPU-seconds in exposed communication."""
    starts: int
    waited_s: float
    """Without GPUs, before its first start and between."""

    @property
    def completion_s(self) -> float:
        """From its submission to its end."""
        return self.end_s - self.job.submit_s


@dataclass(frozen=True)
class Simulated:
    """What came of a trace under a policy."""

    outcomes: list[Outcome]
    """In the order of their ends."""
    usage: list[tuple[float, int, int]]
    """(seconds, GPUs in use, jobs that wait), one entry for each change."""
    decisions: int


@dataclass(frozen=True)
class Costs:
    """What moving costs."""

    restart_s: float = 30.0
    """A job that was stopped makes no progress for so long when it starts again or moves; its GPUs are in use."""
    first_start_s: float = 0.0
    """The same for a job's first start."""


Expect = Callable[[Job], tuple[float | None, float]]
"""How many samples a job seems to need in all (None: nobody can tell), and how many must be done before."""


def exactly(job: Job) -> tuple[float | None, float]:
    """Everybody knows how long every job takes."""
    return job.samples, 0.0


@dataclass
class _Run:
    cluster: Cluster
    policy: Policy
    predictor: Speeds
    costs: Costs
    events: list[tuple[float, int, str]] = field(default_factory=list)
    """(seconds, version of the job's allocation, job_id); "" for moments at which the policy is only asked."""
    queue: dict[str, JobState] = field(default_factory=dict)
    running: dict[str, JobState] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    usage: list[tuple[float, int, int]] = field(default_factory=list)


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    predictor: Speeds,
    *,
    costs: Costs = Costs(),
    expect: Expect = exactly,
    progress: Callable[[int], None] = lambda ended: None,
) -> Simulated:
    """Runs all jobs to their end. `progress` is told how many have ended.

    Raises `UserError` for a job that asks for more GPUs than there are, for a policy that gives away what it does not
    have, and for one under which jobs wait for ever.
    """
    for job in jobs:
        if job.min_gpus > cluster.gpus or (job.max_gpus is None and job.gpus > cluster.gpus):
            raise UserError(f"job {job.job_id} asks for {job.gpus} GPUs, and the cluster has {cluster.gpus}")
    run = _Run(cluster, policy, predictor, costs, free=[machine.gpus for machine in cluster.machines])
    arrivals = sorted(jobs, key=lambda job: job.submit_s)
    next_arrival, asked_s, decisions = 0, math.inf, 0
    while next_arrival < len(arrivals) or run.queue or run.running:
        now_s = min(
            arrivals[next_arrival].submit_s if next_arrival < len(arrivals) else math.inf,
            run.events[0][0] if run.events else math.inf,
            asked_s,
        )
        if now_s == math.inf:
            waiting = next(iter(run.queue.values())).job
            raise UserError(f"the policy never runs job {waiting.job_id}, which asks for {waiting.gpus} GPUs")
        while next_arrival < len(arrivals) and arrivals[next_arrival].submit_s <= now_s + _SAME_MOMENT_S:
            _arrive(run, arrivals[next_arrival], expect)
            next_arrival += 1
        ended = _end_due(run, now_s)
        if ended:
            progress(len(run.outcomes))
        if not run.queue and not run.running:
            asked_s = math.inf
            _note_usage(run, now_s)
            continue
        decision = policy.decide(now_s, list(run.queue.values()), list(run.running.values()), cluster, predictor)
        decisions += 1
        _apply(run, now_s, decision)
        asked_s = _next_question_s(run, now_s, decision)
    return Simulated(run.outcomes, run.usage, decisions)


def _arrive(run: _Run, job: Job, expect: Expect) -> None:
    state = JobState(job, changed_s=job.submit_s, assigned_s=job.submit_s)
    state.expected_samples, state.expected_from_samples = expect(job)
    run.queue[job.job_id] = state


def _end_due(run: _Run, now_s: float) -> int:
    """Ends the jobs that are done by now, and forgets events that something has overtaken. Returns how many ended."""
    ended = 0
    while run.events and run.events[0][0] <= now_s + _SAME_MOMENT_S:
        _, version, job_id = heapq.heappop(run.events)
        state = run.running.get(job_id)
        if state is None or state.starts != version:
            continue
        held_s, comm_s = state.held_at(now_s), state.comm_at(now_s)
        _release(run, state)
        del run.running[job_id]
        ended += 1
        run.outcomes.append(
            Outcome(
                job=state.job,
                first_start_s=state.first_start_s or 0.0,
                end_s=now_s,
                held_gpu_s=held_s,
                comm_gpu_s=comm_s,
                starts=state.starts,
                waited_s=state.waited_s,
            )
        )
    return ended


def _next_question_s(run: _Run, now_s: float, decision: Decision) -> float:
    times = [decision.wake_s if decision.wake_s is not None else math.inf]
    if run.policy.round_s is not None:
        times.append((math.floor((now_s + _SAME_MOMENT_S) / run.policy.round_s) + 1) * run.policy.round_s)
    if 0 < run.policy.lease_s < math.inf:
        times += [state.lease_end_s for state in run.running.values() if state.lease_end_s > now_s + _SAME_MOMENT_S]
    return max(min(times), now_s + _SAME_MOMENT_S)


def _apply(run: _Run, now_s: float, decision: Decision) -> None:
    """Stops, moves and starts jobs. Raises `UserError` where GPUs would be given away twice."""
    given = decision.allocations
    for job_id, state in list(run.running.items()):
        if not state.may_move(now_s):
            continue
        wanted = given.get(job_id)
        if wanted == state.allocation:
            state.assigned_s, state.lease_end_s = now_s, now_s + run.policy.lease_s
            continue
        _stop(run, state, now_s)
        if wanted is None:
            del run.running[job_id]
            _enqueue(run, state)
    for job_id, wanted in given.items():
        waiting = run.queue.pop(job_id, None) or run.running.get(job_id)
        if waiting is not None and waiting.allocation is None:
            _start(run, waiting, wanted, now_s)
    _note_usage(run, now_s)


def _stop(run: _Run, state: JobState, now_s: float) -> None:
    state.done_samples, state.held_gpu_s, state.comm_gpu_s = (
        state.done_at(now_s),
        state.held_at(now_s),
        state.comm_at(now_s),
    )
    _release(run, state)
    state.allocation, state.samples_per_s, state.comm_share, state.changed_s = None, 0.0, 0.0, now_s


def _release(run: _Run, state: JobState) -> None:
    for index, gpus in state.allocation.parts if state.allocation is not None else ():
        run.free[index] += gpus


def _enqueue(run: _Run, state: JobState) -> None:
    """Back to where its submission puts it."""
    run.queue[state.job.job_id] = state
    if len(run.queue) > 1:
        ordered = sorted(run.queue.items(), key=lambda item: item[1].job.submit_s)
        run.queue = dict(ordered)


def _start(run: _Run, state: JobState, wanted: Allocation, now_s: float) -> None:
    job = state.job
    _check(run, job, wanted)
    for index, gpus in wanted.parts:
        run.free[index] -= gpus
    step = run.predictor.step(job, run.cluster.spread(wanted), wanted.batch or job.batch)
    state.waited_s += now_s - state.changed_s
    state.changed_s = state.assigned_s = now_s
    state.works_from_s = now_s + (run.costs.restart_s if state.starts else run.costs.first_start_s)
    state.samples_per_s = (wanted.batch or job.batch) / step.step_s
    state.comm_share = step.comm_s / step.step_s
    state.allocation, state.lease_end_s = wanted, now_s + run.policy.lease_s
    state.starts += 1
    if state.first_start_s is None:
        state.first_start_s = now_s
    run.running.pop(job.job_id, None)
    run.running[job.job_id] = state
    end_s = state.works_from_s + (job.samples - state.done_samples) / state.samples_per_s
    heapq.heappush(run.events, (max(end_s, now_s), state.starts, job.job_id))


def _check(run: _Run, job: Job, wanted: Allocation) -> None:
    machines = [index for index, _ in wanted.parts]
    free = run.free
    sound = machines == sorted(set(machines)) and all(
        0 <= index < len(free) and 0 < gpus <= free[index] for index, gpus in wanted.parts
    )
    if not sound or not job.min_gpus <= wanted.gpus <= max(job.gpus, job.max_gpus or 0):
        raise UserError(f"the policy gave job {job.job_id} GPUs that are not there or that it cannot use: {wanted}")


def _note_usage(run: _Run, now_s: float) -> None:
    entry = (now_s, run.cluster.gpus - sum(run.free), len(run.queue))
    if not run.usage or run.usage[-1][1:] != entry[1:]:
        run.usage.append(entry)
