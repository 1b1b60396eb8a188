"""Experiments on a GPU that hold ddlprof against Kineto: launch-bound steps, and the classes of a step."""

from __future__ import annotations

import statistics

import numpy as np

import ddlprof
from ddlprof.analysis.thresholds import LAG_SHARE
from ddlprof.importing import import_traces
from ddlprof.model.records import MISSING
from scripts.bench.gpu.cost import FIRST_PROFILED, PROFILED_STEPS, notes_of, rank_of
from scripts.bench.gpu.experiment import Bench, Bound, Failed

WIDTHS = (64, 512, 2048, 8192)
"""Of a network of 33 layers: from steps that wait for the host to steps that compute."""
IDLE = 0.3
"""A step whose device is idle for so much of it waits for the host."""
CLASSES = ("compute", "data", "h2d", "comm", "other")


def launch_bound(bench: Bench) -> None:
    """Device lag beside Kineto's idle share in the same runs, for networks from launch-bound to computing."""
    agreed, windows = [], 0
    for width in WIDTHS:
        steps = bench.pick(400, 200, 60)
        ended = bench.job(
            "speed", under=("--profiler-windows=1",), model="toy", width=bench.pick(width, width, 16), steps=steps,
            warmup=0,
        )  # fmt: skip
        run = ended.run()
        lag = _lag_share(run)
        found = rank_of(run).windows
        idle = statistics.fmean(1 - each.work_ns / each.window_ns for each in found) if found else None
        windows += len(found)
        bench.figure(f"width {width}: step_ms", 1e3 * ended.truth["step_s"])
        bench.figure(f"width {width}: host_ms", 1e3 * ended.truth["host_s"])
        bench.figure(f"width {width}: lag_share", lag)
        bench.figure(f"width {width}: idle_share", idle)
        if lag is not None and idle is not None:
            agreed.append((lag < LAG_SHARE) == (idle > IDLE))
    bench.figure("windows", windows, Bound(len(WIDTHS), at_least=True))
    bench.figure("agree", sum(agreed), Bound(len(WIDTHS), at_least=True))
    if bench.rehearse:
        bench.note("Kineto sees nothing of a simulated device, so there is no idle share to agree with")


def _lag_share(run: ddlprof.api.Run) -> float | None:
    """The median over plain steps of how far the device is behind the host at most, as a share of computing."""
    steps = rank_of(run).steps
    lag, compute = steps["device_lag_ns"], steps["compute_ns"]
    told = (steps["flags"] == 0) & (lag != MISSING) & (compute > 0)
    return float(np.median(lag[told] / compute[told])) if told.any() else None


def imported(bench: Bench) -> None:
    """Classes of steps beside those of `ddlprof import` of Kineto's trace of the same steps."""
    trace = bench.folder / "trace.json"
    ended = bench.job(
        "loop", under=(), copy="pinned", steps=80, mb=bench.pick(64, 64, 4), device_ms=10, sleep_ms=18, chrome=trace,
        profile=bench.folder / "events.json", first_profiled=FIRST_PROFILED, profiled_steps=PROFILED_STEPS,
    )  # fmt: skip
    ours = ended.run().steps
    bench.figure("steps", len(ours))
    if bench.rehearse:
        bench.note("Kineto sees nothing of a simulated device, so there is no trace of it to import")
        return
    if not trace.exists():
        raise Failed("torch.profiler wrote no trace")
    import_traces([trace], bench.folder / "imported")
    theirs = ddlprof.load(bench.folder / "imported").steps
    inner = theirs.iloc[1:-1]  # a window cuts its first and last step
    if not len(inner):
        raise Failed("the trace has no whole step")
    last = FIRST_PROFILED + PROFILED_STEPS - 2
    same = ours[ours["step"].between(last - len(inner) + 1, last)]
    step = float(inner["step_s"].mean())
    bench.figure("imported_steps", len(inner))
    bench.figure("step_ms", 1e3 * step)
    bench.figure("step_error", abs(float(same["step_s"].mean()) / step - 1), Bound(0.005))
    for name in CLASSES:
        mine, other = (float(each[f"{name}_s"].fillna(0).mean()) for each in (same, inner))
        bench.figure(f"{name}_ms", 1e3 * mine)
        bench.figure(f"{name}_ms_imported", 1e3 * other)
        bench.figure(f"{name}_error", abs(mine - other) / step, Bound(0.02))
    for note in notes_of(ended.run()):
        bench.note(f"ddlprof notes {note}"[:200])
