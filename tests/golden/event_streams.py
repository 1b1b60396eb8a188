"""Streams of events that are the same on every machine: training loops with all that a loop may have, and nonsense.

    python -m tests.golden.event_streams > tests/golden/event-streams-expected.jsonl

writes anew what the helper thread makes of them. That is for a change that means to change it, and for no other.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.collect.steps.loop import Gap
from ddlprof.collect.steps.no_grad import NoGradCalls, NoGradModule, Read
from ddlprof.model.blocks import LAYOUTS, BlockStream
from ddlprof.model.events import Event, FirstSeen, IterationStart, Kind
from ddlprof.model.records import StepRow
from ddlprof.writing.writer import RankWriter, rank_files
from tests.property.test_attribution import PAIRS, SINGLE, Tree, flatten
from tests.records import records_in
from tests.unit.writing.test_writer import header

STREAMS = 40
STEPS = 14


class Chance:
    """Draws by `random()` alone, whose numbers no version of Python changes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.features = {name for name in FEATURES if self.happens(0.3)}

    def happens(self, probability: float) -> bool:
        return self._random.random() < probability

    def number(self, below: int) -> int:
        return int(self._random.random() * below)

    def of(self, values: Any) -> Any:
        return values[self.number(len(values))]


FEATURES = (
    "no_loader", "shares", "copies", "comm", "accumulates", "checkpoints", "evaluates", "teacher", "acts", "zeroes",
    "gaps", "two_optimizers", "no_optimizer", "skips", "compiles", "unseen", "steps_in_backward", "lags", "unmeasured",
    "no_samples", "compiled", "unawaited",
)  # fmt: skip


