"""The simulated cluster and its clock: it starts and stops jobs as a policy decides, and checks every decision.

It has a heap of its own instead of SimPy: there are few kinds of events and no processes, the end of a job that is
preempted before is recognised by a number instead of an interrupt, and all events of one moment are one decision.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ddlprof.base.errors import DdlprofError, UserError
from ddlprof.extensions.cluster.jobs import Forecaster, Job, JobOutcome, JobState, Simulated, exactly
from ddlprof.extensions.cluster.machines import Allocation, Cluster
from ddlprof.extensions.cluster.packing import FreeGpus, Running
from ddlprof.extensions.cluster.policy import Decision, Policy
from ddlprof.extensions.cluster.speeds import Speeds, StepTime

_SAME_MOMENT_S = 1e-6
"""Events closer than this are at one moment. It is more than the rounding error of sums of seconds over years."""


IDLE_DECISIONS = 30_000
"""The most decisions in a row with waiting jobs after which nothing runs: with rounds of a minute, three weeks."""
QUICK_DECISIONS = 1_000
"""The most decisions in a row, each within microseconds of the last."""
FRUITLESS_STOPS = 20_000
"""The most stops in a row of jobs that had made no progress since their restart."""


@dataclass
class LivelockDetector:
    """Ends simulations that would run for ever: a policy may let jobs wait, but not starve them all.

    It counts decisions and stops in a row without any progress.
    """

    decided_s: float = -math.inf
    idle: int = 0
    quick: int = 0
    fruitless: int = 0

    def decided(self, now_s: float, moment_s: float, waiting: JobState | None, nothing_runs: bool) -> None:
        """Called after each decision. Decisions within twice `moment_s` are of the same moment."""
        self.quick = self.quick + 1 if now_s - self.decided_s <= 2 * moment_s else 0
        self.decided_s = now_s
        self.idle = self.idle + 1 if nothing_runs and waiting is not None else 0
        if self.quick > QUICK_DECISIONS:
            raise UserError(f"the policy wants to be asked again at once, for ever, at {now_s:g} s: see its wake_s")
        if self.idle > IDLE_DECISIONS and waiting is not None:
            raise _never_runs(waiting)

    def stopped(self, has_progressed: bool) -> None:
        """Called after each stop of a job."""
        self.fruitless = 0 if has_progressed else self.fruitless + 1
        if self.fruitless > FRUITLESS_STOPS:
            raise UserError(
                "the policy stops every job before it has made progress after its restart: give it a longer lease or"
                " longer rounds, or simulate cheaper restarts"
            )


def _never_runs(waiting: JobState) -> UserError:
    """The error for a policy that leaves a job waiting for ever."""
    job = waiting.job
    return UserError(
        f"the policy never runs job {job.job_id}, which asks for {job.gpus} GPUs, though nothing else runs"
    )


@dataclass
class _Run:
    cluster: Cluster
    policy: Policy
    predictor: Speeds
    restart_s: float
    idle: FreeGpus
    rank: dict[str, int]
    """Each job's place in the order of submission; ties are in the order of the input."""
    begin_s: float
    """The first submission, from which rounds are counted."""
    in_use: int = 0
    ends: list[tuple[float, int, str]] = field(default_factory=list)
    """A heap of (seconds, number of the start that ends then, job_id)."""
    leases: list[tuple[float, int, str]] = field(default_factory=list)
    """The same for the ends of leases that are finite."""
    queue: dict[str, JobState] = field(default_factory=dict)
    running: dict[str, JobState] = field(default_factory=dict)
    outcomes: list[JobOutcome] = field(default_factory=list)
    usage: list[tuple[float, int, int]] = field(default_factory=list)
    livelock: LivelockDetector = field(default_factory=LivelockDetector)


def simulate(
    jobs: Sequence[Job],
    cluster: Cluster,
    policy: Policy,
    predictor: Speeds,
    *,
    restart_s: float = 30.0,
    expect: Forecaster = exactly,
    progress: Callable[[int], None] = lambda ended: None,
) -> Simulated:
    """Runs all jobs to their end. `progress` is called with the number of jobs that have ended.

    `restart_s`: the seconds without progress after a job starts again, moves or gets another batch, with GPUs in use.

    Raises `UserError` for a job that asks for more GPUs than there are, for a policy that allocates GPUs that are not
    free, and for one that starves jobs.
    """
    _require_sound(jobs, cluster)
    arrivals = sorted(jobs, key=lambda job: job.submit_s)
    run = _Run(
        cluster, policy, predictor, restart_s,
        idle=FreeGpus(cluster),
        rank={job.job_id: place for place, job in enumerate(arrivals)},
        begin_s=arrivals[0].submit_s if arrivals else 0.0,
    )  # fmt: skip
    next_arrival, decision_s = 0, math.inf
    while next_arrival < len(arrivals) or run.queue or run.running:
        arrival_s = arrivals[next_arrival].submit_s if next_arrival < len(arrivals) else math.inf
        now_s = min(arrival_s, _next_end_s(run), decision_s)
        if now_s == math.inf:
            raise _never_runs(next(iter(run.queue.values())))
        until_s = _end_of_moment(now_s)
        while next_arrival < len(arrivals) and arrivals[next_arrival].submit_s <= until_s:
            _arrive(run, arrivals[next_arrival], expect)
            next_arrival += 1
        if _end_due(run, now_s, until_s):
            progress(len(run.outcomes))
        decision_s = math.inf
        if run.queue or run.running:
            over = _leases_over(run, now_s, until_s)
            running = Running(run.running.values(), run.idle, over)
            decision = policy.decide(now_s, list(run.queue.values()), running, cluster, predictor)
            _apply(run, now_s, decision, over)
            decision_s = _next_decision_s(run, until_s, decision)
            waiting = next(iter(run.queue.values()), None)
            run.livelock.decided(now_s, until_s - now_s, waiting, nothing_runs=not run.running)
        _note_usage(run, now_s)
    return Simulated(run.outcomes, run.usage)


