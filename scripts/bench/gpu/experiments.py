"""The experiments of the first hour on a GPU, by the question they answer, most valuable answers first.

Where the machine may be taken away at any time, what comes first counts: what ddlprof costs, which nobody has measured,
whether the crash that the first GPU showed is mended (in `tests`), then predictions and detectors, then the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scripts.bench.gpu import classes, cost, detection, predictions, tools
from scripts.bench.gpu.experiment import Experiment

_BY_QUESTION: dict[str, tuple[Experiment, ...]] = {
    "a": (
        Experiment("kernels-50", 70, cost.kernels(50, 0.02, 3000, 3)),
        Experiment("kernels-500", 80, cost.kernels(500, 0.02, 600, 3)),
        Experiment("kernels-5000", 100, cost.kernels(5000, 0.02, 100, 3)),
        Experiment("resnet50", 120, cost.slow_down("resnet50", 0.005, 200, 3)),
        Experiment("gpt", 100, cost.slow_down("gpt", 0.005, 200, 3)),
        Experiment("toy", 100, cost.slow_down("toy", 0.02, 1500, 4)),
        Experiment("event-pair", 30, cost.event_pair),
    ),
    "b": (
        Experiment("ddp-cost", 120, tools.wrapped("ddp"), on_host=True),
        Experiment("fsdp2-cost", 120, tools.wrapped("fsdp2"), on_host=True),
    ),
    "c": (Experiment("tests", 80, cost.tests, on_host=True),),
    "d": (
        Experiment("predictions-1", 150, predictions.steps(1), on_host=True),
        Experiment("probe", 80, predictions.probe, on_host=True),
        Experiment("predictions-2", 180, predictions.steps(2), on_host=True),
    ),
    "e": (Experiment("launch-bound", 90, detection.launch_bound),),
    "f": (
        Experiment("imported-trace", 50, detection.imported),
        Experiment("timeline", 45, cost.timeline),
    ),
    "g": (
        Experiment("whole-step-capture", 45, classes.graphs("whole-step")),
        Experiment("50-captures", 45, classes.graphs("captures")),
        Experiment("50-captures-strict", 60, classes.strict("captures")),
        Experiment("thread-local-capture", 45, classes.graphs("whole-step-thread-local")),
        Experiment("relaxed-capture", 45, classes.graphs("whole-step-relaxed")),
        Experiment("graphed-callables", 45, classes.graphs("graphed-callables")),
        Experiment("whole-step-strict", 60, classes.strict("whole-step")),
    ),
    "h": (
        Experiment("memory-1", 90, predictions.memory(1), on_host=True),
        Experiment("memory-2", 100, predictions.memory(2), on_host=True),
    ),
    "i": (
        Experiment("fuse", 100, tools.fuse, on_host=True),
        Experiment("sparsity", 70, tools.sparsity, on_host=True),
    ),
    "j": (
        Experiment("compile-fullgraph", 120, classes.graphs("fullgraph"), on_host=True),
        Experiment("reduce-overhead", 120, classes.graphs("reduce-overhead"), on_host=True),
        Experiment("compile-default", 90, classes.graphs("default"), on_host=True),
        Experiment("compile-dynamic", 90, classes.graphs("dynamic"), on_host=True),
        Experiment("max-autotune", 180, classes.graphs("max-autotune"), on_host=True),
        Experiment("max-autotune-no-cudagraphs", 150, classes.graphs("max-autotune-no-cudagraphs"), on_host=True),
        Experiment("fused-adamw-scaler", 30, classes.scaler),
    ),
    "k": (
        Experiment("one-window", 80, cost.one_window),
        Experiment("user-profiler", 40, cost.user_profiler),
        Experiment("several-windows", 45, cost.several_windows),
        Experiment("loader-0", 25, classes.loader(0)),
        Experiment("loader-0.5", 25, classes.loader(0.5)),
        Experiment("loader-1.5", 25, classes.loader(1.5)),
        Experiment("copy-pageable", 25, classes.copy("pageable")),
        Experiment("copy-pinned", 25, classes.copy("pinned")),
        Experiment("copy-prefetched", 25, classes.copy("prefetched")),
        Experiment("copy-other-stream", 25, classes.copy("side")),
        Experiment("comm-by-hand", 35, classes.one_rank("by-hand")),
        Experiment("ddp", 35, classes.one_rank("ddp"), on_host=True),
        Experiment("fsdp2", 40, classes.one_rank("fsdp2"), on_host=True),
        Experiment("first-forward", 70, classes.first_forward),
        Experiment("illegal-access", 35, classes.fault("illegal-access")),
        Experiment("abandoned-capture", 35, classes.fault("abandoned-capture")),
        Experiment("open-capture", 35, classes.fault("open-capture")),
        Experiment("contexts", 30, classes.contexts, devices=2),
        Experiment("stragglers", 40, classes.two_ranks("straggler", ("--time-collectives",)), devices=2, on_host=True),
        Experiment("fsdp2-two", 40, classes.two_ranks("fsdp2"), devices=2, on_host=True),
        Experiment("tensor-parallel", 40, classes.two_ranks("tensor"), devices=2, on_host=True),
        Experiment("nsight", 45, cost.nsight),
    ),
}


def _in_order() -> Iterator[Experiment]:
    for question, mine in _BY_QUESTION.items():
        yield from (replace(each, question=question) for each in mine)


EXPERIMENTS = tuple(_in_order())
