"""Traces one block of a group of equal ones, and lists the others as it.

The whole model runs, but of equal blocks (`equal_blocks`) only the first, the second and the last do their work. The
second is recorded; a block in between returns new tensors of the shapes that the second returned, and passes gradients
of the shapes of its inputs. `repeats_splice` puts the recorded operators and storages in the places of these blocks
afterwards. The last is recorded too and has to be as the second. What cannot be done so raises `NotEqual`, and the
model is traced in full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ddlprof.operators.equal_blocks import Numbers, Watched, groups
from ddlprof.torch_private import operators

if TYPE_CHECKING:
    from ddlprof.operators.trace_recorder import OperatorTracer


class NotEqual(Exception):
    """The blocks of a group do not do the same, or in a way that cannot be repeated."""


@dataclass
class BlockWindow:
    """The part of a step in which a block's forward or backward ran, in numbers of calls, storages and operators."""

    calls: tuple[int, int]
    storages: tuple[int, int]
    times: tuple[int, int]
    given: list[int] = field(default_factory=list)
    """The storages of what went in: inputs, or gradients of outputs."""
    made: list[int] = field(default_factory=list)
    """The storages of what came out: outputs, or gradients of inputs. -1: none."""


@dataclass
class Seen:
    """One block in a step."""

    block: Any
    number: int | None
    """As `Storage.block`."""
    forward: BlockWindow | None = None
    backward: BlockWindow | None = None
    shape: Any = None
    """What it returned, with `Like` for tensors."""
    inputs: list[Any] = field(default_factory=list)
    """The shapes of its inputs."""
    asked: int = 0
    """Values that it asked for."""
    opaque: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Like:
    """A tensor's shape, to make others of it."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    trained: bool

    def make(self) -> Any:
        """A tensor without data."""
        import torch

        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)


def like(tensor: Any) -> Like:
    """The shape of a tensor."""
    return Like(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.requires_grad)


@dataclass
class RepeatedBlocks:
    """Equal blocks in a step."""

    members: list[Any]
    numbers: Numbers
    first: list[BlockWindow] = field(default_factory=list)
    """The forward of the first block."""
    recorded: list[Seen] = field(default_factory=list)
    left_out: list[Seen] = field(default_factory=list)
    run: int = 0
    """The blocks that ran so far."""


class Repeats:
    """Leaves equal blocks out of a step. `remove()` makes the model as it was."""

    def __init__(self, model: Any, recorder: OperatorTracer) -> None:
        self._recorder = recorder
        self._undo: list[Callable[[], None]] = []
        self.groups = [RepeatedBlocks(members, numbers) for members, numbers in groups(model)]
        for group in self.groups:
            for place, block in enumerate(group.members):
                self._wrap(group, place, block)
            for path, name in group.numbers:
                self._watch(group.members[1].get_submodule(path), name)

    def remove(self) -> None:
        """Gives the model its blocks back."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self, group: RepeatedBlocks, place: int, block: Any) -> None:
        own = vars(block).get("forward")
        forward = block.forward
        recorded = place in (1, len(group.members) - 1)

        def run(*args: Any, **kwargs: Any) -> Any:
            if place != group.run:
                raise NotEqual("the blocks run in another order, or several times")
            group.run += 1
            if place == 0:
                begin = self._now()
                output = forward(*args, **kwargs)
                group.first.append(self._window(begin))
                return output
            if recorded:
                return self._record(group, block, forward, args, kwargs)
            return self._leave_out(group, block, args, kwargs)

        block.forward = run
        self._undo.append(lambda: vars(block).pop("forward") if own is None else vars(block).update(forward=own))

    def _watch(self, module: Any, name: str) -> None:
        value = vars(module)[name]

        def asked() -> None:
            raise NotEqual(f"{name} differs")

        setattr(module, name, Watched(value, asked))
        self._undo.append(lambda: setattr(module, name, value))

    def _now(self) -> tuple[int, int, int]:
        storages = self._recorder.storages
        return len(self._recorder.calls), len(storages.all), storages.now

    def _window(self, begin: tuple[int, int, int]) -> BlockWindow:
        calls, storages, times = zip(begin, self._now(), strict=True)
        return BlockWindow(calls, storages, times)

    def _numbers(self, tensors: Any) -> list[int]:
        return [-1 if each is None else self._recorder.storages.number(each, outside=True) for each in tensors]

    def _record(self, group: RepeatedBlocks, block: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        import torch

        seen = Seen(block, self._recorder.storages.block)
        group.recorded.append(seen)
        given = _tensors((args, kwargs))
        seen.inputs = [like(each) for each in given]
        passing = [each for each in given if each.requires_grad and torch.is_grad_enabled()]
        begin, counted = self._now(), self._counted()
        begins, ends = self._at_gradients(seen)
        args, kwargs = self._marked((args, kwargs), passing, ends)
        output = forward(*args, **kwargs)
        self._count(seen, counted)
        seen.forward = self._window(begin)
        seen.shape = _exchanged(output, like)
        results = _tensors(output)
        seen.forward.given, seen.forward.made = self._numbers(given), self._numbers(results)
        self._check(seen)
        return self._marked(output, [each for each in results if each.requires_grad], begins)

    def _at_gradients(self, seen: Seen) -> tuple[Callable[[Any], None], Callable[[Any], None]]:
        """What is to be called with the gradients of what the block returned, and with those of its inputs."""
        at: list[Any] = []

        def begins(gradients: Any) -> None:
            at.extend([self._now(), self._counted(), self._numbers(gradients)])

        def ends(gradients: Any) -> None:
            if not at:
                raise NotEqual("backward does not begin at what the block returns")
            seen.backward = self._window(at[0])
            self._count(seen, at[1])
            seen.backward.given, seen.backward.made = at[2], self._numbers(gradients)

        return begins, ends

    def _marked(self, value: Any, tensors: list[Any], reached: Callable[[Any], None]) -> Any:
        with self._recorder.without_listing():
            marked = dict(zip(map(id, tensors), mark(tensors, reached), strict=True))
        return _exchanged(value, lambda tensor: marked.get(id(tensor), tensor))

    def _counted(self) -> tuple[int, dict[str, int]]:
        return self._recorder.values.asked, dict(self._recorder.opaque)

    def _count(self, seen: Seen, before: tuple[int, dict[str, int]]) -> None:
        """Adds what was counted since then."""
        asked, opaque = self._counted()
        seen.asked += asked - before[0]
        for name, number in opaque.items():
            seen.opaque[name] = seen.opaque.get(name, 0) + number - before[1].get(name, 0)

    def _check(self, seen: Seen) -> None:
        """Raises where what the block returns is not made by it, or known to be of certain values."""
        assert seen.forward is not None
        first, _ = seen.forward.storages
        made = seen.forward.made
        if len(set(made)) < len(made) or any(number < first for number in made) or not made:
            raise NotEqual("the block returns what it was given, or one tensor twice")
        if any(self._recorder.values.knows(number) for number in made):
            raise NotEqual("values of what the block returns are known")

    def _leave_out(self, group: RepeatedBlocks, block: Any, args: Any, kwargs: Any) -> Any:
        if not group.recorded:
            raise NotEqual("nothing was recorded")
        first = group.recorded[0]
        given = _tensors((args, kwargs))
        if [like(each) for each in given] != first.inputs:
            raise NotEqual("inputs differ")
        seen = Seen(block, self._recorder.storages.block)
        group.left_out.append(seen)
        self._recorder.storages.now += 1
        begin = self._now()
        output = self._stand_in(seen, first, given)
        results = _tensors(output)
        seen.forward = self._window(begin)
        seen.forward.given, seen.forward.made = self._numbers(given), self._numbers(results)
        return output

    def _stand_in(self, seen: Seen, first: Seen, given: list[Any]) -> Any:
        import torch

        shapes = _likes(first.shape)
        passing = [each for each in given if each.requires_grad and torch.is_grad_enabled()]
        passed = [like(each) for each in passing]  # not the tensors, which would be kept
        trained = [p for p in seen.block.parameters() if p.requires_grad]

        def back(gradients: Any) -> list[Any]:
            self._recorder.storages.now += 1
            begin = self._now()
            with self._recorder.without_listing():
                made = [each.make() for each in passed]
                for parameter in trained:
                    parameter.grad = like(parameter).make()
            seen.backward = self._window(begin)
            seen.backward.given, seen.backward.made = self._numbers(gradients), self._numbers(made)
            return made

        with self._recorder.without_listing():
            results = iter(_standing_in(shapes, passing, trained[:1], back))
        return _exchanged(first.shape, lambda _: next(results))


def _likes(value: Any) -> list[Like]:
    found: list[Like] = []

    def note(each: Like) -> Like:
        found.append(each)
        return each

    _exchanged(value, note)
    return found


def _tensors(value: Any) -> list[Any]:
    """The distinct tensors in containers, in their order."""
    found = [each for each in operators.leaves(value) if hasattr(each, "untyped_storage")]
    return list({id(each): each for each in found}.values())


def _exchanged(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same containers with other tensors. Raises NotEqual for objects that may hold tensors of their own."""
    import torch

    if isinstance(value, Like) or hasattr(value, "untyped_storage"):
        return change(value)
    if type(value) in (tuple, list, torch.Size):
        return type(value)(_exchanged(each, change) for each in value)
    if type(value) is dict:
        return {key: _exchanged(each, change) for key, each in value.items()}
    if value is None or isinstance(value, (int, float, str, torch.dtype, torch.device)):
        return value
    raise NotEqual(f"a block takes or returns {type(value).__name__}")


def mark(tensors: list[Any], reached: Callable[[Any], None]) -> list[Any]:
    """The tensors, such that `reached` is called with their gradients before these go on."""
    import torch

    if not tensors:
        return []

    base: Any = torch.autograd.Function

    class Mark(base):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            ctx.set_materialize_grads(False)
            return tuple(each.view_as(each) for each in given)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            reached(gradients)
            return gradients

    return list(Mark.apply(*tensors))


def _standing_in(shapes: list[Like], given: list[Any], weight: list[Any], back: Callable[[Any], list[Any]]) -> Any:
    """New tensors of these shapes that depend on what was given; `back` makes the gradients of that."""
    import torch

    base: Any = torch.autograd.Function

    class StandIn(base):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *_: Any) -> Any:
            ctx.set_materialize_grads(False)
            made = [shape.make() for shape in shapes]
            ctx.mark_non_differentiable(*(each for each, shape in zip(made, shapes, strict=True) if not shape.trained))
            return tuple(made)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            known = [each for each, shape in zip(gradients, shapes, strict=True) if shape.trained]
            return (*back(known), *(None for _ in weight))

    return StandIn.apply(*given, *weight)