def _require_sound(jobs: Sequence[Job], cluster: Cluster) -> None:
    if len({job.job_id for job in jobs}) < len(jobs):
        raise UserError("two jobs have the same job_id")
    for job in jobs:
        if job.fewest_gpus > cluster.most_of_one_model:
            raise UserError(
                f"job {job.job_id} asks for {job.gpus} GPUs, and the cluster has {cluster.most_of_one_model}"
            )
        if not (math.isfinite(job.submit_s) and 0 < job.samples < math.inf and job.batch > 0 and job.gpus > 0):
            raise UserError(f"job {job.job_id}: its submission, samples, batch and GPUs must be positive numbers")


def _end_of_moment(now_s: float) -> float:
    """The end of the moment that begins at `now_s`; later than `now_s`, however large that is."""
    return max(now_s + _SAME_MOMENT_S, math.nextafter(now_s, math.inf))


def _arrive(run: _Run, job: Job, expect: Forecaster) -> None:
    run.queue[job.job_id] = JobState(job, changed_s=job.submit_s, assigned_s=job.submit_s, expected_samples=expect(job))


def _is_stale(run: _Run, event: tuple[float, int, str]) -> bool:
    """Whether the job was stopped or moved after the event was added."""
    state = run.running.get(event[2])
    return state is None or state.starts != event[1]


def _next_end_s(run: _Run) -> float:
    while run.ends and _is_stale(run, run.ends[0]):
        heapq.heappop(run.ends)
    return run.ends[0][0] if run.ends else math.inf


def _end_due(run: _Run, now_s: float, until_s: float) -> int:
    """Ends the jobs that are done. Returns how many."""
    before = len(run.outcomes)
    while _next_end_s(run) <= until_s:
        state = run.running[heapq.heappop(run.ends)[2]]
        held_s, comm_s, by_dimension = state.held_at(now_s), state.comm_at(now_s), state.comm_dimensions_at(now_s)
        _release(run, state)
        del run.running[state.job.job_id]
        run.outcomes.append(
            JobOutcome(
                job=state.job,
                first_start_s=state.job.submit_s if state.first_start_s is None else state.first_start_s,
                end_s=now_s,
                held_gpu_s=held_s,
                comm_gpu_s=comm_s,
                starts=state.starts,
                waited_s=state.waited_s,
                ideal_s=_ideal_s(run, state.job),
                comm_dimensions=by_dimension,
            )
        )
    return len(run.outcomes) - before


def _ideal_s(run: _Run, job: Job) -> float | None:
    """The duration of a job on the GPU model that is fastest for it."""
    times = []
    for gpu_model in run.cluster.gpu_models:
        placement = run.cluster.packed(job.gpus, gpu_model)
        if placement.gpus == job.gpus:
            try:
                times.append(run.predictor.step(job, placement, job.batch).step_s)
            except DdlprofError:  # the step with this batch on so many GPUs is not known
                continue
    return job.samples / job.batch * min(times) if times else None


def _leases_over(run: _Run, now_s: float, until_s: float) -> list[JobState]:
    """The jobs that the policy may stop or move now."""
    if run.policy.lease_s == 0:
        return list(run.running.values())
    over = []
    while run.leases and run.leases[0][0] <= until_s:
        event = heapq.heappop(run.leases)
        if not _is_stale(run, event):
            state = run.running[event[2]]
            state.lease_end_s = min(state.lease_end_s, now_s)  # it may end within the moment
            over.append(state)
    return over


def _next_decision_s(run: _Run, until_s: float, decision: Decision) -> float:
    times = [decision.wake_s if decision.wake_s is not None else math.inf]
    round_s = run.policy.round_s
    if round_s is not None:
        times.append(run.begin_s + (math.floor((until_s - run.begin_s) / round_s) + 1) * round_s)
    else:
        while run.leases and _is_stale(run, run.leases[0]):
            heapq.heappop(run.leases)
        times += [run.leases[0][0]] if run.leases else []
    return max(min(times), until_s)


