"""Lists what a GPU would run for every operator of a step on fake tensors.

If a model asks for a value, which fake tensors do not have, it gets a likely one; see `trace_values`.
"""

from __future__ import annotations

from typing import Any

from ddlprof.operators import trace_optimizers, trace_values
from ddlprof.operators.trace_memory import Storages
from ddlprof.operators.trace_operators import Access, DispatchedOperator, OperatorCall, OperatorWork, pieces
from ddlprof.torch_private import aten, fake, operators


class OperatorTracer:
    """The calls of one micro-batch in their order, between `enter()` and `exit()`."""

    def __init__(self, storages: Storages) -> None:
        self.calls: list[OperatorCall] = []
        self.phase = "forward"
        self.storages = storages
        self.values = trace_values.Values(storages)
        self.opaque: dict[str, int] = {}
        """Operators whose work is not known in detail, and how often they were called."""
        self._mode: Any = None
        self._paused = 0

    def __enter__(self) -> OperatorTracer:
        self._mode = _mode(self)
        self._mode.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._mode.__exit__(*error)

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one operator of torch and lists it."""
        called = operators.packet(func).__name__
        name = called.removesuffix("_") if not called.endswith("__") else called
        if self.phase == "optimizer" and name == aten.VALUE:
            return trace_optimizers.A_STATE
        if name in aten.SILENT or self._paused:
            return self._unlisted(func, args, kwargs)
        if self.phase == "optimizer" and trace_optimizers.is_joint(name):
            return self._joint(func, name, called, args, kwargs)
        self.storages.now += 1
        handled, out = self.values.answer(name, func, args, kwargs)
        if not handled:
            out = func(*args, **kwargs)
        seen = self._seen(func, name, called, args, kwargs, out)
        if seen is not None:
            self._list(seen)
        return out

    def add(self, piece: OperatorWork) -> None:
        """Lists an operator of a GPU that torch has not run here."""
        self.storages.now += 1
        self.calls.append(self._call(piece))

    def without_listing(self) -> _Pause:
        """A context in which operators are run but not listed."""
        return _Pause(self)

    def _unlisted(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        for tensor in _tensors(out):
            self.storages.number(tensor)
        return out

    def _seen(
        self, func: Any, name: str, called: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> DispatchedOperator | None:
        """The operator with its tensors; None for views and for operators that are not torch's."""
        inputs = _distinct(_tensors((args, kwargs)))
        known = {self.storages.number(tensor, outside=True) for tensor in inputs}
        written = _written(func, args, kwargs)
        outputs = [each for each in _tensors(out) if not any(each is w for w in written)]
        new = [each for each in outputs if self.storages.number(each) not in known]
        self.values.follow(name, args, inputs, new)
        if not new and not written:
            return None
        tags = {str(tag).rpartition(".")[2] for tag in getattr(func, "tags", ())}
        return DispatchedOperator(name, called, args, inputs, new, written, "pointwise" in tags, "reduction" in tags)

    def _list(self, seen: DispatchedOperator) -> None:
        try:
            found = trace_optimizers.pieces_of(seen) if self.phase == "optimizer" else pieces(seen)
        except Exception:  # arguments of another version of torch
            self.opaque[seen.called] = self.opaque.get(seen.called, 0) + 1
            return
        for piece in found:
            if not any(size for _, size in piece.reads + piece.writes):
                continue  # no work
            if piece.kind == "other":
                self.opaque[seen.called] = self.opaque.get(seen.called, 0) + 1
            self.calls.append(self._call(piece))
        if seen.name == aten.COPY_TO and seen.outputs:
            source, copy = (self.storages.number(tensor) for tensor in (seen.inputs[0], seen.outputs[0]))
            self.storages.all[copy].cast_of = source

    def _joint(self, func: Any, name: str, called: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        piece = trace_optimizers.joint(name, called, args, kwargs)
        if piece is not None:
            self.calls.append(self._call(piece))
        if trace_optimizers.returns_nothing(called):
            return None
        return self._unlisted(func, args, kwargs)

    def _call(self, piece: OperatorWork) -> OperatorCall:
        reads, writes = (self._accesses(side) for side in (piece.reads, piece.writes))
        return OperatorCall(
            self.phase, piece.name, piece.kind, piece.dtype, piece.shape, piece.flops, piece.launches, reads, writes,
            piece.by_rows,
        )  # fmt: skip

    def _accesses(self, side: list[tuple[Any, float]]) -> tuple[Access, ...]:
        return tuple(Access(self.storages.number(tensor), size) for tensor, size in side)


class _Pause:
    def __init__(self, recorder: OperatorTracer) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._recorder._paused += 1

    def __exit__(self, *_: object) -> None:
        self._recorder._paused -= 1


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _tensors(each)]
    if isinstance(value, dict):
        return [tensor for each in value.values() for tensor in _tensors(each)]
    return []


def _distinct(tensors: list[Any]) -> list[Any]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments to which the operator writes, according to its schema."""
    found: list[Any] = []
    for place, name in aten.written_places(func):
        found += _tensors(args[place] if place < len(args) else kwargs.get(name))
    return _distinct(found)


def _mode(recorder: OperatorTracer) -> Any:
    """The dispatch mode that passes operators to `recorder`. Defined in a function, as its base class needs torch."""
    import torch

    base: Any = operators.mode_class()
    device = torch.ops.prim.device.default

    class RecordingMode(base):  # type: ignore[misc]
        supports_higher_order_operators = True  # otherwise torch refuses to run these under the mode

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(operators.unpacks_itself(kind, torch) and not fake.is_fake_type(kind) for kind in types):
                return NotImplemented  # the tensor subclass unpacks itself, then the mode sees its inner operators
            if func is device:  # asked for very often
                return func(*args)
            if operators.is_higher_order(func, torch):
                recorder.opaque[str(func)] = recorder.opaque.get(str(func), 0) + 1
                return func(*args, **(kwargs or {}))
            return recorder.dispatch(func, args, kwargs or {})

    return RecordingMode()
