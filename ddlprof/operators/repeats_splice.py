"""Puts the operators and storages of a recorded block in the places of the equal blocks that were left out.

Times are numbers of operators, as everywhere in a trace. A block that was left out took one, in which its tensors were
made; it gets as many as the recorded one took.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING

from ddlprof.operators.trace_memory import Storage
from ddlprof.operators.trace_operators import Access, OperatorCall
from ddlprof.operators.trace_repeats import BlockWindow, NotEqual, RepeatedBlocks, Seen

if TYPE_CHECKING:
    from ddlprof.operators.trace_recorder import OperatorTracer


@dataclass
class _Copy:
    """A window that is to be filled like another one."""

    place: BlockWindow
    source: BlockWindow
    numbers: dict[int, int]
    """The storages there by those of the recorded block."""

    @property
    def added(self) -> int:
        """The operators that come to the one that it has."""
        return self.source.times[1] - self.source.times[0] - 1


@dataclass(frozen=True)
class _Clock:
    """Times before and after the windows are filled."""

    ticks: list[int]
    added: list[int]
    """By the first, the second, ... of these windows."""

    def shifted(self, time: int) -> int:
        """A time outside of the windows."""
        before = bisect_right(self.ticks, time)
        return time + (self.added[before - 1] if before else 0)

    def inside(self, copy: _Copy, time: int) -> int:
        """The time in a copy of what happened in its source at `time`."""
        tick = copy.place.times[0]
        return self.shifted(tick - 1) + time - copy.source.times[0]


def splice(groups: list[RepeatedBlocks], recorder: OperatorTracer, saved: list[int], gradients: set[int]) -> list[int]:
    """Changes the calls and the storages of `recorder`; returns `saved`, the storages alive after forward, with those
    of the added blocks. `gradients` are the storages of the parameters' gradients.

    Raises NotEqual where the recorded blocks of a group are not the same, or more is needed than was recorded.
    """
    for group in groups:
        _check(group, recorder)
    _check_inputs(groups, recorder)
    done = _Splice(groups, recorder, set(saved), gradients)
    done.run()
    return [*saved, *done.saved]


def _check(group: RepeatedBlocks, recorder: OperatorTracer) -> None:
    """Raises unless both recorded blocks are equal, and those left out have what they have."""
    if len(group.recorded) != 2 or group.run != len(group.members):
        raise NotEqual("not all blocks ran")
    first, last = group.recorded
    if _signature(first, recorder) != _signature(last, recorder):
        raise NotEqual("the second and the last block are not equal")
    if any((seen.backward is None) != (first.backward is None) for seen in group.left_out):
        raise NotEqual("backward does not reach all blocks")


def _check_inputs(groups: list[RepeatedBlocks], recorder: OperatorTracer) -> None:
    """Raises where a block uses an input several times, and something else uses it too: autograd would add up the
    gradients in another order than with the block left out."""
    reads = Counter(access.storage for call in recorder.calls if call.phase == "forward" for access in call.reads)
    for group in groups:
        for seen in group.left_out:
            reads.update(_windows(seen)[0].given)
        for window in (*group.first, *(_windows(seen)[0] for seen in group.recorded)):
            made = range(*window.storages)  # before the block returned it
            calls = recorder.calls[slice(*window.calls)]
            reads.subtract(access.storage for call in calls for access in call.reads if access.storage in made)
    for group in groups:
        source = group.recorded[0]
        (first, last), given = _windows(source)[0].calls, _windows(source)[0].given
        inside = Counter(access.storage for call in recorder.calls[first:last] for access in call.reads)
        for seen in (source, *group.left_out):
            for mine, there, shape in zip(given, _windows(seen)[0].given, source.inputs, strict=True):
                own = inside[mine] if seen is source else 1
                if shape.trained and inside[mine] > 1 and reads[there] > own:
                    raise NotEqual("an input is used elsewhere too")


def _signature(seen: Seen, recorder: OperatorTracer) -> object:
    """All that has to be equal in two equal blocks."""
    calls = [
        [(c.phase, c.name, c.kind, c.dtype, c.shape, c.flops, c.launches, c.by_rows, c.bytes) for c in
         recorder.calls[slice(*window.calls)]] for window in _windows(seen)
    ]  # fmt: skip
    outer = {number for window in _windows(seen) for number in (*window.given, *window.made)}
    made = [
        (each.bytes, each.weight, each.outside, _place(seen, each.born), _place(seen, each.gone))
        for number in _made(seen) if number not in outer for each in [recorder.storages.all[number]]
    ]  # fmt: skip
    return calls, made, seen.asked, seen.opaque, seen.shape, seen.inputs


def _windows(seen: Seen) -> list[BlockWindow]:
    return [window for window in (seen.forward, seen.backward) if window is not None]


def _made(seen: Seen) -> Iterator[int]:
    """The storages that appeared while the block ran."""
    return chain.from_iterable(range(*window.storages) for window in _windows(seen))


def _place(seen: Seen, time: int | None) -> tuple[int, int] | None:
    """The window of a time, and the operators since its begin; None outside."""
    for number, window in enumerate(_windows(seen)):
        if time is not None and window.times[0] <= time <= window.times[1]:
            return number, time - window.times[0]
    return None


class _Splice:
    def __init__(
        self, groups: list[RepeatedBlocks], recorder: OperatorTracer, saved: set[int], gradients: set[int]
    ) -> None:
        self._groups, self._recorder, self._gradients = groups, recorder, gradients
        self._before = recorder.storages.all
        self._was_saved = saved
        self.saved: list[int] = []
        self._ends: dict[int, int] = {}
        """When storages end that a block left out would have kept."""

    def run(self) -> None:
        """Changes the recorder."""
        copies = [copy for group in self._groups for seen in group.left_out for copy in self._copies(group, seen)]
        copies.sort(key=lambda copy: copy.place.times[0])
        self._clock = _Clock([copy.place.times[0] for copy in copies], list(accumulate(copy.added for copy in copies)))
        shifted = self._clock.shifted
        self._after = [
            replace(each, born=shifted(each.born), gone=None if each.gone is None else shifted(each.gone))
            for each in self._before
        ]
        by_place = {id(copy.place): copy for copy in copies}
        for group in self._groups:
            for seen in group.left_out:
                self._fill(group, seen, [by_place[id(window)] for window in _windows(seen)])
        for number, time in self._ends.items():
            self._after[number].gone = time
        self._recorder.calls = list(self._calls(copies))
        self._recorder.storages.all = self._after

    def _copies(self, group: RepeatedBlocks, seen: Seen) -> Iterator[_Copy]:
        source, numbers = group.recorded[0], self._outer(group.recorded[0], seen)
        for place, window in zip(_windows(seen), _windows(source), strict=True):
            yield _Copy(place, window, numbers)

    def _outer(self, source: Seen, seen: Seen) -> dict[int, int]:
        """The storages of a block left out that exist, by those of the recorded one."""
        number = self._recorder.storages.number
        found: dict[int, int] = {}
        for mine, other in zip(_windows(source), _windows(seen), strict=True):
            found.update(zip([*mine.given, *mine.made], [*other.given, *other.made], strict=True))
        for one, two in zip(source.block.buffers(), seen.block.buffers(), strict=True):
            found[number(one)] = number(two)
        for one, two in zip(source.block.parameters(), seen.block.parameters(), strict=True):
            found[number(one)] = number(two)
            if (one.grad is None) != (two.grad is None):
                raise NotEqual("a parameter has no gradient")
            if one.grad is not None:
                found[number(one.grad)] = number(two.grad)
        return found

    def _fill(self, group: RepeatedBlocks, seen: Seen, copies: list[_Copy]) -> None:
        """Adds the storages of one block, and corrects those at its borders."""
        source, numbers, added = group.recorded[0], copies[0].numbers, []
        for number in _made(source):
            each = self._before[number]
            if number in numbers or each.outside:
                continue
            numbers[number] = len(self._after)
            added.append(numbers[number])
            born = self._time(source, copies, each.born)
            gone = None if each.gone is None else self._time(source, copies, each.gone, group)
            self._after.append(Storage(each.bytes, born, False, each.weight, gone, each.cast_of, seen.number))
            if number in self._was_saved:
                self.saved.append(numbers[number])
        for number in added:
            cast = self._after[number].cast_of
            self._after[number].cast_of = None if cast is None else numbers.get(cast, cast)
        self._correct(group, seen, copies)
        for name, count in source.opaque.items():
            self._recorder.opaque[name] = self._recorder.opaque.get(name, 0) + count
        self._recorder.values.asked += source.asked

    def _time(self, source: Seen, copies: list[_Copy], time: int, group: RepeatedBlocks | None = None) -> int:
        place = _place(source, time)
        if place is not None:
            copy = copies[place[0]]
            return self._clock.inside(copy, time)
        if group is not None and _after_all(group, time):
            return self._clock.shifted(time)
        raise NotEqual("a block keeps something until another one")

    def _correct(self, group: RepeatedBlocks, seen: Seen, copies: list[_Copy]) -> None:
        """Storages at the borders begin and end as those of the recorded blocks do."""
        windows = [_windows(each) for each in (*group.recorded, seen)]
        for mine, last, own in zip(*windows, strict=True):
            for number, other, there in zip(
                [*mine.given, *mine.made], [*last.given, *last.made], [*own.given, *own.made], strict=True
            ):
                if there >= 0 and not self._before[there].outside:
                    self._end(group, (number, other), there, copies)
        made = set(_made(group.recorded[0]))
        for number, there in copies[0].numbers.items():
            if number in made and 0 <= there < len(self._before) and not self._before[there].outside:
                self._after[there].born = self._time(group.recorded[0], copies, self._before[number].born)

    def _end(self, group: RepeatedBlocks, numbers: tuple[int, int], there: int, copies: list[_Copy]) -> None:
        """When a storage ends that a block left out was given, or made, by those of the recorded blocks."""
        own, last = self._before[there], copies[-1].place.times[0]
        if own.gone is None or own.gone > last:
            return  # something else keeps it for longer
        for source, number in zip(group.recorded, numbers, strict=True):
            each = self._before[number]
            place = _place(source, each.gone)
            if place is not None and each.gone is not None:
                window = copies[place[0]]
                if own.gone > window.place.times[0]:
                    return
                end = self._clock.shifted(window.place.times[0] - 1) + place[1]
                self._ends[there] = max(end, self._ends.get(there, 0))
                kept = place[0] == 1 and number in self._was_saved and own.born < window.place.times[0]
                if kept and there not in self._was_saved and there not in self._gradients and there not in self.saved:
                    self.saved.append(there)
                return
            if each.gone is not None and each.gone < _windows(source)[-1].times[0]:
                return  # the block does not keep it
        raise NotEqual("it cannot be told whether a block keeps something")

    def _calls(self, copies: list[_Copy]) -> Iterator[OperatorCall]:
        done = 0
        for copy in copies:
            place = copy.place.calls[0]
            yield from self._recorder.calls[done:place]
            done = place
            moved = _renamed(copy.numbers)
            for call in self._recorder.calls[slice(*copy.source.calls)]:
                yield replace(call, reads=tuple(map(moved, call.reads)), writes=tuple(map(moved, call.writes)))
        yield from self._recorder.calls[done:]


def _after_all(group: RepeatedBlocks, time: int) -> bool:
    """Whether all blocks of the group have done their forward by then and none its backward, or all have done both."""
    forward = [seen.forward for seen in (*group.recorded, *group.left_out) if seen.forward is not None]
    backward = [seen.backward for seen in (*group.recorded, *group.left_out) if seen.backward is not None]
    if time < max(window.times[1] for window in forward):
        return False
    return not backward or time < min(w.times[0] for w in backward) or time >= max(w.times[1] for w in backward)


def _renamed(numbers: dict[int, int]) -> Callable[[Access], Access]:
    return lambda access: Access(numbers.get(access.storage, access.storage), access.bytes)
