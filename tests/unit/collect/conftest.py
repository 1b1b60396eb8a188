"""A made-up training thread: says what happens and for how long, and has the assembler take it apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.model.classes import CLASSES, PARTS
from ddlprof.model.events import Event, FirstSeen, Kind
from ddlprof.model.records import Flag, StepRow
from ddlprof.writing.writer import FinishedStep

MS = 1_000_000
SMALL, LARGE = 10, 1000
CLASSES_AND_DATA = (*CLASSES, *PARTS["data"])


def ms(row: StepRow) -> dict[str, Any]:
    """The classes of a step, and the parts of `data`, that are not 0, in milliseconds."""
    values = {name.removeprefix("data_"): getattr(row, f"{name}_ns") for name in CLASSES_AND_DATA}
    return {name: value and value / MS for name, value in values.items() if value != 0}


def parts_ms(row: StepRow) -> list[Any]:
    """Forward, backward and optimizer, in milliseconds; None where they cannot be told."""
    return [value and value / MS for value in (getattr(row, f"{name}_ns") for name in PARTS["compute"])]


def flags(row: StepRow) -> str:
    return Flag(row.flags).text()


class Thread:
    """Every method that takes `ms` lets that much time pass; `rows` are the steps that ended."""

    def __init__(self, step_optimizer: str | None = None, start: int = 5 * MS) -> None:
        self.assembler = StepAssembler(origin=0, step_optimizer=step_optimizer)
        self.now = start
        self.events: list[Event] = []
        self.steps: list[FinishedStep] = []
        self._optimizers: set[int] = set()

    @property
    def rows(self) -> list[Any]:
        """All steps that have ended; from now on the pattern of the loop is taken as known."""
        self.steps += self.assembler.finish()
        return [step.row for step in self.steps]

    def emit(self, kind: Kind, a: Any = None, b: Any = None, c: Any = None) -> None:
        event = (kind, self.now, a, b, c)
        self.events.append(event)
        self.steps += self.assembler.feed(event)

    def spend(self, ms: float) -> None:
        self.now += round(ms * MS)

    @contextmanager
    def during(self, begin: Kind, end: Kind, begin_with: Any = (), end_with: Any = ()) -> Iterator[None]:
        self.emit(begin, *begin_with)
        yield
        self.emit(end, *end_with)

    def iterate(self, ms: float = 0, loader: int = 0) -> None:
        with self.during(Kind.DATA_BEGIN, Kind.DATA_END, (loader,), (loader, None, 0)):
            self.emit(Kind.EPOCH, loader)
            self.spend(ms)

    def batch(self, ms: float, loader: int = 0, delivery: Any = None, samples: int | None = 4) -> None:
        with self.during(Kind.DATA_BEGIN, Kind.DATA_END, (loader,), (loader, delivery, samples)):
            self.spend(ms)

    def forward(self, ms: float, grad: bool = True, training: bool = True, samples: int | None = 4) -> None:
        with self.during(Kind.FORWARD_BEGIN, Kind.FORWARD_END, (grad, training, samples), (grad,)):
            self.spend(ms)

    def backward(self, ms: float) -> None:
        with self.during(Kind.BACKWARD_BEGIN, Kind.BACKWARD_END):
            self.spend(ms)

    def zero_grad(self, ms: float) -> None:
        with self.during(Kind.ZERO_GRAD_BEGIN, Kind.ZERO_GRAD_END):
            self.spend(ms)

    @contextmanager
    def updating(
        self,
        optimizer: int = 0,
        skipped: Any = False,
        name: str = "SGD",
        size: int = LARGE,
        model: str | None = None,
        alive: frozenset[int] | None = None,
        made_again: bool = False,
    ) -> Iterator[None]:
        first_seen = None if optimizer in self._optimizers else FirstSeen(name, size, model, alive, made_again)
        self._optimizers.add(optimizer)
        with self.during(Kind.OPTIMIZER_BEGIN, Kind.OPTIMIZER_END, (optimizer,), (optimizer, skipped, first_seen)):
            yield

    def update(self, ms: float, optimizer: int = 0, **details: Any) -> None:
        with self.updating(optimizer, **details):
            self.spend(ms)

    def step(self, data: float = 10) -> None:
        """A plain step: its computation takes 60 ms."""
        self.batch(data)
        self.forward(20)
        self.backward(30)
        self.update(10)


@pytest.fixture
def thread() -> Thread:
    return Thread()
