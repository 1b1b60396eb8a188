"""Counts the floating point operations of a model that runs without its data, operator by operator.

For `ddlprof features` only: a dispatch mode stands in the path of every operator, and with some tensors (DTensor) an
operator fails for that. A training is counted by `autograd_flops`. Lighter than torch's `FlopCounterMode`: no
module tracker, no decomposition, so every kernel is redispatched as it is.
"""

from __future__ import annotations

import threading
from typing import Any

from ddlprof.collect.torch_private import engine, operators


class FlopCount:
    """Totals of one micro-batch: `enter()` before its forward, `mark_backward()` between, `exit()` at its end.

    What activation checkpointing computes again during backward counts as backward.
    """

    def __init__(self) -> None:
        self.forward = 0
        self.backward = 0
        self.unknown = 0
        """Operators whose formula failed or whose inside is not visible: the totals are lower bounds if > 0."""
        self._in_backward = False
        self._mode: Any = None
        self._thread: int | None = None

    def mark_backward(self) -> None:
        """Marks that what follows belongs to the backward pass."""
        self._in_backward = True

    def add(self, flops: int) -> None:
        """Adds to the total of the current pass."""
        if self._in_backward:
            self.backward += flops
        else:
            self.forward += flops

    def enter(self) -> bool:
        """Begins to count what this thread does. False: not possible now, nothing was changed.

        Under another dispatch mode it stays out: leaving that mode, the user's code would pop ours instead.
        """
        modes = operators.modes()
        if self._mode is not None or modes.stack() or _inside_backward():
            return False
        mode = _mode(self, modes.base)
        modes.push(mode)
        self._mode, self._thread = mode, threading.get_ident()
        return True

    def exit(self) -> bool:
        """Ends counting; modes that the user's code has entered since stay as they are.

        False: nothing was changed and the totals are not whole, as this is another thread, the modes are set aside
        at the moment, or this is a hook inside backward, whose end would bring the mode back.
        """
        modes = operators.modes()
        if self._mode is None or self._thread != threading.get_ident() or _inside_backward():
            return False
        if not any(mode is self._mode for mode in modes.stack()):
            return False
        above = []
        while (mode := modes.pop()) is not self._mode:
            above.append(mode)
        for mode in reversed(above):
            modes.push(mode)
        self._mode = None
        return True


def _inside_backward() -> bool:
    import torch

    return engine.graph_task(torch)() != -1


def _formulas() -> dict[Any, Any]:
    import torch
    from torch.utils.flop_counter import flop_registry

    aten = torch.ops.aten
    formulas = dict(flop_registry)
    for known, kernel in operators.attention_kernels(aten):
        formula = formulas.get(known)
        if formula is not None and kernel is not None:
            formulas.setdefault(kernel, formula)
    formulas[aten.convolution_backward] = _convolution_backward
    return formulas


def _convolution_backward(
    grad_out: Any, x: Any, weight: Any, _bias: Any, _stride: Any, _padding: Any, _dilation: Any, transposed: bool,
    _output_padding: Any, _groups: int, output_mask: list[bool], **_: Any,
) -> int:  # fmt: skip
    """The FLOPs of forward for each gradient. torch's own formula takes every grouped convolution for a dense one."""
    from torch.utils.flop_counter import conv_flop_count

    forward = conv_flop_count(list(x.shape), list(weight.shape), list(grad_out.shape), transposed)
    return int(forward) * (output_mask[0] + output_mask[1])


def _mode(count: FlopCount, base: Any) -> Any:
    """The dispatch mode that feeds `count`; defined here because its base class needs torch."""
    import torch

    formulas = _formulas()

    class CountingMode(base):  # type: ignore[misc]
        supports_higher_order_operators = True  # otherwise torch refuses to run them under the mode

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True  # otherwise torch.compile falls back to eager while the mode is on

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if any(operators.unpacks_itself(kind, torch) for kind in types):
                return NotImplemented  # the tensor subclass unpacks itself; the mode then sees the inner operators
            kwargs = kwargs or {}
            out = func(*args, **kwargs)
            formula = formulas.get(operators.packet(func))
            if formula is not None:
                try:
                    count.add(int(formula(*args, **kwargs, out_val=out)))
                except Exception:
                    count.unknown += 1
            elif operators.is_higher_order(func, torch):
                count.unknown += 1
            return out

    return CountingMode()