class Loop:
    """Writes the events of a training loop, with times that are drawn."""

    def __init__(self, chance: Chance) -> None:
        self.events: list[Event] = []
        self.now = 1_000_000
        self._chance = chance
        self._student, self._teacher = NoGradModule(is_trained=True), NoGradModule()
        self._seen: set[int] = set()
        self._seq = 0

    def _has(self, feature: str, probability: float = 1.0) -> bool:
        return feature in self._chance.features and self._chance.happens(probability)

    def _spend(self) -> None:
        self.now += self._chance.number(3_000_000)

    def _emit(self, kind: Kind, a: Any = None, b: Any = None, c: Any = None) -> None:
        self.events.append((int(kind), self.now, a, b, c))
        self._spend()

    def _during(self, begin: Kind, end: Kind, a: Any = None, b: Any = None, c: Any = None) -> None:
        self._emit(begin)
        self._emit(end, a, b, c)

    def _batch(self, loader: int) -> None:
        samples = None if self._has("no_samples") else self._chance.of((4, 8, 8, 8, 0))
        self._emit(Kind.DATA_BEGIN, loader)
        made = (0.25, 0.5, self._chance.number(900), 70, self._chance.of((None, 9)), self._chance.of((None, 5)))
        told = None
        if self._has("shares"):
            told = made if self._chance.happens(0.5) else lambda: made
        self._emit(Kind.DATA_END, loader, told, samples)

    def _forward(self) -> None:
        mode = None if self._has("compiled") else True
        self._emit(Kind.FORWARD_BEGIN, True, mode, 8 if mode else lambda: 8)
        if self._has("copies", 0.5):
            self._during(Kind.H2D_BEGIN, Kind.H2D_END)
        self._emit(Kind.FORWARD_END, True)

    def _frozen(self, module: NoGradModule, training_mode: bool) -> None:
        read = self._chance.of((None, None, *Read))
        calls = NoGradCalls(module, training_mode, self._chance.of((8, 3)), read, self._chance.happens(0.2))
        told = self._chance.of((calls, lambda: calls, None))
        self._emit(Kind.FORWARD_BEGIN, False, self._chance.of((training_mode, training_mode, None)), told)
        self._emit(Kind.FORWARD_END, False)

    def _collectives(self) -> None:
        for _ in range(self._chance.number(3)):
            stream = "stream" if self._has("unawaited") else None
            self._seq += 1
            record = SimpleNamespace(
                group=self._chance.of("01"), seq=self._seq, op="allreduce", bytes=1024, ranks=2, root=None,
                ready=self.now, end=self._chance.of((None, self.now + 2_000_000)), need=None, exposed=None,
                stream=stream,
            )  # fmt: skip
            self._emit(Kind.COLLECTIVE, record)
        self._emit(Kind.COMM_BEGIN)
        waited = self._chance.of((None, None, [e[2] for e in self.events[-3:] if e[0] == Kind.COLLECTIVE]))
        bounded = self._chance.of((False, True, self.now - 500_000))
        self._emit(Kind.COMM_END, bounded, waited, self._chance.of((None, None, ("stream",))))

    def _gap(self) -> None:
        wall = self._chance.number(2_000_000)
        begin, end = (0, b""), (self._chance.number(wall + 1), b"")
        operators = self._chance.of((None, [(0, wall // 2)], lambda: [(wall // 4, wall // 3)]))
        self._emit(Kind.GAP, Gap((4, 5, 1), wall, begin, end, operators))

    def _backward(self) -> None:
        self._emit(Kind.BACKWARD_BEGIN, True if self._has("compiled", 0.3) else None)
        if self._has("steps_in_backward"):
            self._update(0)
        if self._has("comm"):
            self._collectives()
        self._emit(Kind.BACKWARD_END)

    def _update(self, optimizer: int) -> None:
        self._emit(Kind.OPTIMIZER_BEGIN, optimizer)
        first = None if optimizer in self._seen else FirstSeen("SGD", 100 + optimizer)
        self._seen.add(optimizer)
        skipped = self._has("skips", 0.3)
        self._emit(Kind.OPTIMIZER_END, optimizer, self._chance.of((skipped, lambda: skipped)), first)

    def step(self, index: int) -> None:
        """One step, or what this loop has instead."""
        if index % 6 == 0:
            self._emit(Kind.EPOCH, 0)
        if self._has("evaluates", 0.2):
            for _ in range(2):
                self._batch(1)
                self._frozen(self._student, False)
        for micro_batch in range(2 if "accumulates" in self._chance.features else 1):
            if "no_optimizer" in self._chance.features and micro_batch == 0 and index:
                self._emit(Kind.ITERATION, self._chance.of((IterationStart.LOADER, IterationStart.FORWARD)))
            if "no_loader" not in self._chance.features:
                self._batch(0)
            if self._has("zeroes"):
                self._during(Kind.ZERO_GRAD_BEGIN, Kind.ZERO_GRAD_END)
            if self._has("copies"):
                self._during(Kind.H2D_BEGIN, Kind.H2D_END)
            if self._has("teacher"):
                self._frozen(self._teacher, False)
            if self._has("acts", 0.5):
                self._frozen(self._student, self._chance.happens(0.5))
            self._forward()
            if self._has("gaps", 0.6):
                self._gap()
            self._backward()
        if self._has("unseen", 0.2):
            self._emit(Kind.UNSEEN, 2)
        if self._has("compiles", 0.2):
            self._emit(self._chance.of((Kind.COMPILE, Kind.TRACED)))
        if not {"no_optimizer", "steps_in_backward"} & self._chance.features:
            if self._has("two_optimizers"):
                self._update(1)
            self._update(0)
        if self._has("checkpoints", 0.3):
            self._during(Kind.CHECKPOINT_BEGIN, Kind.CHECKPOINT_END)


def _nonsense(chance: Chance) -> list[Event]:
    """Events in an order that no training has."""

    def trees(depth: int) -> list[Tree]:
        return [
            (chance.of([*PAIRS, *PAIRS, *SINGLE]), chance.number(10**6), chance.number(10**6),
             trees(depth - 1) if depth else [])
            for _ in range(chance.number(4))
        ]  # fmt: skip

    loop = [tree for _ in range(STEPS) for tree in trees(2)]
    events: list[Event] = []
    flatten([each if isinstance(each[0], tuple) else (*each[:3], []) for each in loop], events, 0)
    for _, _, record, *_ in events:
        if isinstance(record, SimpleNamespace):
            vars(record).update(group="0", seq=0, op="reduce", bytes=4, ranks=2, root=1, ready=0)
    return [(int(kind), *rest) for kind, *rest in events]


def streams(seeds: range = range(STREAMS)) -> Iterator[tuple[Chance, list[Event]]]:
    """The streams, and what was drawn for each."""
    for seed in seeds:
        chance = Chance(seed)
        if seed % 5 == 4:
            yield chance, _nonsense(chance)
            continue
        loop = Loop(chance)
        for index in range(STEPS):
            loop.step(index)
        yield chance, loop.events


def lines_of(chance: Chance, events: list[Event]) -> list[str]:
    """What is written of a stream: the lines of steps, all others, and the times of its collectives as the last."""
    assembler = StepAssembler(1_000_000)
    if "unmeasured" in chance.features:
        assembler.unmeasured.update(chance.of((("h2d", "comm"), ("data",), ("compute",))))
    writer = RankWriter(header())
    with tempfile.TemporaryDirectory() as folder:
        writer.open(Path(folder))
        for number, event in enumerate(events):
            if "lags" in chance.features and number % 5 == 0:
                assembler.lags(number)
            for step in assembler.feed(event):
                assembler.peak_memory_bytes = number
                _write(writer, assembler, step)
        for step in assembler.finish():
            _write(writer, assembler, step)
        for span in assembler.spans.take():
            writer.context(span)
        writer.close()
        text, steps = rank_files(Path(folder), 0, 0)
        rows = [_row(record) for tag, record in records_in(text) if tag == "s"]
        found, _ = BlockStream(LAYOUTS).take(steps.read_bytes())
        times = "".join(block.whole[block.times_at :].hex() for block in found)
        lines = text.read_text(encoding="utf-8").splitlines()[2:]
        return [*rows, *(line for line in lines if not line.startswith('["f"')), times]


def _row(row: StepRow) -> str:
    values = [getattr(row, field.name) for field in fields(StepRow)[:-1]]
    return json.dumps(["s", *values, *row.first_seqs], separators=(",", ":"))


def _write(writer: RankWriter, assembler: StepAssembler, step: Any) -> None:
    writer.step(step)
    writer.note(
        "step", f"{step.row.step} {step.start} {step.saw_forward} {step.unobserved} {step.marks} {step.unawaited}"
    )
    if (cost := assembler.loader_cost()) is not None:
        writer.context(cost)


if __name__ == "__main__":
    for each in streams():
        print(json.dumps(lines_of(*each), separators=(",", ":")))
