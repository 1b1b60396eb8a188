"""Compares torch's own count of collectives with what the hooks saw, once a step.

A process group of gloo or NCCL numbers its collectives. Both counts differ by habit (a barrier may count twice, what
is coalesced once), so one thing only is a sure sign: torch counted in a step, and the hooks saw nothing. The
communication of such a step is not measured, rather than 0. Other backends do not count; nor do symmetric memory and
collectives that a CUDA graph replays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

import torch.distributed as dist

from ddlprof.collect.drops import COUNT
from ddlprof.collect.hooks.issuing import Issuing
from ddlprof.collect.install import Uninstall
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind
from ddlprof.torch_private import collectives as private

MOST_GROUPS = 16
"""Reading a number takes some tenths of a microsecond; of the many groups of a mesh, the hooks see all or none."""


class TorchCount:
    """`seen(name)`: collectives that the hooks saw in a group; `groups()`: the groups there are, with names."""

    def __init__(self, seen: Callable[[str], int], groups: Callable[[], Mapping[Any, str]]) -> None:
        self._seen = seen
        self._groups = groups  # asked anew each time: a group that is kept here could not be destroyed
        self._counts: dict[str, tuple[int, int]] = {}
        self._silent: set[str] = set()

    def unseen(self) -> int:
        """How many collectives torch has counted since the last call, in groups in which the hooks saw none."""
        unseen = 0
        for group, name in islice(self._groups().items(), MOST_GROUPS):
            if name in self._silent:
                continue
            try:
                theirs, ours = private.issued_in(group), self._seen(name)
            except Exception:  # a backend that does not count, or a group that this rank is not in
                self._silent.add(name)
                continue
            theirs_before, ours_before = self._counts.get(name, (theirs, ours))
            self._counts[name] = theirs, ours
            if ours == ours_before:
                unseen += max(theirs - theirs_before, 0)  # less: another group of the same name
        return unseen


def compare_counts(recorder: Recorder, seen: Callable[[str], int], issuing: Issuing) -> Uninstall:
    """Runs before each update, in the training thread: tells where torch counted collectives of which none was seen."""

    said = False

    def compare() -> None:
        nonlocal said
        try:
            issuing.tidy()
            if not said and private.symmetric_memory_in_use():
                said = True
                recorder.note("comm", private.SYMMETRIC_UNSEEN)
            if unseen := count.unseen():
                recorder.emit(Kind.UNSEEN, unseen)
                issuing.move()  # from now on they may be seen
        except Exception as error:
            recorder.drops.add(COUNT, error)
            forget()

    def forget() -> None:
        recorder.before_update = None

    try:
        count = TorchCount(seen, lambda: private.group_names(dist))
        count.unseen()  # what there was before the hooks
        recorder.before_update = compare
    except Exception as error:  # private names of torch: without them nothing is compared
        recorder.drops.add(COUNT, error)
        forget()
    return forget
