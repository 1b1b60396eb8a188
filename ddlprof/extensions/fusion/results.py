"""The results of `ddlprof fuse`, without torch: times, predictions, measurements and trials. None: not measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddlprof.extensions.fusion.hyperparameters import Values

DIVERGED, HALVING = "diverged", "halving"
"""Why a trial was stopped: its parameters are no numbers any more, or others were better."""


@dataclass(frozen=True)
class FusionPrediction:
    """A prediction of training B models as one, from steps of a few models: T(B) = fixed + B x per model."""

    models: int
    """The number of models, B."""
    points: tuple[tuple[int, float], ...]
    """Pairs of a number of models trained as one and the seconds of their step."""
    fixed_s: float
    per_model_s: float
    alone_s: float
    """Seconds of a step of one model that trains alone, on all threads."""
    beside: int | None = None
    """The number of processes side by side; None if these cannot be predicted from one process, as on a GPU."""
    one_thread_s: float | None = None
    """Seconds of a step of one model that trains alone with the threads of one of these processes."""

    @property
    def step_s(self) -> float:
        """Seconds of a step of all models as one."""
        return self.fixed_s + self.models * self.per_model_s

    @property
    def gain(self) -> float:
        """How many times as fast as one model after another."""
        return self.models * self.alone_s / self.step_s

    @property
    def gain_beside(self) -> float | None:
        """How many times as fast as `beside` processes that do not slow each other down."""
        if self.beside is None or self.one_thread_s is None:
            return None
        return self.models * self.one_thread_s / self.beside / self.step_s

    @property
    def launch_share(self) -> float:
        """The share of a step of one model that does not grow with the number of models."""
        return self.fixed_s / (self.fixed_s + self.per_model_s)


@dataclass(frozen=True)
class FusionTimes:
    """The measured seconds of steps; steps of each way were run in turns."""

    models: int
    fused_s: float
    alone_s: float
    """Seconds of a step of one model alone."""
    beside: int | None = None
    """The number of processes that trained side by side."""
    beside_s: float | None = None
    """Seconds of a step of each of them while all trained."""
    start_s: float | None = None
    """Seconds until the last of these processes was ready to train."""

    @property
    def gain(self) -> float:
        """How many times as fast as one model after another."""
        return self.models * self.alone_s / self.fused_s

    @property
    def gain_beside(self) -> float | None:
        """How many times as fast as processes side by side, without the time of their start."""
        if self.beside is None or self.beside_s is None:
            return None
        return self.models * self.beside_s / self.beside / self.fused_s


@dataclass(frozen=True)
class EqualityCheck:
    """The first steps of trials that train as one, compared with those of each by itself."""

    steps: int
    """How many steps were compared; 0: models draw random numbers of their own, so they cannot be."""
    largest_difference: float | None
    """Of a loss, as a share of it."""


@dataclass(frozen=True)
class TrialGroup:
    """Trials that agree on everything that must be equal within one training."""

    values: Values
    """The values on which they agree."""
    trials: tuple[int, ...]
    at_once: int = 1
    """The most models that were trained as one."""
    fuse: bool = False
    reason: str = ""
    """Why they are fused or not."""
    prediction: FusionPrediction | None = None
    measured: FusionTimes | None = None
    equality: EqualityCheck | None = None
    training_s: float | None = None
    """Seconds of the training of all of them."""
    peak_memory_bytes: int | None = None
    """The most bytes that tensors had on the CUDA device while they trained."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One combination of the sweep's values."""

    number: int
    values: Values
    fused: bool
    """Whether it was trained together with others."""
    steps: int = 0
    loss: float | None = None
    """The mean training loss of the last epoch, or of the last tenth of the steps."""
    eval_loss: float | None = None
    metric: float | None = None
    diverged: bool = False
    """Whether a loss was infinite or NaN."""
    stopped: str = ""
    """Why it ended before the others, `diverged` or `halving`; empty if it did not."""


@dataclass(frozen=True)
class Result:
    """A sweep that was trained, or only predicted."""

    model: str
    optimizer: str
    device: str
    threads: int
    metric: str | None
    parts: list[TrialGroup]
    trials: list[Trial] = field(default_factory=list)
    trained: bool = False
    precision: str = "fp32"
