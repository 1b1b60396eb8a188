"""The plan of a job on unequal GPUs: the faster one of two, of which one divides the batch and one the layers."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.extensions.hetero.predicted import PredictedTimes
from ddlprof.extensions.hetero.problem import Problem
from ddlprof.extensions.hetero.search import SplitPlan
from ddlprof.extensions.hetero.simulation import Slice, simulate
from ddlprof.extensions.hetero.stages.schedule import simulate_stages
from ddlprof.extensions.hetero.stages.search import StagedPlan


@dataclass(frozen=True)
class UnequalPlan:
    """The plan of a job, and what it rests on. At least one of `split` and `staged` is there."""

    job: str
    problem: Problem
    split: SplitPlan | None
    """The best plan that divides the batch alone; None: no share of a batch fits into memory."""
    staged: StagedPlan | None
    """The best plan that divides the layers; None: none fits, or too little is known of them."""
    notes: list[str]
    """What the predictions rest on and what was assumed, one sentence each."""

    @property
    def stages(self) -> StagedPlan | None:
        """The plan, if the one that divides the layers is the faster; None: the other is."""
        if self.staged is None or self.split is None:
            return self.staged
        assert self.split.best.step is not None
        return self.staged if self.staged.best.step.step_s < self.split.best.step.step_s else None

    @property
    def step_s(self) -> float:
        """The seconds of the planned step."""
        return min(each.best.step.step_s for each in (self.split, self.staged) if each and each.best.step)

    @property
    def gain(self) -> float | None:
        """How many times as fast the plan is as the best uniform plan; None: no uniform plan fits."""
        steps = [each.step.step_s for each in (self.split.uniform if self.split else ()) if each.step is not None]
        if self.staged is not None and self.staged.uniform is not None:
            steps.append(self.staged.uniform.step.step_s)
        return min(steps) / self.step_s if steps else None

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """The step at the ends of the 80 % interval of the device that computes longest; None: it has none."""
        if not isinstance(self.problem.times, PredictedTimes):
            return None
        if (staged := self.stages) is not None:
            device, samples, compute_s = staged.best.slowest
        else:
            assert self.split is not None
            step = self.split.best.step
            assert step is not None
            device, compute_s = step.slowest, step.compute_s
            samples = self.split.best.strategy.samples[device]
        low, high = self.problem.times.interval(device, samples)
        exposed_s = max(self.step_s - compute_s, 0.0)
        return exposed_s + low * compute_s, exposed_s + high * compute_s

    def slices(self) -> tuple[Slice, ...]:
        """What each device and link does in the planned step, and when."""
        if (staged := self.stages) is not None:
            return simulate_stages(staged.problem, staged.best.strategy, traced=True).slices
        assert self.split is not None
        return simulate(self.problem, self.split.best.strategy, traced=True).slices
