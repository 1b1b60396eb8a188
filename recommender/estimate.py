"""The result of a prediction: seconds with an 80 % interval, class by class, and what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

Z80 = 1.2815515655446004
"""An interval of this many standard deviations either side of the mean holds 80 % of a normal distribution."""


@dataclass(frozen=True)
class Range:
    """A number of seconds and its 80 % interval."""

    mean_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """The seconds of a predicted step by class; together they are the step.

    The classes are those of a measured step, with communication split in two. There is no straggler class, as all ranks
    are predicted alike.
    """

    compute_s: float
    data_s: float = 0.0
    h2d_s: float = 0.0
    interconnect_s: float = 0.0
    """The exposed communication if all ranks were in one machine."""
    network_s: float = 0.0
    """The exposed communication added by the network between machines."""
    other_s: float = 0.0
    bubble_s: float = 0.0
    """The time in which a pipeline's stages wait for each other by its schedule, or for one that is slower."""

    @property
    def largest(self) -> str:
        """The class that takes the most time."""
        return max(CLASSES, key=self.of)

    def of(self, name: str) -> float:
        """The seconds of a class."""
        seconds: float = getattr(self, f"{name}_s")
        return seconds


CLASSES = tuple(field.name.removesuffix("_s") for field in fields(StepTimes))

CARRIED = {"h2d": True, "other": False}
"""The classes that no model predicts, and whether they grow with the samples of a step. Their time is carried over from
a measured run."""


class WithTimes:
    """Mixin for a dataclass with a field `times`: `compute_s` is `times.compute_s`, or None without times."""

    def __init_subclass__(cls) -> None:
        if clash := {f"{name}_s" for name in CLASSES} & set(cls.__annotations__):
            raise TypeError(f"{cls.__name__}: {', '.join(sorted(clash))} would hide the class of a step of that name")

    def __getattr__(self, name: str) -> Any:
        if name.removesuffix("_s") not in CLASSES or not name.endswith("_s"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        times = self.__dict__["times"]
        return None if times is None else getattr(times, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(f"{name}_s" for name in CLASSES)})

    def values(self) -> dict[str, Any]:
        """All fields by name; `times` is replaced by one entry for each class."""
        values: dict[str, Any] = {}
        for field in fields(self):  # type: ignore[arg-type]
            names = [f"{name}_s" for name in CLASSES] if field.name == "times" else [field.name]
            values |= {name: getattr(self, name) for name in names}
        return values


@dataclass(frozen=True)
class ComputePhases:
    """The seconds of computation in a step, by phase; together they are `StepTimes.compute_s`."""

    forward_s: float
    backward_s: float
    optimizer_s: float


@dataclass(frozen=True)
class Estimate(WithTimes):
    """The predicted optimizer step of a job on a target, in seconds; `compute_s`, `data_s` and so on are those of
    `times`."""

    step_s: float
    low_s: float
    """Lower end of the 80 % interval of `step_s`."""
    high_s: float
    times: StepTimes
    extrapolated: bool
    """Whether the target lies outside what the coefficients were fitted on; the interval is wider."""
    basis: tuple[str, ...]
    """The sources and assumptions behind the numbers, one sentence each."""
    phases: ComputePhases | None = None
    """The computation by phase, where the operators of the step are known."""
    memory_gib: float | None = None
    """Memory of the GPU that needs most; None: not estimated here, see `ddlprof.recommender.compute.memory`."""
    fits_memory: bool | None = None
    """Whether that fits on the GPU, at least perhaps; None: not known."""
    tokens_per_s: float | None = None
    """Tokens that all GPUs train on in a second; None: not known."""
    mfu: float | None = None
    """Model FLOPs of the step without recomputation, over the dense peak of all GPUs; None: not known."""
    dimensions: Mapping[str, float] | None = None
    """Exposed communication (s) by the dimension of the layout: tensor, pipeline, context, expert, data; together they
    are `interconnect_s` and `network_s`. None: no layout."""
    memory_verdict: str | None = None
    """One of `ddlprof.recommender.compute.memory_fit.VERDICTS`; None: not known."""
    memory_fit_probability: float | None = None
    """The probability that it fits, from 0 to 1; None: not known."""


@dataclass(frozen=True)
class Suggestion:
    """The further measurement that would narrow the interval of a target most, for each dollar where it has a price."""

    placement: tuple[int, ...]
    batch_per_gpu: int
    share_now: float
    """How far the interval of the target's step now reaches above the step, as a share of it."""
    share_then: float
    """The same after the measurement."""
