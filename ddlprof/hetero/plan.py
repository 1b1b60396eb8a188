"""The plan of a job beside the uniform ones, each with its step; and the plan as a file."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.hetero.problem import Problem, Strategy
from ddlprof.hetero.search import EVALUATIONS, fits, search
from ddlprof.hetero.simulation import Step, simulate
from ddlprof.hetero.uniform import uniform


@dataclass(frozen=True)
class Planned:
    """One way to train, and its step."""

    name: str
    strategy: Strategy
    step: Step | None
    """None: it does not fit into the memory of a device."""


@dataclass(frozen=True)
class Plan:
    """The best way that was found, beside those that need no search."""

    problem: Problem
    best: Planned
    uniform: tuple[Planned, ...]

    @property
    def gain(self) -> float | None:
        """How many times as fast the best is as the best uniform plan; None: none of those fits."""
        steps = [each.step.step_s for each in self.uniform if each.step is not None]
        assert self.best.step is not None
        return min(steps) / self.best.step.step_s if steps else None


def make_plan(problem: Problem, seed: int = 0, evaluations: int = EVALUATIONS) -> Plan:
    """Searches. Raises `UserError` where the batch fits on no devices."""
    best = search(problem, seed, evaluations)
    return Plan(
        problem,
        Planned("plan", best, simulate(problem, best)),
        tuple(
            Planned(name, strategy, simulate(problem, strategy) if fits(problem, strategy) else None)
            for name, strategy in uniform(problem).items()
        ),
    )
