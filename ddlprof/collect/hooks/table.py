"""The hooks but for those of input (`loader/input.py`), in the order of installation, and the context that they get."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from ddlprof.collect.accelerator.protocol import Accelerator
from ddlprof.collect.compiler import leave_to_python
from ddlprof.collect.hooks import backward, checkpoint, compiled, copies, operators, pipeline, process_group
from ddlprof.collect.hooks.context import HookContext, Inspection, Install
from ddlprof.collect.hooks.graphs import Captures
from ddlprof.collect.hooks.modules import OuterModules
from ddlprof.collect.hooks.optimizers import OptimizerSteps, time_zero_grad
from ddlprof.collect.hooks.streams import Streams
from ddlprof.collect.install import Uninstall
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.seen_groups import SeenGroups
from ddlprof.torch_private.compile import tracing

Hook = tuple[str, Install]
"""The name of what the hook measures, and the function that installs it."""

EVERYWHERE: tuple[Hook, ...] = (
    ("module", lambda context: context.modules.install()),
    ("host_reads", copies.watch_host_reads),
    ("evaluation", lambda context: context.modules.watch_evaluations(context.later)),
    ("optimizer", lambda context: context.steps.install()),
    ("compiled", compiled.install),  # finds the forwards and updates that "module" and "optimizer" do not see
    ("compile_time", compiled.time_compilations),
    ("zero_grad", lambda context: time_zero_grad(context.torch, context.recorder)),
    ("checkpoint", checkpoint.install),
    ("process_group", lambda context: process_group.follow(context.on_process_group)),
    ("backward", backward.install),
    ("operators", operators.install),
    ("collector", lambda context: context.recorder.collector.watch()),
)
ON_AN_ACCELERATOR: tuple[Hook, ...] = (
    ("streams", copies.time_stream_waits),
    ("h2d", copies.install),
    ("graphs", lambda context: context.captures.install()),
)


def _collectives(context: HookContext) -> Uninstall:
    from ddlprof.collect.hooks import collectives

    leave_to_python(context.torch)
    return collectives.install(context)


IN_A_GROUP: tuple[Hook, ...] = (("comm", _collectives), ("pipeline", pipeline.install))


def _nothing(*_: Any) -> None:
    pass


def hook_context(
    torch: Any,
    recorder: Recorder,
    accelerator: Accelerator | None = None,
    inspection: Inspection | None = None,
    device_free: Lock | None = None,
    later: Callable[[Callable[[], None]], None] = lambda work: work(),
    unmeasured: Callable[[str], None] = _nothing,
    on_process_group: Callable[[], None] = _nothing,
) -> HookContext:
    """Makes the context of one session. `device_free` is held while a graph is captured."""
    inspection = inspection or Inspection()
    recorder.flags, recorder.flag = tracing(torch)
    modules = OuterModules(torch, recorder, inspection.forward, inspection.forward_over)
    return HookContext(
        torch,
        recorder,
        accelerator,
        inspection,
        later,
        unmeasured,
        on_process_group,
        modules=modules,
        steps=OptimizerSteps(torch, recorder, inspection.update, modules.trained_by),
        streams=Streams(torch, recorder, accelerator),
        captures=Captures(recorder, accelerator, device_free or Lock()),
        groups=SeenGroups(),
    )
