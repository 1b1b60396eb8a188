"""The classes of a step: one table, from which columns, sums, reports and words derive.

A name is the same everywhere and carries its unit at the end: `data_fetch_ns` in a record, `data_fetch` where the unit
is told elsewhere, `data_fetch_s` in a file. docs/architecture.md, "Adding a class", says what a new line here needs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClassPart:
    """A part of a class, known where it can be told apart."""

    name: str
    is_recorded: bool = True
    """Whether a step's record holds the part; otherwise the analysis finds it by comparing ranks."""
    is_stall: bool = False
    """Whether the part can bound a step by itself."""


@dataclass(frozen=True, slots=True)
class StepClass:
    """One class. Every nanosecond of a step belongs to exactly one of them."""

    name: str
    parts: tuple[ClassPart, ...] = ()
    is_optional: bool = False
    """Whether the class can be unmeasured: then its time is in another class."""
    is_stall: bool = True
    """Whether the class can bound a step as a stall; the opposite of a stall is computation."""
    adds_up: bool = False
    """Whether the card shows the parts in place of the class where all of them are known."""
    words: str = ""
    """What the class is called in a sentence, where its name will not do."""
    own_words: str = ""
    """What the class is called where it makes a rank late; empty for a class in which ranks wait for others."""

    @property
    def part_names(self) -> tuple[str, ...]:
        """The names of the class's parts."""
        return tuple(part.name for part in self.parts)

    def short(self, part: str) -> str:
        """The name of a part without the prefix of its class: `fetch` for `data_fetch`."""
        return part.removeprefix(f"{self.name}_")


TABLE = (
    StepClass(
        "compute",
        parts=(ClassPart("compute_forward"), ClassPart("compute_backward"), ClassPart("compute_optimizer")),
        is_optional=True,
        is_stall=False,
        own_words="computing",
    ),
    StepClass(
        "data",
        parts=(ClassPart("data_fetch"), ClassPart("data_prep")),
        is_optional=True,
        words="waiting for data",
        own_words="data wait",
    ),
    StepClass("h2d", is_optional=True, words="host-to-device copies", own_words="wait for copies"),
    StepClass(
        "comm",
        parts=tuple(
            ClassPart(name, is_recorded=False, is_stall=True) for name in ("interconnect", "network", "straggler")
        ),
        is_optional=True,
        adds_up=True,
        words="communication",
    ),
    StepClass("other", parts=(ClassPart("rollout", is_stall=True),), own_words="time in other"),
)
"""The classes in the order shown. The parts of `compute` and `comm` add up to it where they are known; what
those of `data` leave of it is the hand-over of the batch; `rollout` is when the model acts or generates for its
training."""

CLASSES = tuple(each.name for each in TABLE)
"""The classes that partition a step."""

PARTS = {each.name: each.part_names for each in TABLE if each.parts}

COMM_PARTS = PARTS["comm"]

OPTIONAL = tuple(each.name for each in TABLE if each.is_optional)
"""The classes that can be unmeasured."""

TIMES = ("step", *(name for each in TABLE for name in (each.name, *each.part_names)))
"""Everything that has a time."""

RECORDED = tuple(
    name for name in TIMES if name not in {part.name for each in TABLE for part in each.parts if not part.is_recorded}
)
"""The times that a step's record holds, each in a field called `NAME_ns`."""

STALLS = tuple(
    name
    for each in TABLE
    for name, is_stall in ((each.name, each.is_stall), *((part.name, part.is_stall) for part in each.parts))
    if is_stall
)
"""The classes and parts that can bound a step."""

OWN = tuple(each.name for each in TABLE if each.own_words)
"""The classes that make a rank late; the rest of its step is waiting."""
