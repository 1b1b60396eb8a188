"""Which event ends a step: the update of one optimizer, or, where none is seen, a round of the loop.

The first events are held back until the loop has shown its pattern: a loop with several optimizers (a GAN) would
otherwise end its first step more than once. They are held back again where an optimizer steps that took no turns with
the one that ends the steps: whether a phase of the training begins with it, such as the next model, is known when the
other one has stepped again, or has not for long. Nothing is held back where the other one existed no more. Knows no
torch; fed in order, by one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice

from ddlprof.model.events import Event, FirstSeen, IterationStart, Kind
from ddlprof.model.records import NONE_THAT_STEPPED

RETIRED_AFTER = 50
"""An anchor optimizer that has not stepped while others stepped this often no longer marks the steps: they are a phase
of their own."""
SETTLED_AFTER = 10
"""The pattern counts as known once one optimizer has stepped this often: by then, the others have mostly stepped too
(a critic is updated about five times before its generator is)."""
SETTLED_AFTER_NS = 3_000_000_000
"""After this time, two updates of one optimizer are enough, for loops with long steps. A phase has begun after
`SETTLED_AFTER` updates then, unless the optimizer has taken turns with the anchor."""
ROUNDS_WITHOUT_UPDATE = 300
"""After this many rounds (backward passes) without any update, rounds are steps: gradients are never accumulated over
so many."""
ROUNDS_WITHOUT_OPTIMIZER = 5
"""The same number if the script has made no optimizer at all."""
_ROUND_NOTES = {
    IterationStart.LOADER: (
        "no torch.optim optimizer was seen to step: each batch of the loader with a backward pass is a step"
    ),
    IterationStart.FORWARD: (
        "no torch.optim optimizer was seen to step: each forward after a backward pass begins a step"
    ),
}
_MOST_HELD = 50_000
_MOST_KNOWN = 10_000
"""The most optimizers that are remembered, the latest: a script may make one for each of its tasks."""
_MOST_NAMED = 20
"""The most optimizers that a note names."""
_IN_BACKWARD = -1
"""Stands for all optimizers that step inside backward."""


class StepBoundaries:
    """`admit` takes each event, and returns events once the pattern is known; `ends_step` and `rounds` then say which
    of them end steps.
    """

    def __init__(self, wanted: str | None = None) -> None:
        self.names: dict[int, str] = {}
        """Class of each optimizer that has stepped, of the latest `_MOST_KNOWN`."""
        self.anchor: int | None = None
        self.settled = False
        """Whether the pattern is known; `admit` need not be called any more then."""
        self.rounds: IterationStart | None = None
        """The kind of round that ends the steps; None if an optimizer does."""
        self._took_rounds: IterationStart | None = None
        self.optimizer_exists: Callable[[], bool] = lambda: True
        """Whether the script has made an optimizer."""
        self._asked = wanted
        self._wanted, _, number = (wanted or "").partition("#")
        self._wanted_number = int(number) if number else None
        self.updates = self.made_again = 0
        """The number of updates outside of backward, and of those that were the first of an optimizer that has the
        parameters of the one before it."""
        self.models: dict[int, str | None] = {}
        """Class of the model that each of them trains; None where not known."""
        self.sizes: dict[int, int] = {}
        """The number of parameters of each of them."""
        self._outlived: dict[int, int | None] = {}  # the anchor that did not exist any more when it was first seen
        self._numbers: dict[int, int] = {}
        self._classes: Counter[str] = Counter()
        self._since_anchor = self._most_since_anchor = 0  # updates of others, now and between two of the anchor
        self._held: list[Event] | None = []
        self._ends: Counter[int] = Counter()
        self._most_ends = 0  # of an optimizer that may mark steps
        self._order: list[int] = []  # of the updates that were held back
        self._replayed: list[int] = []
        self._former: set[int] = set()
        self._rounds: Counter[IterationStart] = Counter()
        self._in_backward = False
        self._turns: set[int] = set()  # the optimizers that take turns with the anchor
        self._doubted: int | None = None  # the anchor, while it is not known whether its phase has ended

    @property
    def new_share(self) -> float | None:
        """The share of the updates for which an optimizer was made anew."""
        return self.made_again / self.updates if self.updates else None

    def label(self, optimizer: int) -> str:
        """The optimizer's class, with a number where several of one class have stepped: `Adam#2`."""
        name = self.names[optimizer]
        return f"{name}#{self._numbers[optimizer]}" if self._classes[name] > 1 else name

    def note(self) -> str | None:
        """A note for the report on how steps were told apart; None if it was done in the usual way."""
        if self._took_rounds is not None:
            return _ROUND_NOTES[self._took_rounds]
        if self._wanted and self.names and self.anchor is None:
            named = islice(self.names, _MOST_NAMED)
            seen = ", ".join(f"{self.label(each)} (parameters: {self.sizes[each]:,})" for each in named)
            more = self._classes.total() - _MOST_NAMED
            seen += f" and {more:,} more" if more > 0 else ""
            return f"--step-optimizer {self._asked} {NONE_THAT_STEPPED}: {seen}"
        return None

    def admit(self, event: Event) -> list[Event]:
        """The event and those held back before it; empty while the pattern is not known."""
        held = self._held
        if held is None:
            return [event]
        held.append(event)
        self._watch(event)
        return self.settle() if self._pattern_is_known(event[1]) else []

    def doubt(self, event: Event) -> None:
        """Takes the end of an update outside of backward, and begins to hold events back, this one first, if it may be
        the first of another phase of the training.
        """
        optimizer, first_seen = event[2], event[4]
        if self.anchor is None or optimizer == self.anchor or self._replayed:
            return
        if optimizer in self._turns and self._since_anchor < self._most_since_anchor:
            return
        if first_seen is not None:
            self.learn(optimizer, first_seen)
        if self._may_mark(optimizer) and not self._takes_over(optimizer):
            self._held, self._doubted, self._in_backward = [], self.anchor, False
            self.settled = False

    def settle(self) -> list[Event]:
        """Decides what ends steps from the events seen so far; returns the events that were held back."""
        held, self._held = self._held, None
        self.settled = True
        if held is None:
            return []
        self._replayed, self._order = [each for each in self._order if self._may_mark(each)], []
        groups = self._groups()
        self._former = {self._marks(group) for group in groups}
        if groups:
            anchor = self._marks(groups[-1])
            self._turns = {*groups[-1], *(self._turns if anchor == self.anchor else ())}
            self._most_since_anchor = self._most_since_anchor if anchor == self.anchor else 0
            self.anchor = anchor
        self._doubted = None
        if not self._ends and not self._wanted and self._rounds:
            by_loader = self._rounds[IterationStart.LOADER]
            self.rounds = self._took_rounds = (
                IterationStart.LOADER
                if 2 * by_loader >= self._rounds[IterationStart.FORWARD]
                else IterationStart.FORWARD
            )
        return held

    def ends_step(self, optimizer: int) -> bool:
        """Whether the end of this optimizer's update, outside of backward, ends a step.

        A new optimizer that owns at least as many parameters takes over as the anchor: it belongs to another model or
        another phase. So does one of those that take turns with the anchor after that has not stepped for
        `RETIRED_AFTER` updates. Any other one begins a phase, of which `settle` knows.
        """
        self.updates += 1
        if not self._may_mark(optimizer):
            return False
        if self._replayed:
            self._replayed.pop()
            ends = optimizer in self._former
            self._count(ends)
            return ends
        self.rounds = None  # there is an optimizer after all
        takes_over = self.anchor is None or self._takes_over(optimizer) or self._since_anchor >= RETIRED_AFTER
        self._ends[optimizer] += 1
        if optimizer != self.anchor and takes_over:
            self.anchor, self._turns = optimizer, {optimizer}
            self._since_anchor = self._most_since_anchor = 0
        self._count(optimizer == self.anchor)
        return optimizer == self.anchor

    def _count(self, ends: bool) -> None:
        """Counts the updates between two that end steps."""
        if ends:
            self._most_since_anchor = max(self._most_since_anchor, self._since_anchor)
        self._since_anchor = 0 if ends else self._since_anchor + 1

    def learn(self, optimizer: int, seen: FirstSeen) -> None:
        """Notes what is known of an optimizer that is seen for the first time."""
        if optimizer in self.names:
            return
        self._classes[seen.name] += 1
        self._numbers[optimizer] = self._classes[seen.name]
        self.names[optimizer], self.sizes[optimizer] = seen.name, seen.parameters
        self.models[optimizer] = seen.model
        if seen.alive is not None and self.anchor not in seen.alive:
            self._outlived[optimizer] = self.anchor
        if self.settled and len(self.names) > _MOST_KNOWN:
            oldest = next(each for each in self.names if each != self.anchor)
            for known in (self.names, self.models, self.sizes, self._numbers, self._ends, self._outlived):
                known.pop(oldest, None)
            self._turns.discard(oldest)

    def lost(self, updates: Mapping[int | None, int], first_seen: Mapping[int, FirstSeen]) -> int:
        """Takes what is known of lost events (`Kind.LOST`), and returns how many steps probably ended there: as many as
        the anchor made updates, or one that has taken over.
        """
        for optimizer, seen in first_seen.items():
            self.learn(optimizer, seen)
        if self.rounds is not None:
            return updates.get(None, 0)
        counts = {each: count for each, count in updates.items() if each is not None}
        if self.anchor in counts or (self.anchor is not None and sum(counts.values()) < RETIRED_AFTER):
            return counts.get(self.anchor, 0)
        return max(counts.values(), default=0)

    def _groups(self) -> list[list[int]]:
        """Groups of optimizers that take turns. Groups that follow one another are phases of the training.

        An anchor in doubt has stepped before the events that were held back.
        """
        groups: list[dict[int, None]] = []
        order = self._replayed if self._doubted is None else [self._doubted, *self._replayed]
        last = {optimizer: place for place, optimizer in enumerate(order)}
        until = -1
        for place, optimizer in enumerate(order):
            if place > until:
                groups.append({})
            groups[-1][optimizer] = None
            until = max(until, last[optimizer])
        return [list(group) for group in groups]

    def _marks(self, group: list[int]) -> int:
        """The optimizer of a group whose updates end steps."""
        return self._doubted if self._doubted in group else self._largest(group)

    def _takes_over(self, optimizer: int) -> bool:
        """Whether this is a new optimizer with at least as many parameters as the anchor's, or one that was first seen
        when the anchor's existed no more."""
        return not self._ends[optimizer] and self._is_later(optimizer)

    def _is_later(self, optimizer: int) -> bool:
        if self._outlived.get(optimizer, -1) == self.anchor:
            return True
        return self.sizes.get(optimizer, 0) >= self.sizes.get(self.anchor, 0)  # type: ignore[arg-type]

    def _largest(self, group: list[int]) -> int:
        """The optimizer with the most parameters; among equals the last one, as the generator's update ends a step."""
        return max(reversed(group), key=lambda each: self.sizes.get(each, 0))

    def _may_mark(self, optimizer: int) -> bool:
        if not self._wanted:
            return True
        named = self.names.get(optimizer) == self._wanted
        return named and self._wanted_number in (None, self._numbers[optimizer])

    def _watch(self, event: Event) -> None:
        kind, _, a, _, first_seen = event
        if kind == Kind.BACKWARD_BEGIN:
            self._in_backward = True
        elif kind == Kind.BACKWARD_END:
            self._in_backward = False
        elif kind == Kind.ITERATION:
            self._rounds[a] += 1
        elif kind == Kind.LOST:
            self._in_backward = False
        elif kind == Kind.OPTIMIZER_END:
            if first_seen is not None:
                self.learn(a, first_seen)
            steps = _IN_BACKWARD if self._in_backward else a
            self._ends[steps] += 1
            if self._counts(steps):
                self._most_ends = max(self._most_ends, self._ends[steps])
            if not self._in_backward:
                self._order.append(a)

    def _pattern_is_known(self, time: int) -> bool:
        assert self._held is not None
        if len(self._held) >= _MOST_HELD:
            return True
        if self._doubted is not None:
            return self._doubt_is_over(time)
        most = self._most_ends
        if most >= SETTLED_AFTER or (most >= 2 and time - self._held[0][1] >= SETTLED_AFTER_NS):
            return True
        rounds = max(self._rounds.values(), default=0)
        if self._ends or rounds < ROUNDS_WITHOUT_OPTIMIZER:
            return False
        return rounds >= ROUNDS_WITHOUT_UPDATE or not self.optimizer_exists()

    def _doubt_is_over(self, time: int) -> bool:
        """Whether the anchor steps again, or others have stepped so often or are so large that a phase has begun."""
        assert self._held
        kind, _, optimizer, *_ = self._held[-1]
        if kind != Kind.OPTIMIZER_END or self._in_backward:
            return kind == Kind.LOST
        if optimizer == self._doubted or self._since_anchor + len(self._order) >= RETIRED_AFTER:
            return True
        often = optimizer not in self._turns and len(self._order) >= SETTLED_AFTER
        if often and time - self._held[0][1] >= SETTLED_AFTER_NS:
            return True
        return self._ends[optimizer] == 1 and self._is_later(optimizer) and self._may_mark(optimizer)

    def _counts(self, optimizer: int) -> bool:
        return self._may_mark(optimizer) if optimizer != _IN_BACKWARD else not self._wanted
