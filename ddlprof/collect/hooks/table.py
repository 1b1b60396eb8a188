"""All hooks, in the order in which they are installed, and what they are given."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from ddlprof.collect.accelerator.protocol import Accelerator
from ddlprof.collect.compiler.untraced import leave_to_python
from ddlprof.collect.hooks import (
    backward,
    checkpoint,
    compile_time,
    compiled,
    copies,
    evaluation,
    graphs,
    host_reads,
    module,
    operators,
    optimizer,
    process_group,
    streams,
    zero_grad,
)
from ddlprof.collect.install import Uninstall
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.shared.captures import Captures
from ddlprof.collect.shared.optimizer_steps import Steps
from ddlprof.collect.shared.outer_modules import OuterModules
from ddlprof.collect.shared.streams import Streams
from ddlprof.collect.surroundings import Install, Looks, Surroundings
from ddlprof.collect.torch_private.compile import tracing

Hook = tuple[str, Install]
"""What is not measured where the hook cannot be installed, and how to install it."""

EVERYWHERE: tuple[Hook, ...] = (
    ("module", module.install),
    ("host_reads", host_reads.install),
    ("evaluation", evaluation.install),
    ("optimizer", optimizer.install),
    ("compiled", compiled.install),  # finds forwards and updates that the two before do not see
    ("compile_time", compile_time.install),
    ("zero_grad", zero_grad.install),
    ("checkpoint", checkpoint.install),
    ("process_group", process_group.install),
    ("backward", backward.install),
    ("operators", operators.install),
)
ON_AN_ACCELERATOR: tuple[Hook, ...] = (
    ("streams", streams.install),
    ("h2d", copies.install),
    ("graphs", graphs.install),
)


def _collectives(around: Surroundings) -> Uninstall:
    from ddlprof.collect.hooks import collectives

    leave_to_python(around.torch)
    return collectives.install(around)


IN_A_GROUP: tuple[Hook, ...] = (("comm", _collectives),)


def _nothing(*_: Any) -> None:
    pass


class _Unseen(Looks):
    def forward(self, module: Any, inputs: Any) -> None:
        pass

    def backward(self, roots: Any, nested: bool, kept: bool) -> None:
        pass

    def update(self, optimizer: Any) -> None:
        pass


def surroundings(
    torch: Any,
    recorder: Recorder,
    accelerator: Accelerator | None = None,
    looks: Looks | None = None,
    device_free: Lock | None = None,
    later: Callable[[Callable[[], None]], None] = lambda work: work(),
    unmeasured: Callable[[str], None] = _nothing,
    on_process_group: Callable[[], None] = _nothing,
) -> Surroundings:
    """The surroundings of one session; `device_free`: held while a graph is captured."""
    looks = looks or _Unseen()
    recorder.flags, recorder.flag = tracing(torch)
    return Surroundings(
        torch,
        recorder,
        accelerator,
        looks,
        later,
        unmeasured,
        on_process_group,
        modules=OuterModules(torch, recorder, looks.forward),
        steps=Steps(torch, recorder, looks.update),
        streams=Streams(torch, recorder, accelerator),
        captures=Captures(recorder, accelerator, device_free or Lock()),
    )
