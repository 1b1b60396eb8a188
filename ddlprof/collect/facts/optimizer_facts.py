"""What an update reads and writes, by the optimizer's groups of parameters; nothing of it is wrapped or called."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from ddlprof.model.operators import FOREACH, FUSED, OPTIMIZER_UPDATES, SINGLE, Operator, update_operator
from ddlprof.operators.formulas import short_dtype
from ddlprof.torch_private import engine

_BY_STATES = ("rprop", "adafactor", "lion", "lamb")
"""Optimizers whose implementations differ too much for the table: they are counted by the states that they keep."""
_OTHER_ACCESSES, _OTHER_CALLS = (3, 7), (1, 3)
"""What an optimizer that is not in the table reads and writes, in copies of the parameters, and its operations: for
itself, and for each copy of the parameters that it keeps."""


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
    """fused, foreach or single; where the script leaves it to torch, what torch does on GPUs."""
    chosen: bool
    """The script has said which."""
    sizes: dict[str, _Size]
    """The sizes of the parameters that have a gradient, by their type as torch names it."""

    @property
    def elements(self) -> int:
        """The number of elements that are updated."""
        return sum(size.elements for size in self.sizes.values())

    @property
    def full_name(self) -> str:
        """`adamw-fused` where the script has chosen how it is done."""
        return f"{self.name}-{self.implementation}" if self.chosen else self.name

    def operators(self) -> Iterator[Operator]:
        """The update as operators, one for each type of parameters."""
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
    """Reads an optimizer. Raises where it is not made as those of torch are."""
    groups = optimizer.param_groups
    name, implementation, chosen = _named(optimizer, groups[0])
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 1, 0])
    with engine.no_torch_function():  # tensor classes of the script's are not asked
        for group in groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                size = sums[str(parameter.dtype).removeprefix("torch.")]
                size[0] += parameter.numel()
                size[1] += 1
                size[2] = parameter.element_size()
                size[3] += _state_bytes(optimizer.state.get(parameter))
    return Update(name, implementation, chosen, {dtype: _Size(*size) for dtype, size in sums.items()})


def _named(optimizer: Any, group: dict[str, Any]) -> tuple[str, str, bool]:
    """Its name, how it goes about, and whether the script has said so."""
    inner = getattr(optimizer, "optim", None)  # of ZeroRedundancyOptimizer
    name = type(optimizer if inner is None else inner).__name__.lower().removeprefix("paged")
    is_fused = bool(group.get("fused")) or name.startswith("fused")
    name = name.removeprefix("fused")
    if name == "sgd" and group.get("momentum"):
        name = "sgd-momentum"
    elif name in ("adam", "adamw") and group.get("amsgrad"):
        name = "amsgrad"
    if is_fused or name.endswith("8bit"):  # which has no other form
        return name, FUSED, is_fused
    return name, SINGLE if group.get("foreach") is False else FOREACH, group.get("foreach") is not None


def _state_bytes(state: Any) -> int:
    """What is kept for a parameter; numbers such as the count of steps are left out."""
    tensors = state.values() if isinstance(state, dict) else ()
    return sum(
        each.numel() * each.element_size() for each in tensors if hasattr(each, "element_size") and each.numel() > 1
    )
