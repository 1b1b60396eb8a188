"""Experiments on a GPU about what ddlprof costs, and about profilers beside it."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ddlprof
from scripts.bench.gpu.experiment import ROOT, Bench, Bound, Ended, Failed, Skip, call, python

COPY, DEVICE = "Memcpy HtoD", "CUDA"
FIRST_PROFILED, PROFILED_STEPS = 40, 20
KERNELS_OF_LAYER = 6
"""Kernels a step of a linear layer with its ReLU: forward, backward and update."""
EARLY, LATE = slice(20, 48), slice(100, None)
"""Steps before a window of ours may open, and after it is closed, of those that `speed.py` times when none warm up."""


def rank_of(run: ddlprof.api.Run) -> Any:
    """What rank 0 left behind."""
    return run._data.ranks[0]


def notes_of(run: ddlprof.api.Run) -> list[str]:
    """What was not measured, and why."""
    return sorted({f"{note.source}: {note.message}" for rank in run._data.ranks for note in rank.notes})


def tests(bench: Bench) -> None:
    """tests/gpu: the clock, copies, streams, graphs and NVML's counters; only collected in a rehearsal."""
    words = [python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    more = ["--collect-only"] if bench.rehearse else []
    output = bench.folder / "pytest"
    code, _ = call([*words, *more, str(ROOT / "tests" / "gpu")], bench.environment(), bench.left_s, output)
    said = output.read_text(encoding="utf-8", errors="replace")
    for what in ("passed", "failed", "skipped", "error", "collected"):
        found = re.findall(rf"(\d+) (?:tests? )?{what}", said)
        if found:
            bench.figure(what, int(found[-1]))
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    if code:
        raise Failed(f"pytest ended with {code}: {', '.join(name.rpartition('::')[2] for name in failed)}")


def kernels(count: int, limit: float, steps: int, pairs: int) -> Callable[[Bench], None]:
    """A launch-bound network of about so many kernels a step."""
    run = slow_down("toy", limit, steps, pairs, layers=max(1, round(count / KERNELS_OF_LAYER)))
    run.__doc__ = f"About {count} kernels a step, launch-bound: with and without ddlprof in alternating fresh processes"
    return run


def slow_down(model: str, limit: float, steps: int, pairs: int, **more: int) -> Callable[[Bench], None]:
    """With and without ddlprof in alternating fresh processes. `more`: further arguments of the job."""

    def run(bench: Bench) -> None:
        seconds: dict[bool, list[float]] = {True: [], False: []}
        hooks_us, host = 0.0, 0.0
        sizes = {"steps": bench.pick(steps, steps // 4, 20), "warmup": bench.pick(30, 30, 10)}
        arguments: dict[str, Any] = {"model": model, **sizes, **more}
        for pair in range(bench.pick(pairs, 2, 1)):
            for ours in (bool(pair % 2), not pair % 2):
                ended = bench.job("speed", under=() if ours else None, **arguments)
                seconds[ours].append(ended.truth["step_s"])
                if ours:
                    looking = rank_of(ended.run()).overhead
                    hooks_us = looking.hook_ns / max(1, looking.hook_steps) / 1e3 if looking else 0.0
                else:
                    host = ended.truth["host_s"]
        plain = statistics.median(seconds[False])
        bench.figure("step_ms", 1e3 * plain)
        bench.figure("host_ms", 1e3 * host)
        bench.figure("slow_down", statistics.median(seconds[True]) / plain - 1, Bound(limit))
        bench.figure("spread_without", (max(seconds[False]) - min(seconds[False])) / plain)
        bench.figure("spread_with", (max(seconds[True]) - min(seconds[True])) / plain)
        bench.figure("hooks_us", hooks_us)

    run.__doc__ = f"{model}: with and without ddlprof in alternating fresh processes"
    run.__doc__ = f"{model}, with and without ddlprof in alternating fresh processes"
    return run


def event_pair(bench: Bench) -> None:
    """What it takes the host to record two timed events, while the device is busy."""
    truth = bench.job("events", steps=bench.pick(50, 20, 5)).truth
    bench.figure("pair_us", 1e6 * truth["pair_s"], Bound(6))
    bench.figure("read_us", 1e6 * truth["read_s"])


def timeline(bench: Bench) -> None:
    """torch.profiler's timeline of the device against the steps and classes of ddlprof, in the same run."""
    ended, events = _with_profiler(bench, under=())
    theirs = device_steps(events)[-PROFILED_STEPS + 1 : -1]
    if not theirs:
        raise Failed("torch.profiler's trace has no steps of the device")
    last = FIRST_PROFILED + PROFILED_STEPS - 2
    steps = ended.run().steps
    ours = steps[steps["step"].between(last - len(theirs) + 1, last)]
    step = statistics.fmean(row["step"] for row in theirs)
    bench.figure("steps", len(ours))
    bench.figure("step_ms", 1e3 * step)
    bench.figure("step_error", abs(ours["step_s"].mean() / step - 1), Bound(0.005, known=True))
    for name in ("compute", "data", "h2d"):
        error = abs(ours[f"{name}_s"].fillna(0).mean() - statistics.fmean(row[name] for row in theirs)) / step
        bench.figure(f"{name}_error", error, Bound(0.02))
    if bench.rehearse:
        bench.note("the timeline is the simulation's own, not Kineto's; the host is slow between its kernels")


def _with_profiler(bench: Bench, under: tuple[str, ...]) -> tuple[Ended, list[Any]]:
    """The loop with the user's own profiler, which looks at some steps, and its events."""
    trace = bench.folder / "trace.json"
    sizes: dict[str, Any] = {
        "mb": bench.pick(64, 64, 4),
        "device_ms": 10,
        "sleep_ms": 18,
        "steps": 80,
        "copy": "pinned",
    }
    window: dict[str, Any] = {"first_profiled": FIRST_PROFILED, "profiled_steps": PROFILED_STEPS}
    ended = bench.job("loop", under=under, profile=trace, **sizes, **window)
    return ended, json.loads(trace.read_text(encoding="utf-8")) if trace.exists() else []


def device_steps(events: list[Any]) -> list[dict[str, float]]:
    """Seconds of each step on the device's timeline, each of which begins with a copy to the device.

    The device is idle before the copy while the loop waits for data.
    """
    work = sorted((begin, end, name) for name, kind, begin, end in events if kind == DEVICE)
    rows: list[dict[str, float]] = []
    before, copied, over, started = 0.0, (0.0, 0.0), 0.0, False
    for begin, end, name in [*work, (float("inf"), float("inf"), COPY)]:
        if name.startswith(COPY):
            if started and before:
                data, h2d = copied[0] - before, copied[1] - copied[0]
                rows.append({"step": over - before, "data": data, "h2d": h2d, "compute": over - copied[1]})
            before, copied, started = over, (begin, end), True
        over = max(over, end)
    return rows


def one_window(bench: Bench) -> None:
    """Steps after a profiler window of ours, which should be as fast as those of a run without one."""
    arguments = {"model": "toy", "warmup": 0, "steps": bench.pick(1000, 500, 150)}
    late: dict[bool, list[float]] = {True: [], False: []}
    windows, notes = 0, []
    for _ in range(bench.pick(3, 2, 1)):
        for windowed in (False, True):
            ended = bench.job("speed", under=("--profiler-windows=1",) if windowed else (), **arguments)
            late[windowed].append(statistics.median(ended.truth["each_s"][LATE]))
            if windowed:
                early = statistics.median(ended.truth["each_s"][EARLY])
                run = ended.run()
                windows, notes = len(rank_of(run).windows), notes_of(run)
    bench.figure("windows", windows, Bound(1, at_least=True))
    _no_kineto(bench)
    bench.figure("later_steps", statistics.median(late[True]) / statistics.median(late[False]) - 1, Bound(0.01))
    bench.figure("later_vs_before", late[True][-1] / early - 1)
    _note(bench, notes)


def several_windows(bench: Bench) -> None:
    """Three profiler windows in one run."""
    steps = bench.pick(1300, 1300, 1100)
    run = bench.job("speed", under=("--profiler-windows=3",), model="toy", warmup=0, steps=steps).run()
    windows = rank_of(run).windows
    bench.figure("windows", len(windows), Bound(3, at_least=True))
    _no_kineto(bench)
    if windows:
        bench.figure("idle_share", statistics.fmean(1 - w.work_ns / w.window_ns for w in windows))
        bench.figure("kernels", statistics.fmean((w.kernels or 0) / w.updates for w in windows))
    _note(bench, notes_of(run))


def user_profiler(bench: Bench) -> None:
    """The user's own profiler is on when ours would open a window: his trace is whole."""
    ended, events = _with_profiler(bench, under=("--profiler-windows=1",))
    marked = [e for e in events if e[0].startswith("ProfilerStep") and e[1] != DEVICE]
    bench.figure("his_steps", len(marked), Bound(PROFILED_STEPS, at_least=True, known=True))
    bench.figure("his_device_steps", len(device_steps(events)), Bound(PROFILED_STEPS - 1, at_least=True, known=True))
    run = ended.run()
    bench.figure("our_windows", len(rank_of(run).windows))
    _note(bench, notes_of(run))


def nsight(bench: Bench) -> None:
    """Under Nsight Systems: its report is there, and no window of ours was opened."""
    if shutil.which("nsys") is None:
        raise Skip("nsys is not installed")
    report = bench.folder / "report"
    before = ("nsys", "profile", "--force-overwrite=true", "-o", str(report))
    ended = bench.job("loop", before=before, under=("--profiler-windows=1",), steps=80)
    found = [path for path in Path(bench.folder).glob("report.*") if path.stat().st_size]
    bench.figure("reports", len(found), Bound(1, at_least=True))
    run = ended.run()
    bench.figure("our_windows", len(rank_of(run).windows), Bound(0))
    _note(bench, notes_of(run))


def _note(bench: Bench, notes: list[str]) -> None:
    if notes:
        bench.note("ddlprof notes: " + " / ".join(notes)[:400])


def _no_kineto(bench: Bench) -> None:
    if bench.rehearse:
        bench.note("Kineto sees nothing of a simulated device, so no window says anything")
