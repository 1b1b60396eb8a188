"""The classes of a step in one table, from which columns, sums, reports and words are derived.

A class has the same name everywhere, with its unit at the end: `data_fetch_ns` in a record, `data_fetch` where the unit
is given elsewhere, `data_fetch_s` in a file. docs/architecture.md, "Adding a class", says what a new line here needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClassPart:
    """A part of a class. It is not known in every step."""

    name: str
    is_recorded: bool = True
    """Whether a step's record contains the part. If not, the analysis computes it by comparing ranks."""
    is_stall: bool = False
    """Whether the part can bound a step by itself."""
    meaning: str = ""
    """What it is, in a few words."""


@dataclass(frozen=True, slots=True)
class StepClass:
    """One class. Every nanosecond of a step belongs to exactly one of them."""

    name: str
    meaning: str = ""
    """What it is, in a few words."""
    parts: tuple[ClassPart, ...] = ()
    is_optional: bool = False
    """Whether the class may be unmeasured; its time then belongs to another class."""
    is_stall: bool = True
    """Whether the class can bound a step as a stall. Computing cannot."""
    adds_up: bool = False
    """Whether the card shows the parts instead of the class if all of them are known."""
    words: str = ""
    """The name of the class in a sentence; empty: `name`."""
    own_words: str = ""
    """The name of the class as the cause of a late rank; empty if ranks wait for others in this class."""

    @property
    def part_names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    def short(self, part: str) -> str:
        """The name of a part without the prefix of its class: `fetch` for `data_fetch`."""
        return part.removeprefix(f"{self.name}_")


TABLE = (
    StepClass(
        "compute",
        "forward, loss, backward, clipping and the optimizer",
        parts=(ClassPart("compute_forward"), ClassPart("compute_backward"), ClassPart("compute_optimizer")),
        is_optional=True,
        is_stall=False,
        own_words="computing",
    ),
    StepClass(
        "data",
        "the loop waits for its next batch",
        parts=(
            ClassPart("data_fetch", meaning="of it, blocked on storage or network"),
            ClassPart("data_prep", meaning="of it, decoding, transforming, collating"),
        ),
        is_optional=True,
        words="waiting for data",
        own_words="data wait",
    ),
    StepClass(
        "h2d",
        "computing waits for copies to the device",
        is_optional=True,
        words="host-to-device copies",
        own_words="wait for copies",
    ),
    StepClass(
        "comm",
        "communication that computing waits for",
        parts=tuple(
            ClassPart(name, is_recorded=False, is_stall=True, meaning=meaning)
            for name, meaning in (
                ("interconnect", "what would remain if all ranks sat in one machine"),
                ("network", "the price of having gone over the network"),
                ("straggler", "waiting for a later rank to arrive"),
                ("bubble", "waiting for a neighbour in the pipeline, as its schedule has it"),
            )
        ),
        is_optional=True,
        adds_up=True,
        words="communication",
    ),
    StepClass(
        "other",
        "the rest: logging, checkpoints, evaluation, host gaps",
        parts=(
            ClassPart(
                "rollout",
                is_stall=True,
                meaning="of it, the model acts or generates for its training, with what goes on between",
            ),
        ),
        own_words="time in other",
    ),
)
"""The classes in the order shown. The parts of `compute` and of `comm` add up to the class where all are known. The
rest of `data` beside its parts is the hand-over of the batch. `rollout` is the time in which the model acts or
generates for its own training."""

CLASSES = tuple(each.name for each in TABLE)
"""The classes that partition a step."""

PARTS = {each.name: each.part_names for each in TABLE if each.parts}

COMM_PARTS = PARTS["comm"]

OPTIONAL = tuple(each.name for each in TABLE if each.is_optional)
"""The classes that may be unmeasured."""

TIMES = ("step", *(name for each in TABLE for name in (each.name, *each.part_names)))
"""The names of all times: the step, its classes and their parts."""

MEANINGS = {
    "step": "the whole step",
    **{
        name: meaning
        for each in TABLE
        for name, meaning in ((each.name, each.meaning), *((part.name, part.meaning) for part in each.parts))
    },
}
"""What each time is, in a few words."""

RECORDED = tuple(
    name for name in TIMES if name not in {part.name for each in TABLE for part in each.parts if not part.is_recorded}
)
"""The times in a step's record; each is a field `NAME_ns`."""

STALLS = tuple(
    name
    for each in TABLE
    for name, is_stall in ((each.name, each.is_stall), *((part.name, part.is_stall) for part in each.parts))
    if is_stall
)
"""The classes and parts that can bound a step."""

OWN = tuple(each.name for each in TABLE if each.own_words)
"""The classes in which a rank works itself; in the rest of its step it waits for others."""


def terms_of(is_known: Callable[[str], bool]) -> list[str]:
    """The classes that add up to the step; a class is replaced by its parts where all are known and add up to it."""
    names: list[str] = []
    for each in TABLE:
        if each.adds_up and each.parts and all(map(is_known, each.part_names)):
            names += each.part_names
        elif is_known(each.name):
            names.append(each.name)
    return names
