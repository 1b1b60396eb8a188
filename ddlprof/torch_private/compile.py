"""torch.compile: Dynamo's frames, counters and contexts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from ddlprof.torch_private.names import PrivateName, find, imported

DYNAMO, EVAL_FRAME = "torch._dynamo", "torch._dynamo.eval_frame"
"""Modules: torch imports them when the script compiles, or makes an optimizer."""
COMPILERS = ("torch._dynamo.", "torch._inductor.", "torch._functorch.", "triton.")
"""The modules that a thread is in while it compiles, as the names of files: nothing of them is used."""
_COMPILED = "calls of compiled functions are not timed: their forward, loss or update is part of other_s"
_BREAKS = "torch.compile may also try to compile functions of ddlprof's after a graph break: more compilations"

NAMES = (
    PrivateName(
        "torch._dynamo.utils:counters",
        "tells what torch.compile has compiled",
        "steps in which torch.compile works are not flagged and may be among the steady ones",
    ),
    PrivateName(
        "torch._dynamo.utils:_compilation_metrics",
        "tells why torch.compile compiled again",
        "a finding about compiling again does not say why",
    ),
    PrivateName(
        "torch._dynamo.utils:graph_break_reasons",
        "tells where torch.compile breaks graphs, and why",
        "graphs that are broken in each step are not found",
    ),
    PrivateName(
        "torch._dynamo.convert_frame:transform_code_object",
        "tells when torch.compile traces: how long it compiles, and when ddlprof takes its methods of tensors away",
        "on a device, copies to it and waits of its streams are not measured in scripts that use torch.compile; how"
        " long it compiles is told by what its steps take longer",
    ),
    PrivateName(
        "torch.compiler:_is_compiling_flag",
        "tells whether Python runs to be traced",
        "what torch.export runs to trace it is taken for a part of the training",
    ),
    PrivateName("torch._dynamo.eval_frame:OptimizeContext", "sees the calls of compiled functions", _COMPILED),
    PrivateName("torch._dynamo.eval_frame:OptimizeContext().enter_exit_hooks", "sees these calls", _COMPILED),
    PrivateName(
        "torch:_C._dynamo.eval_frame.set_eval_frame",
        "keeps torch.compile from looking at ddlprof while it looks at a compiled loop",
        "loops that are compiled with their optimizer may be compiled again and their steps are not seen",
    ),
    PrivateName("torch:_C._dynamo.eval_frame.set_code_exec_strategy", "keeps torch.compile out", _BREAKS, since="2.7"),
    PrivateName("torch:_C._dynamo.eval_frame._FrameAction", "keeps torch.compile out", _BREAKS, since="2.7"),
    PrivateName("torch:_C._dynamo.eval_frame._FrameExecStrategy", "keeps torch.compile out", _BREAKS, since="2.7"),
    PrivateName("torch:_C._dynamo.eval_frame.skip_code", "keeps torch.compile out", _BREAKS, until="2.6"),
)


def tracing(torch: Any) -> tuple[dict[str, Any], str]:
    """The dictionary, and the key in it, of the flag that says whether torch.compile or torch.export is tracing Python.

    `torch.compiler.is_compiling` returns the same flag, but calls two functions each time.
    """
    return vars(torch.compiler), "_is_compiling_flag"


def counters() -> Any:
    """Dynamo's counters of this process; None as long as dynamo is not imported."""
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)


def unique_graphs() -> int:
    """How many graphs torch.compile has compiled so far; all in one function, because every update calls it."""
    found: Any = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    stats = found.get("stats") if found else None
    return int(stats.get("unique_graphs", 0)) if stats else 0


def recompile_reasons() -> list[str]:
    """Why torch.compile compiled functions again, for the latest ones, in torch's words; before torch 2.6 empty."""
    metrics: Any = getattr(sys.modules.get("torch._dynamo.utils"), "_compilation_metrics", None)
    return [reason for each in list(metrics or ()) if (reason := getattr(each, "recompile_reason", None))]


def graph_breaks() -> list[Any]:
    """The places at which torch.compile has broken graphs so far, each with `reason` and `user_stack`."""
    return list(getattr(sys.modules.get("torch._dynamo.utils"), "graph_break_reasons", ()))


TRACE = "transform_code_object"


def tracing_module() -> Any:
    """The module in which all ways of compiling call the function named `TRACE`; None in another version."""
    module = imported("torch._dynamo.convert_frame")
    return module if hasattr(module, TRACE) else None


def contexts() -> Any:
    """The class of the contexts that `call_hooks` takes; None in other versions, or while dynamo is not imported."""
    return getattr(imported(EVAL_FRAME), "OptimizeContext", None)


def call_hooks(context: Any) -> list[Any]:
    """The functions called whenever a function compiled with this context is; their results are called at its end."""
    hooks: list[Any] = context.enter_exit_hooks
    return hooks


def set_callback(torch: Any) -> Callable[[Any], Any] | None:
    """The function that sets Dynamo's callback of this thread and returns the previous one; None in another torch."""
    function: Callable[[Any], Any] | None = find(torch, "_C._dynamo.eval_frame.set_eval_frame")
    return function


def skip_code(torch: Any) -> Callable[[CodeType], Any] | None:
    """A function that does what `torch._dynamo.skip_code` does, whose import takes seconds; None in another torch."""
    frames = find(torch, "_C._dynamo.eval_frame")
    set_strategy = getattr(frames, "set_code_exec_strategy", None)
    action, make_strategy = getattr(frames, "_FrameAction", None), getattr(frames, "_FrameExecStrategy", None)
    if set_strategy is None or action is None or make_strategy is None:
        until_2_6: Callable[[CodeType], Any] | None = getattr(frames, "skip_code", None)
        return until_2_6
    strategy = make_strategy(action.SKIP, action.DEFAULT)
    return lambda code: set_strategy(code, strategy)
