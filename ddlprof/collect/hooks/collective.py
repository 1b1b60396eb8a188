"""One collective, and those that are under way on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ddlprof.base.real_time import time

_MOST_OPEN = 4096


class Collective:
    """One collective of this rank; times are nanoseconds on the monotonic clock, None while not known.

    `issued` is when the host did so; `ready` the same, or when the device could begin (`collective_durations`).
    """

    duration: int | None = None
    end: int | None = None
    need: int | None = None
    exposed: int | None = None
    way: Any = None
    """The stream it was issued on, if that does not tell by itself who waits for it."""
    address = 0
    """That of its output, which is all that `wait_tensor` gets."""
    followed = False
    """Whether its Work tells when it ends."""

    def __init__(
        self, group: str, seq: int, op: str, size: int, ranks: int, ready: int, root: int | None = None
    ) -> None:
        self.group = group
        self.seq = seq
        self.op = op
        self.bytes = size
        self.ranks = ranks
        self.issued = self.ready = ready
        self.root = root

    def done(self, _: Any) -> None:
        """Callback of the Work's future."""
        self.end = time.perf_counter_ns()


class UnderWay:
    """Collectives by Work object, kept until its end: the script gets the very same object to wait for."""

    def __init__(self) -> None:
        self.by_work: dict[Any, Collective] = {}
        self.heard: set[type] = set()
        """Classes of Works whose `wait` is ours."""

    def add(self, work: Any, collective: Collective, output: Any) -> None:
        """It has just been issued."""
        collective.address = output.data_ptr()
        self.by_work[work] = collective

    def follow(self, work: Any, collective: Collective) -> None:
        """Lets its future tell when it ends. That costs more than to note it: not for what is waited for at once."""
        with contextlib.suppress(Exception):  # no future: see `let_go` and `Waits.blocking`
            work.get_future().add_done_callback(collective.done)
            collective.followed = True

    def with_output(self, tensor: Any) -> tuple[Collective, ...] | None:
        """The newest one with that output; None where there is none."""
        address = tensor.data_ptr()
        return next(((each,) for each in reversed(self.by_work.values()) if each.address == address), None)

    def work_of(self, collective: Collective) -> Any:
        """Raises StopIteration where it is over."""
        return next(work for work, each in self.by_work.items() if each is collective)

    def see_ends(self) -> None:
        """The end of what has no callback is the first time that it is seen to be over."""
        for work, collective in list(self.by_work.items()):
            if collective.end is None and work.is_completed():
                collective.end = time.perf_counter_ns()

    def let_go(self) -> None:
        """Forgets what is over; does what `see_ends` does for what has no callback."""
        if len(self.by_work) >= _MOST_OPEN:  # a script that never waits
            self.by_work.clear()
        for work, collective in list(self.by_work.items()):
            if collective.end is None:
                if collective.followed or not work.is_completed():
                    continue
                collective.end = time.perf_counter_ns()
            self.by_work.pop(work, None)


def tensors(values: Any) -> Iterator[Any]:
    """Without asking a ScriptObject for an attribute that it lacks, which takes it ten microseconds to deny."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value


def whole_bytes(op: str, args: tuple[Any, ...], ranks: int) -> int:
    """What all the ranks have together: the largest argument, be it a tensor or a list of them.

    Of a gather or scatter only the root has such an argument, so it is every rank's own part, times the ranks.
    """
    sizes = []
    for value in args:
        if isinstance(value, (list, tuple)):
            sizes.append(value[0].nbytes if _is_one_tensor(value) else sum(each.nbytes for each in tensors(value)))
        elif isinstance(value, torch.Tensor):
            sizes.append(value.nbytes)
    if op in ("gather", "scatter"):
        return ranks * min(filter(None, sizes), default=0)
    return max(sizes, default=0)


def _is_one_tensor(values: Any) -> bool:
    return len(values) == 1 and isinstance(values[0], torch.Tensor)
