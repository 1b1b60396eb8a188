"""Collectives, seen at the dispatcher (`c10d::*`), and the places where the training thread waits for them.

Redispatching an operator changes no result, unlike a DDP communication hook of our own, which rounds differently.
Completion is the Work's future where the backend has one (gloo). Waits: the end of DDP's backward, `Work.wait`, and
DDP's blocking broadcast of buffers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ddlprof.collect.hooks import Uninstall, all_of, replace
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind

_OPERATORS = (
    "allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "allgather_", "_allgather_base_",
    "allgather_into_tensor_coalesced_", "allgather_coalesced_", "reduce_scatter_", "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "barrier",
)  # fmt: skip


class Collective:
    """One collective of this rank; times are nanoseconds on the monotonic clock, None while not known."""

    __slots__ = ("bytes", "end", "exposed", "group", "need", "op", "ranks", "ready", "seq")

    def __init__(self, group: str, seq: int, op: str, size: int, ranks: int, ready: int) -> None:
        self.group = group
        self.seq = seq
        self.op = op
        self.bytes = size
        self.ranks = ranks
        self.ready = ready
        self.end: int | None = None
        self.need: int | None = None
        self.exposed: int | None = None

    def done(self, _: Any) -> None:
        """Callback of the Work's future."""
        self.end = time.perf_counter_ns()


class _Collectives:
    def __init__(self, recorder: Recorder, torch: Any) -> None:
        self.recorder = recorder
        self.torch = torch
        self.distributed = torch._C._distributed_c10d
        self.sequence: dict[str, int] = {}
        self.task = -1
        self.waiting = False

    def implementation(self, name: str) -> Callable[..., Any]:
        """What runs in front of the operator `name`."""
        operator = getattr(self.torch.ops.c10d, name).default
        below = self.torch._C._after_autograd_keyset
        op = name.strip("_")

        def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            collective = self.issued(op, args)
            result = operator.redispatch(keyset & below, *args, **kwargs)
            if collective is not None:
                self.follow(collective, result)
            return result

        return run

    def issued(self, op: str, args: tuple[Any, ...]) -> Collective | None:
        """Notes a collective; None where it cannot be told what it is."""
        if not self.recorder.active:
            return None
        ready = time.perf_counter_ns()
        try:
            group = self.group_of(args)
            name = str(group.group_name)
            seq = self.sequence.get(name, 0)
            self.sequence[name] = seq + 1
            collective = Collective(name, seq, op, _bytes(args), group.size(), ready)
            self.recorder.emit_in_backward(Kind.COLLECTIVE, collective)
            self.expect_wait()
            return collective
        except Exception:
            return None

    def group_of(self, args: tuple[Any, ...]) -> Any:
        """The process group among the operator's arguments."""
        for value in args:
            if isinstance(value, self.torch.ScriptObject):
                try:
                    return self.distributed.ProcessGroup.unbox(value)
                except RuntimeError:  # a ReduceOp
                    continue
        raise LookupError("no process group")

    def follow(self, collective: Collective, result: Any) -> None:
        """Learns when it ends."""
        try:
            work = result[-1] if isinstance(result, tuple) else result
            work = self.distributed.Work.unbox(work)
            work.get_future().add_done_callback(collective.done)
        except Exception:  # no future: the end stays unknown, and the parts with it
            return

    def expect_wait(self) -> None:
        """In backward: the engine's last callbacks run in order, so ours comes just before DDP's wait."""
        task = self.torch._C._current_graph_task_id()
        if task != -1 and task != self.task:
            self.task = task
            self.torch.autograd.Variable._execution_engine.queue_callback(self.backward_computed)

    def backward_computed(self) -> None:
        """All gradients are there; what follows in this backward is waiting and copying."""
        if not self.waiting:
            self.waiting = self.recorder.emit_in_backward(Kind.COMM_BEGIN)

    def backward_over(self) -> None:
        """The backward returns to the training thread."""
        if self.waiting:
            self.waiting = False
            self.recorder.emit(Kind.COMM_END, True)

    def blocking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A call that waits for communication from the training thread."""

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self.torch.compiler.is_compiling() or self.waiting or not self.recorder.emit(Kind.COMM_BEGIN):
                return original(*args, **kwargs)
            self.waiting = True
            try:
                return original(*args, **kwargs)
            finally:
                self.waiting = False
                self.recorder.emit(Kind.COMM_END)

        return wrapper


def _bytes(args: tuple[Any, ...]) -> int:
    """Size of the first tensor or list of tensors that carries data."""
    sizes = []
    for value in args:
        items = value if isinstance(value, (list, tuple)) else (value,)
        flat = [t for item in items for t in (item if isinstance(item, (list, tuple)) else (item,))]
        sizes.append(sum(t.nbytes for t in flat if hasattr(t, "nbytes")))
    return max(sizes, default=0)


def install(recorder: Recorder) -> tuple[Uninstall, Callable[[], None]]:
    """Returns what takes the hooks back, and what the backward hook must call when a backward is over.

    Raises RuntimeError or AttributeError where this torch cannot be hooked: communication is then not measured.
    """
    import torch
    import torch.distributed as dist

    hooks = _Collectives(recorder, torch)
    library = torch.library.Library("c10d", "IMPL")
    for name in _OPERATORS:
        if hasattr(torch.ops.c10d, name):
            for key in ("AutogradCPU", "AutogradCUDA"):
                library.impl(name, hooks.implementation(name), key, with_keyset=True)
    work = torch._C._distributed_c10d.Work
    uninstall = all_of(
        library._destroy,
        replace(work, "wait", hooks.blocking(work.wait)),
        replace(dist, "_broadcast_coalesced", hooks.blocking(vars(dist)["_broadcast_coalesced"])),
    )
    return uninstall, hooks.backward_over
