"""How jobs scale with GPUs, and the division of GPUs among them with the largest sum of speed-ups.

`Choices` has the best batch and the speed-up of a job for each number of GPUs. `share_out` divides the GPUs by the
dynamic programme of Saxena, Jayaram, Basu, Sabharwal, Verma: Effective Elastic Scaling of Deep Learning Workloads,
MASCOTS 2020. `GoodputSpeeds` charges for large batches, of whose samples each advances the training less: Pollux (Qiao
et al., OSDI 2021, equation 6), after McCandlish et al., An Empirical Model of Large-Batch Training, 2018. Every sample
of a batch of b is worth (n + b0) / (n + b) of a sample at the batch b0, n being the gradient noise scale in samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import Cluster, Placement
from ddlprof.extensions.cluster.speeds import Speeds, Steps, StepTime, seconds_of

_RATIO = 1.15
"""The ratio of each tried batch to the one before: near the best batch, the speed hardly depends on it."""

Batches = Callable[[Job, int], Sequence[int]]
"""Returns the batches, in samples over all GPUs, that a job may have on so many GPUs; none: it cannot run on them."""


class BatchChoice(NamedTuple):
    """A batch and the speed with it."""

    batch: int
    samples_per_s: float


def all_batches(job: Job, gpus: int, accumulate: bool = False) -> list[int]:
    """Batches between the job's bounds that divide evenly by the GPUs and fit the memory, each a little larger than the
    one before. If none fits or if it may `accumulate`, also those that take several passes; if none divides evenly,
    the largest; if the job has no bounds, the batch that it asked for.

    A job with copies of its model over several GPUs has none on a number that they do not divide, and may accumulate.
    """
    gpus, rest = divmod(gpus, job.copy_gpus)
    if rest or not gpus:
        return []
    if job.min_batch is None and job.max_batch is None:
        return [job.batch]
    least, most = job.min_batch or job.batch, job.max_batch or job.batch
    first, last = max(math.ceil(least / gpus), 1), most // gpus
    if last < first:
        return [most] if most >= gpus else []
    fits = last if accumulate or job.copy_gpus > 1 else job.max_batch_per_gpu or last
    if fits >= first:
        last = min(last, fits)
    return [gpus * share for share in _shares(first, last)]


@lru_cache(maxsize=100_000)
def _shares(first: int, last: int) -> tuple[int, ...]:
    """What a GPU gets of the batches that are tried, from the fewest samples to the most."""
    tried = math.ceil(math.log(last / first, _RATIO)) + 1
    return tuple(sorted({round(share) for share in np.geomspace(first, last, tried)}))


class Choices:
    """The best batches of jobs on a cluster with GPUs of one model. They are cached, as speeds do not change."""

    def __init__(self, cluster: Cluster, speeds: Speeds, batches: Batches = all_batches) -> None:
        self._cluster = cluster
        self._speeds = speeds
        self._batches = batches
        self._known: dict[str, list[BatchChoice | None]] = {}
        self._placements: list[Placement] = []

    def of(self, job: Job) -> list[BatchChoice | None]:
        """The best choice on 1, 2, ... GPUs, consolidated; None where the job cannot run on so many."""
        if job.job_id not in self._known:
            most = min(job.most_gpus, self._cluster.gpus)
            placements = [self._packed(gpus) for gpus in range(job.fewest_gpus, most + 1)]
            self._known[job.job_id] = [*[None] * min(job.fewest_gpus - 1, most), *self._best(job, placements)]
        return self._known[job.job_id]

    def factors(self, jobs: Sequence[Job]) -> NDArray[np.float64]:
        """The speed-up of each job on 1, 2, ... GPUs over one, -inf where it cannot run: the argument of `share_out`.
        A job that needs several GPUs is taken to be as fast on one as its speed divided by their number."""
        choices = [self.of(job) for job in jobs]
        found = np.full((len(jobs), max(map(len, choices), default=0)), -np.inf)
        for row, of_job in zip(found, choices, strict=True):
            reference = next((each.samples_per_s / gpus for gpus, each in enumerate(of_job, 1) if each), None)
            for column, choice in enumerate(of_job):
                if choice is not None and reference:
                    row[column] = choice.samples_per_s / reference
        return found

    def forget(self, job_ids: set[str]) -> None:
        """Removes all other jobs from the cache."""
        self._known = {job_id: found for job_id, found in self._known.items() if job_id in job_ids}

    def best_on(self, job: Job, placement: Placement) -> BatchChoice | None:
        """The best batch for a placement; None where the job cannot run on so many GPUs."""
        return self._best(job, [placement])[0]

    def _best(self, job: Job, placements: Sequence[Placement]) -> list[BatchChoice | None]:
        """The batch with the most samples a second on each placement, the first of equal ones."""
        tried = [(placement, self._batches(job, placement.gpus)) for placement in placements]
        seconds = seconds_of(self._speeds, job, tried)
        found: list[BatchChoice | None] = []
        end = 0
        for _, batches in tried:
            begin, end = end, end + len(batches)
            if batches:
                samples_per_s = np.array(batches) / seconds[begin:end]
                best = int(samples_per_s.argmax())
                found.append(BatchChoice(batches[best], float(samples_per_s[best])))
            else:
                found.append(None)
        return found

    def _packed(self, gpus: int) -> Placement:
        for each in range(len(self._placements) + 1, gpus + 1):
            self._placements.append(self._cluster.packed(each, self._cluster.gpu_models[0]))
        return self._placements[gpus - 1]


def statistical_efficiency(batch: Any, base_batch: float, noise_scale: float) -> Any:
    """The worth of a sample of a batch, or of each of several: 1 at `base_batch` samples, below 1 for larger batches,
    above 1 for smaller ones."""
    return (noise_scale + base_batch) / (noise_scale + batch)


def base_batch(job: Job) -> int:
    """The batch at which a sample counts as one: the smallest that the job may have."""
    return job.min_batch or job.batch


class GoodputSpeeds:
    """Step times divided by the statistical efficiency of their batch, so that the samples per second are the goodput.

    The step times of a job without a noise scale stay as they are.
    """

    def __init__(self, speeds: Speeds, noise_scales: Mapping[str, float]) -> None:
        """`noise_scales` in samples by `Job.job_id` or `Job.model`, the former first."""
        self._speeds = speeds
        self._noise_scales = noise_scales

    def step(self, job: Job, placement: Placement, batch: int) -> StepTime:
        """The seconds in which the training advances as by `batch` samples at the base batch."""
        step, noise_scale = self._speeds.step(job, placement, batch), self._noise_scale(job)
        if noise_scale is None:
            return step
        worth = statistical_efficiency(batch, base_batch(job), noise_scale)
        return replace(
            step,
            step_s=step.step_s / worth,
            low_s=step.low_s / worth,
            high_s=step.high_s / worth,
            comm_s=step.comm_s / worth,
            dimensions=step.dimensions and {name: seconds / worth for name, seconds in step.dimensions.items()},
        )

    def seconds(self, job: Job, steps: Steps) -> NDArray[np.float64]:
        """The `step_s` of many steps, as `seconds_of` says."""
        found, noise_scale = seconds_of(self._speeds, job, steps), self._noise_scale(job)
        if noise_scale is None:
            return found
        tried = np.array([batch for _, batches in steps for batch in batches])
        return np.asarray(found / statistical_efficiency(tried, base_batch(job), noise_scale))

    def _noise_scale(self, job: Job) -> float | None:
        return self._noise_scales.get(job.job_id, self._noise_scales.get(job.model or ""))


def share_out(factors: NDArray[np.float64], gpus: int) -> list[int]:
    """The number of GPUs of each job with which the sum of their speed-ups is largest.

    `factors[j, g - 1]` is how much faster job j is on g GPUs than on one, -inf where it cannot run on g; the jobs are
    in the order of their submission. Every job gets GPUs if there are enough for the fewest that each runs on; else the
    first jobs do, as in a queue without overtaking. A job that runs on no number of GPUs gets 0 and blocks no other.
    O(jobs x gpus x numbers of GPUs that are worth trying for a job).
    """
    counts = [0] * len(factors)
    able = np.flatnonzero(np.isfinite(factors).any(axis=1)) if factors.size else np.array([], dtype=int)
    fewest = np.isfinite(factors[able]).argmax(axis=1) + 1 if len(able) else able
    chosen = able[np.cumsum(fewest) <= gpus]
    if not len(chosen):
        return counts
    factors = factors[chosen, :gpus]
    tried = [np.flatnonzero(row) + 1 for row in _worth_trying(factors, gpus)]
    # best[n]: the largest sum of the jobs so far on n GPUs or fewer, as unused ones cost nothing before the first job.
    before = [np.zeros(gpus + 1)]
    for row, of_job in zip(factors[:-1], tried[:-1], strict=True):
        best = np.full(gpus + 1, -np.inf)
        for count in of_job.tolist():
            np.maximum(best[count:], before[-1][: gpus + 1 - count] + row[count - 1], out=best[count:])
        before.append(best)
    left = gpus
    for job, row, of_job, best in zip(chosen[::-1], factors[::-1], tried[::-1], before[::-1], strict=True):
        possible = of_job[of_job <= left]
        counts[job] = int(possible[(best[left - possible] + row[possible - 1]).argmax()])
        left -= counts[job]
    return counts


_PRICES = 60
"""The prices of a GPU that are tried, each halving the interval of the right one."""
_ROUNDING = 1e-9
"""More than the rounding error of a sum of speed-ups, as a share of it."""


def _worth_trying(factors: NDArray[np.float64], gpus: int) -> NDArray[np.bool_]:
    """The numbers of GPUs of each job with which the sum can be largest; the others cannot be in any best division.

    No number is worth more GPUs than one that is as fast. Of the rest, a bound decides (Everett 1963, the relaxation of
    Lagrange): each job pays a price for every GPU and takes the number with the largest gain, which bounds the sum of
    any division from above. A number whose gain is further below the largest one than the bound is above a sum that was
    reached cannot be part of a larger sum.
    """
    numbers = np.arange(1, factors.shape[1] + 1)
    rows = np.arange(len(factors))
    low, high = 0.0, 0.0
    more = few = _dearest(factors, numbers, 0.0)
    if numbers[few].sum() > gpus:
        high = float(np.ptp(factors[np.isfinite(factors)])) + 1.0  # nobody takes more than the fewest
        few = _dearest(factors, numbers, high)
        for _ in range(_PRICES):
            price = (low + high) / 2
            wanted = _dearest(factors, numbers, price)
            if numbers[wanted].sum() > gpus:
                low, more = price, wanted
            else:
                high, few = price, wanted
    left, reached = gpus - int(numbers[few].sum()), few.copy()
    for job in np.flatnonzero(more > few):  # as many as fit; the best division is near
        if more[job] - few[job] <= left:
            left -= int(more[job] - few[job])
            reached[job] = more[job]
    gains = factors - high * numbers
    largest = gains.max(axis=1)
    bound = float(largest.sum()) + high * gpus
    missing = bound - float(factors[rows, reached].sum()) + _ROUNDING * (1.0 + abs(bound))
    slower = np.zeros(factors.shape, dtype=bool)
    slower[:, 1:] = factors[:, 1:] <= np.maximum.accumulate(factors, axis=1)[:, :-1]
    return np.asarray(np.isfinite(factors) & ~slower & (gains >= largest[:, None] - missing))


def _dearest(factors: NDArray[np.float64], numbers: NDArray[np.int64], price: float) -> NDArray[np.intp]:
    """The place of the number of GPUs with the largest gain of each job, if every GPU has this price."""
    return np.asarray((factors - price * numbers).argmax(axis=1))
