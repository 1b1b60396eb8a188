"""The bytes and operations of an optimizer's update, from its groups of parameters. Nothing is wrapped or called."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from ddlprof.model.operators import FOREACH, FUSED, OPTIMIZER_UPDATES, SINGLE, Operator, update_operator
from ddlprof.operators.formulas import short_dtype
from ddlprof.torch_private import engine

_BY_STATES = ("rprop", "adafactor", "lion", "lamb")
"""Optimizers whose implementations differ too much for `OPTIMIZER_UPDATES`; their cost follows from the states they
keep."""
_OTHER_ACCESSES, _OTHER_CALLS = (3, 7), (1, 3)
"""Estimates for an optimizer that is not in the table: accesses of memory (in sizes of the parameters) and operations,
each as a fixed number and a number for each copy of the parameters that the optimizer keeps."""


class _Size(NamedTuple):
    elements: int
    tensors: int
    element_bytes: int
    state_bytes: int


class Update(NamedTuple):
    """One optimizer, as it was right before an update."""

    name: str
    """sgd, sgd-momentum, adamw, ..."""
    implementation: str
    """fused, foreach or single; where the script leaves the choice to torch, what torch chooses on GPUs."""
    chosen: bool
    """Whether the script has chosen the implementation."""
    sizes: dict[str, _Size]
    """The sizes of the parameters that have a gradient, by the name of their data type in torch."""
    switch: str = ""
    """The argument that makes one call of what is now a loop over the parameters: `fused` or `foreach`, else empty."""
    loops: bool | None = None
    """Whether the update goes through the parameters one after the other; None: not known, as it is not torch's."""
    history: int | None = None
    """How many steps and gradients it keeps (LBFGS)."""

    @property
    def tensors(self) -> int:
        """The number of parameters that are updated."""
        return sum(size.tensors for size in self.sizes.values())

    @property
    def elements(self) -> int:
        return sum(size.elements for size in self.sizes.values())

    @property
    def full_name(self) -> str:
        """The name with the implementation (`adamw-fused`), if the script has chosen the implementation."""
        return f"{self.name}-{self.implementation}" if self.chosen else self.name

    def operators(self) -> Iterator[Operator]:
        """The update as operators, one for each data type of parameters."""
        for dtype, size in self.sizes.items():
            copies = size.state_bytes / max(1, size.elements * size.element_bytes)
            known = None if self.name in _BY_STATES else OPTIMIZER_UPDATES.get(self.name)
            accesses: float
            if self.implementation == FUSED:
                accesses, calls = 3 + 2 * copies, 1
            elif known is not None:
                accesses, calls = known.foreach, known.calls
            else:
                accesses = _OTHER_ACCESSES[0] + _OTHER_ACCESSES[1] * copies
                calls = _OTHER_CALLS[0] + _OTHER_CALLS[1] * math.ceil(copies)
            yield update_operator(
                self.name, self.implementation, short_dtype(dtype), size.elements, size.tensors,
                float(size.elements * size.element_bytes * accesses), calls,
            )  # fmt: skip


def update_of(optimizer: Any) -> Update:
    """Reads an optimizer. Raises an error if it is not structured like torch's optimizers."""
    groups = optimizer.param_groups
    name, implementation, chosen = _named(optimizer, groups[0])
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 1, 0])
    with engine.no_torch_function():  # do not run tensor subclasses' __torch_function__
        for group in groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                size = sums[str(parameter.dtype).removeprefix("torch.")]
                size[0] += parameter.numel()
                size[1] += 1
                size[2] = parameter.element_size()
                size[3] += _state_bytes(optimizer.state.get(parameter))
    sizes = {dtype: _Size(*size) for dtype, size in sums.items()}
    history = groups[0].get("history_size")
    return Update(
        name, implementation, chosen, sizes, *_loop_of(optimizer, groups[0]), history if type(history) is int else None
    )


def _named(optimizer: Any, group: dict[str, Any]) -> tuple[str, str, bool]:
    """The optimizer's name, its implementation, and whether the script has chosen the implementation."""
    inner = getattr(optimizer, "optim", None)  # in ZeroRedundancyOptimizer
    name = type(optimizer if inner is None else inner).__name__.lower().removeprefix("paged")
    is_fused = bool(group.get("fused")) or name.startswith("fused")
    name = name.removeprefix("fused")
    if name == "sgd" and group.get("momentum"):
        name = "sgd-momentum"
    elif name in ("adam", "adamw") and group.get("amsgrad"):
        name = "amsgrad"
    if is_fused or name.endswith("8bit"):  # 8-bit optimizers exist only in fused form
        return name, FUSED, is_fused
    return name, SINGLE if group.get("foreach") is False else FOREACH, group.get("foreach") is not None


def _loop_of(optimizer: Any, group: dict[str, Any]) -> tuple[str, bool | None]:
    """The argument that would end a loop over the parameters, and whether there is such a loop.

    Without a choice of the script's, torch goes through parameters on processors one after the other.
    """
    switch = next((name for name in (FUSED, FOREACH) if name in group), "")
    if not type(optimizer).__module__.startswith("torch.optim") or not group["params"]:
        return "", None
    if group.get("fused") or group.get("foreach"):
        return switch, False
    with engine.no_torch_function():  # parameters may be of a tensor subclass
        return switch, group.get("foreach") is False or group["params"][0].device.type == "cpu"


def _state_bytes(state: Any) -> int:
    """The bytes of state kept for one parameter. Plain numbers, such as the count of steps, are left out."""
    tensors = state.values() if isinstance(state, dict) else ()
    return sum(
        each.numel() * each.element_size() for each in tensors if hasattr(each, "element_size") and each.numel() > 1
    )
