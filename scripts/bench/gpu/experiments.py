"""The experiments of the first half hour, in the order of what is worth most to know, should the machine be taken away.

First what would harm a user, then what ddlprof costs, then whether its figures are right.
"""

from __future__ import annotations

from scripts.bench.gpu import classes, cost
from scripts.bench.gpu.experiment import Experiment

EXPERIMENTS = (
    Experiment("tests", 80, cost.tests, on_host=True),
    Experiment("compile-fullgraph", 120, classes.graphs("fullgraph"), on_host=True),
    Experiment("resnet50", 120, cost.slow_down("resnet50", 0.005, 200, 3)),
    Experiment("gpt", 100, cost.slow_down("gpt", 0.005, 200, 3)),
    Experiment("toy", 100, cost.slow_down("toy", 0.02, 1500, 4)),
    Experiment("event-pair", 30, cost.event_pair),
    Experiment("timeline", 45, cost.timeline),
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
    Experiment("fused-adamw-scaler", 45, classes.scaler),
    Experiment("illegal-access", 35, classes.fault("illegal-access")),
    Experiment("abandoned-capture", 35, classes.fault("abandoned-capture")),
    Experiment("open-capture", 35, classes.fault("open-capture")),
    Experiment("whole-step-capture", 45, classes.graphs("whole-step")),
    Experiment("50-captures", 45, classes.graphs("captures")),
    Experiment("graphed-callables", 45, classes.graphs("graphed-callables")),
    Experiment("reduce-overhead", 120, classes.graphs("reduce-overhead"), on_host=True),
    Experiment("contexts", 30, classes.contexts, devices=2),
    Experiment("stragglers", 40, classes.two_ranks("straggler", ("--time-collectives",)), devices=2, on_host=True),
    Experiment("fsdp2-two", 40, classes.two_ranks("fsdp2"), devices=2, on_host=True),
    Experiment("tensor-parallel", 40, classes.two_ranks("tensor"), devices=2, on_host=True),
    Experiment("nsight", 45, cost.nsight),
)
