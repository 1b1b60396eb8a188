"""What `ddlprof fuse` found, without torch: times, predictions, measurements and trials. None: not measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddlprof.fusion.hyperparameters import Values


@dataclass(frozen=True)
class Prediction:
    """What training B models as one is expected to take, from steps of a few of them: T(B) = fixed + B x per model."""

    models: int
    """B."""
    points: tuple[tuple[int, float], ...]
    """Models trained as one, and seconds a step."""
    fixed_s: float
    per_model_s: float
    alone_s: float
    """A step of one model that trains by itself, on all threads."""
    beside: int | None = None
    """Processes side by side; None where that cannot be told from one process, as on a GPU."""
    one_thread_s: float | None = None
    """A step of one model that trains by itself with the threads that each of those processes would have."""

    @property
    def step_s(self) -> float:
        """A step of all models as one."""
        return self.fixed_s + self.models * self.per_model_s

    @property
    def gain(self) -> float:
        """Against one after another."""
        return self.models * self.alone_s / self.step_s

    @property
    def gain_beside(self) -> float | None:
        """Against `beside` processes, if they do not hold each other up."""
        if self.beside is None or self.one_thread_s is None:
            return None
        return self.models * self.one_thread_s / self.beside / self.step_s

    @property
    def launch_share(self) -> float:
        """The share of a step of one model that more models would not add to."""
        return self.fixed_s / (self.fixed_s + self.per_model_s)


@dataclass(frozen=True)
class Measured:
    """What a step took, measured on steps of each way in turns."""

    models: int
    fused_s: float
    alone_s: float
    """Of one model."""
    beside: int | None = None
    """Processes that trained side by side."""
    beside_s: float | None = None
    """One step of each of them, while all trained."""
    start_s: float | None = None
    """Until the last of these processes was ready to train."""

    @property
    def gain(self) -> float:
        """Against one after another."""
        return self.models * self.alone_s / self.fused_s

    @property
    def gain_beside(self) -> float | None:
        """Against processes side by side, their start left out."""
        if self.beside is None or self.beside_s is None:
            return None
        return self.models * self.beside_s / self.beside / self.fused_s


@dataclass(frozen=True)
class TrialGroup:
    """Trials that agree on everything that cannot differ within one training."""

    values: Values
    """What they agree on."""
    trials: tuple[int, ...]
    at_once: int = 1
    """The most models that trained as one."""
    fuse: bool = False
    reason: str = ""
    """Why they are fused, or are not."""
    prediction: Prediction | None = None
    measured: Measured | None = None
    training_s: float | None = None
    """What the training of all of them took."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """One combination of the sweep's values."""

    number: int
    values: Values
    fused: bool
    """Whether it trained together with others."""
    steps: int = 0
    loss: float | None = None
    """Of training, the mean over the last epoch, or over the last tenth of the steps."""
    eval_loss: float | None = None
    metric: float | None = None
    diverged: bool = False
    """Whether a loss was infinite or not a number."""


@dataclass(frozen=True)
class Result:
    """A sweep, trained or only predicted."""

    model: str
    optimizer: str
    device: str
    threads: int
    metric: str | None
    parts: list[TrialGroup]
    trials: list[Trial] = field(default_factory=list)
    trained: bool = False