def _apply(run: _Run, now_s: float, decision: Decision, over: list[JobState]) -> None:
    """Stops, moves and starts jobs. Raises `UserError` where GPUs would be given away twice."""
    given = decision.allocations
    stopped = False
    for state in over:
        wanted = given.get(state.job.job_id)
        if wanted is not None and _is_held(wanted, state):
            state.assigned_s = now_s
            if run.policy.lease_s:
                _lend(run, state, now_s)
            continue
        _stop(run, state, now_s)
        if wanted is None:
            del run.running[state.job.job_id]
            run.queue[state.job.job_id] = state
            stopped = True
    if stopped:
        queue = sorted(run.queue.values(), key=lambda state: run.rank[state.job.job_id])
        run.queue = {state.job.job_id: state for state in queue}
    for job_id, wanted in given.items():
        state_or_none = run.running.get(job_id) or run.queue.get(job_id)
        if state_or_none is None:
            raise UserError(f"the policy gave GPUs to job {job_id}, which is not there")
        if state_or_none.allocation is None:
            _start(run, state_or_none, wanted, now_s)


def _is_held(wanted: Allocation, state: JobState) -> bool:
    held = state.allocation
    if held is None or wanted is held:
        return held is not None
    asked = state.job.batch
    return wanted.parts == held.parts and (wanted.batch or asked) == (held.batch or asked)


def _lend(run: _Run, state: JobState, now_s: float) -> None:
    """A lease protects what the job holds from now on."""
    state.lease_end_s = now_s + run.policy.lease_s
    if 0 < run.policy.lease_s < math.inf:
        heapq.heappush(run.leases, (state.lease_end_s, state.starts, state.job.job_id))


def _stop(run: _Run, state: JobState, now_s: float) -> None:
    done = state.done_at(now_s)
    run.livelock.stopped(done > state.done_samples)
    state.done_samples, state.held_gpu_s = done, state.held_at(now_s)
    state.comm_gpu_s, state.comm_dimensions = state.comm_at(now_s), state.comm_dimensions_at(now_s)
    _release(run, state)
    state.allocation, state.samples_per_s, state.comm_share, state.changed_s = None, 0.0, 0.0, now_s


def _release(run: _Run, state: JobState) -> None:
    if state.allocation is not None:
        run.in_use -= state.allocation.gpus
        run.idle.release(state.allocation)


def _start(run: _Run, state: JobState, wanted: Allocation, now_s: float) -> None:
    job = state.job
    batch = wanted.batch or job.batch
    _check(run, job, wanted, batch)
    run.idle.take(wanted)
    run.in_use += wanted.gpus
    step = _sound(run.predictor.step(job, run.cluster.placement(wanted), batch), job)
    state.waited_s += max(now_s - state.changed_s, 0.0)
    state.changed_s = state.assigned_s = now_s
    state.samples_per_s = batch / step.step_s
    restart_s = run.restart_s if state.starts else 0.0
    state.works_from_s = now_s + restart_s
    state.comm_share = step.comm_s / step.step_s
    state.dimension_shares = {name: seconds / step.step_s for name, seconds in (step.dimensions or {}).items()}
    state.allocation = wanted
    state.starts += 1
    if state.first_start_s is None:
        state.first_start_s = now_s
    run.queue.pop(job.job_id, None)
    run.running.pop(job.job_id, None)
    run.running[job.job_id] = state
    _lend(run, state, now_s)
    end_s = state.works_from_s + (job.samples - state.done_samples) / state.samples_per_s
    heapq.heappush(run.ends, (max(end_s, now_s), state.starts, job.job_id))


def _check(run: _Run, job: Job, wanted: Allocation, batch: int) -> None:
    machines = [index for index, _ in wanted.parts]
    free = run.idle.by_machine
    is_there = (
        bool(machines)
        and machines == sorted(set(machines))
        and all(0 <= index < len(free) and 0 < gpus <= free[index] for index, gpus in wanted.parts)
    )
    if not is_there:
        raise UserError(f"the policy gave job {job.job_id} GPUs that are not free: {wanted.parts}")
    if len({run.cluster.machines[index].gpu_model for index in machines}) != 1:
        raise UserError(f"the policy gave job {job.job_id} GPUs of several models: {wanted.parts}")
    if not job.fewest_gpus <= wanted.gpus <= job.most_gpus:
        raise UserError(
            f"the policy gave job {job.job_id} {wanted.gpus} GPUs; it can use {job.fewest_gpus} to {job.most_gpus}"
        )
    # A batch that exceeds the memory takes several passes, which the step times take into account.
    if batch != job.batch and not (job.min_batch or job.batch) <= batch <= (job.max_batch or job.batch):
        raise UserError(f"the policy gave job {job.job_id} a batch of {batch}, which it cannot use")


def _sound(step: StepTime, job: Job) -> StepTime:
    if not (0 < step.step_s < math.inf and 0 <= step.comm_s <= step.step_s):
        raise UserError(f"job {job.job_id}: a step cannot take {step.step_s} s with {step.comm_s} s of communication")
    return step


def _note_usage(run: _Run, now_s: float) -> None:
    entry = (now_s, run.in_use, len(run.queue))
    if not run.usage or run.usage[-1][1:] != entry[1:]:
        run.usage.append(entry)
