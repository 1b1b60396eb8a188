"""Finds who issues a collective, by its stack, which is taken in some steps; the helper thread looks at it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ddlprof.collect.process.frames import INSTALLED, OURS, USER, Position, StackFrame, stack_of_frame
from ddlprof.collect.process.stacks import CodeLocator
from ddlprof.model import issuers
from ddlprof.model.source_locations import SourceLocation
from ddlprof.torch_private import packages

_FIRST_STEP = 2
"""After the first steps DDP has its final buckets."""
_FEWER = 6
"""Stacks are taken again after a sixth of the steps so far: then also of what is done every tenth step."""
_ENGINE = "torch.autograd"
_FORWARD = "torch.nn.modules.module"
_OF_COLLECTIVES = "torch.distributed.nn"
"""Collectives that the script calls and that have a backward, which is another collective."""
_MODULES = {
    "torch.nn.parallel.distributed": issuers.REDUCER,
    "torch.distributed.algorithms.ddp_comm_hooks": issuers.REDUCER,
    packages.REPLICATE: issuers.REDUCER,
    **dict.fromkeys(packages.FULLY_SHARD, issuers.FSDP2),
    "torch.distributed.fsdp": issuers.FSDP,
    "torch.distributed.optim": issuers.SHARDED_OPTIMIZER,
    "torch.optim": issuers.SHARDED_OPTIMIZER,
    packages.SYNC_NORM: issuers.SYNC_NORM,
    "torch.distributed.tensor": issuers.TENSOR,
    packages.DISTRIBUTED_TENSOR: issuers.TENSOR,
    **dict.fromkeys(("torch.distributed.pipelining", "torch.distributed.checkpoint", *packages.COMPILED), ""),
}
"""Who issues what functions of these packages of torch issue; empty: not told. The first that fits counts."""
_ASKED = (issuers.TENSOR, issuers.FSDP, issuers.FSDP2)
"""Issuers that a line of the script may ask for whole tensors: `full_tensor()`, `summon_full_params`."""
_PASSES = (_FORWARD, "torch.autograd.graph", "torch.optim", "torch.distributed.optim")
"""Packages that lead there in forward, backward and update."""
_OF_OBJECTS = frozenset((
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
))  # fmt: skip
"""Functions of `torch.distributed` that pickle objects, and send first their sizes and then their bytes."""
_BY_REDUCER = ("allreduce", "broadcast")
"""The operations that DDP's reducer issues from C++."""

Stack = list[StackFrame]


class IssuerLook:
    """Decides in which steps stacks are taken: in ever fewer, as a stack takes some microseconds."""

    def __init__(self) -> None:
        self.due = _FIRST_STEP
        """The number of updates from which on stacks are taken again."""
        self._taking = -1

    def take(self, updates: int) -> Stack | None:
        """The stack from the caller's caller outwards; None in a step in which none are taken. Raises nothing.

        `updates`: the number of updates so far, at least `due`.
        """
        if updates != self._taking:
            if self._taking >= 0:
                self.due = self._taking + 1 + self._taking // _FEWER
                self._taking = -1
                if updates < self.due:
                    return None
            self._taking = updates
        try:
            return stack_of_frame(sys._getframe(2))
        except Exception:  # a reading aid; the collective counts without it
            return None


def issuers_of(
    collectives: Sequence[Any], places: CodeLocator, update: Sequence[Position] = ()
) -> list[SourceLocation | None] | None:
    """The issuer of each collective of a step, None where not known; None if no stack was taken. Forgets the stacks.

    `update`: see `CodeLocator.find`.
    """
    if all(each.stack is None for each in collectives):
        return None
    found: dict[tuple[Any, ...], SourceLocation | None] = {}
    issued: list[SourceLocation | None] = []
    for each in collectives:
        stack, each.stack = each.stack, None
        if stack is None:
            issued.append(None)
            continue
        key = (each.op, *((frame.code, frame.instruction) for frame in stack))
        if key not in found:
            found[key] = issuer_of(stack, each.op, places, update)
        issued.append(found[key])
    return issued


def issuer_of(stack: Stack, op: str, places: CodeLocator, update: Sequence[Position] = ()) -> SourceLocation | None:
    """Who issues a collective with this stack, innermost frame first; None if that is not told."""
    frames = [frame for frame in stack if _owner(frame, places) != OURS]
    if not frames or _is_in(frames[0].module, _ENGINE):  # no frame of Python has issued it, and no line is to blame
        return SourceLocation("", issuers.REDUCER) if op.startswith(_BY_REDUCER) else None
    for number, frame in enumerate(frames):
        owner = _owner(frame, places)
        if owner == USER:
            inside = _inside(frames[number:])
            if inside != issuers.SCRIPT:  # called by a forward or by autograd
                return SourceLocation(places.text(frame), inside)
            pickles = any(each.code.co_name in _OF_OBJECTS for each in frames[:number])
            word = issuers.OBJECTS if pickles else issuers.SCRIPT
            return SourceLocation(places.text(frame), word, places.caller(places.inside(stack, update)))
        if owner == INSTALLED and places.package(frame.code.co_filename) != "torch":
            return SourceLocation(places.text(frame), issuers.PACKAGE)
        if _is_in(frame.module, "torch.autograd.graph"):  # a function of torch's that runs in the backward
            of_script = (each for each in reversed(frames[:number]) if _is_in(each.module, _OF_COLLECTIVES))
            function = next(of_script, None)
            return None if function is None else SourceLocation(places.text(function), issuers.IN_BACKWARD)
        what = next((what for module, what in _MODULES.items() if _is_in(frame.module, module)), None)
        if what == issuers.REDUCER and op.startswith("broadcast"):
            what = issuers.BUFFERS
        if what in _ASKED and (line := _asking(frames[number:], places)) is not None:
            return SourceLocation(places.text(line), issuers.SCRIPT, places.caller(places.inside(stack, update)))
        if what is not None:
            return SourceLocation("", what) if what else None
    return None


def _asking(frames: Stack, places: CodeLocator) -> StackFrame | None:
    """The script's line that asks for the whole of a tensor outside of forward, backward and update; else None."""
    for frame in frames:
        owner = _owner(frame, places)
        if owner == USER:
            return frame if _inside(frames) == issuers.SCRIPT else None
        if (owner == INSTALLED and places.package(frame.code.co_filename) != "torch") or any(
            _is_in(frame.module, each) for each in _PASSES
        ):
            return None
    return None


def _inside(frames: Stack) -> str:
    """What the script does that has these frames, innermost first."""
    for frame in frames:
        if _is_in(frame.module, "torch.autograd.graph"):
            return issuers.IN_BACKWARD
        if frame.module == _FORWARD:
            return issuers.IN_FORWARD
    return issuers.SCRIPT


def _owner(frame: StackFrame, places: CodeLocator) -> str:
    return places.owner(frame.code.co_filename, frame.module == "__main__")


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")
