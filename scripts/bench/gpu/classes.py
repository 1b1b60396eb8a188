"""Experiments on a GPU about the classes of a step, graphs, several ranks, and runs that end badly."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from scripts.bench.gpu.cost import notes_of, rank_of
from scripts.bench.gpu.experiment import Bench, Bound, Ended, Failed

STEP_MS = 10
EXACT, CLASS, COMM, SUM = 0.005, 0.02, 0.05, 0.005
ENDS_S = 15


def _steady(ended: Ended) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Steady steps of rank 0: ddlprof's and, of the same numbers, the script's own."""
    steps = ended.run().steps
    ours = steps[(steps["rank"] == 0) & (steps["flags"].fillna("") == "")]
    if not len(ours):
        raise Failed("ddlprof has no steady step")
    return ours, pd.DataFrame(ended.truth["steps"]).iloc[ours["step"].to_numpy()]


def _compare(bench: Bench, ended: Ended, classes: dict[str, float]) -> None:
    """Means against the script's own events, as shares of its mean step; `classes`: limits by name."""
    run = ended.run()
    ours, truth = _steady(ended)
    step = float(truth["step"].mean())
    on_device = rank_of(run).header.clock == "device"
    bench.figure("on_device_clock", int(on_device), Bound(1, at_least=True, known=True))
    bench.figure("steps", len(ours))
    bench.figure("step_ms", 1e3 * step)
    bench.figure("step_error", abs(float(ours["step_s"].mean()) / step - 1), Bound(EXACT, known=True))
    for name, limit in classes.items():
        cells = ours[f"{name}_s"]
        seen = float(cells.mean()) if cells.notna().all() else None
        meant = float(truth[name].mean())
        bench.figure(f"{name}_ms", None if seen is None else 1e3 * seen)
        bench.figure(f"{name}_ms_meant", 1e3 * meant)
        share = meant if name == "comm" else step
        bench.figure(f"{name}_error", None if seen is None else abs(seen - meant) / share, Bound(limit, known=True))
    for note in notes_of(run):
        bench.note(f"ddlprof notes {note}"[:200])


def loader(share: float) -> Callable[[Bench], None]:
    """A loader that sleeps for a share of a step."""

    def run(bench: Bench) -> None:
        steps, ms = bench.pick(300, 100, 60), bench.pick(20, 20, STEP_MS)
        ended = bench.job("loop", under=(), steps=steps, device_ms=ms, sleep_ms=share * ms)
        _compare(bench, ended, {"data": CLASS, "h2d": CLASS})
        bench.figure("data_ms_expected", max(0.0, (share - 1) * ms))

    run.__doc__ = f"A loader in the training process that sleeps {share:g} steps"
    return run


def copy(kind: str) -> Callable[[Bench], None]:
    """64 MB a step to the device."""

    def run(bench: Bench) -> None:
        steps, mb = bench.pick(200, 80, 40), bench.pick(64, 64, 4)
        ended = bench.job("loop", under=(), steps=steps, device_ms=STEP_MS, copy=kind, mb=mb)
        _compare(bench, ended, {"h2d": CLASS, "data": CLASS})

    run.__doc__ = f"64 MB a step to the device: {kind}"
    return run


def first_forward(bench: Bench) -> None:
    """20 s on the host in the first forward: steps, start_s and the sum of all steps are right."""
    first_s, steps = bench.pick(20, 10, 2), bench.pick(200, 100, 60)
    ended = bench.job("loop", under=(), steps=steps, device_ms=STEP_MS, first_s=first_s)
    table, truth = ended.run().steps, pd.DataFrame(ended.truth["steps"])["step"]
    bench.figure("steps", len(table), Bound(steps, at_least=True, known=True))
    bench.figure("first_step_s", float(table["step_s"].iloc[0]))
    bench.figure("first_step_s_meant", float(truth.iloc[0]))
    error = abs(float(table["step_s"].iloc[0] / truth.iloc[0]) - 1)
    bench.figure("first_step_error", error, Bound(0.01, known=True))
    passed = float(table["start_s"].iloc[-1] - table["start_s"].iloc[0])
    meant = float(truth.iloc[:-1].sum())
    bench.figure("start_error", abs(passed / meant - 1), Bound(SUM, known=True))
    bench.figure("sum_error", abs(float(table["step_s"].sum() / truth.sum()) - 1), Bound(SUM, known=True))


def graphs(kind: str) -> Callable[[Bench], None]:
    """The same losses and the same graphs with and without ddlprof."""

    def run(bench: Bench) -> None:
        steps = bench.pick(50, 50, 50 if kind == "captures" else 20)
        plain = bench.job("graphs", kind=kind, steps=steps)
        ours = bench.job("graphs", under=(), kind=kind, steps=steps)
        off = max(
            (abs(a - b) / (abs(b) + 1e-12) for a, b in zip(ours.truth["losses"], plain.truth["losses"], strict=True)),
            default=math.inf,
        )
        bench.figure("loss_error", off, Bound(1e-4, known=True))
        counted, expected = ours.truth["dynamo"], plain.truth["dynamo"]
        bench.figure("same_graphs", int(counted == expected), Bound(1, at_least=True, known=True))
        if counted != expected:
            bench.note(f"dynamo counts {counted}, without us {expected}"[:300])
        run = ours.run()
        bench.figure("steps", len(run.steps))
        bench.figure("seconds_more", ours.seconds - plain.seconds)
        for note in notes_of(run):
            bench.note(f"ddlprof notes {note}"[:200])

    run.__doc__ = f"{kind}: the same losses, graphs, breaks and recompilations with and without ddlprof"
    return run


def strict(kind: str) -> Callable[[Bench], None]:
    """Captures where the helper's queries are not in relaxed mode: how often do they end a capture?"""

    def run(bench: Bench) -> None:
        failed = 0
        for _ in range(bench.pick(3, 1, 1)):
            ended = bench.job(
                "graphs", under=(), kind=kind, steps=bench.pick(50, 50, 20), without_relaxed_mode=1, fails=True
            )
            failed += bool(ended.code)
            if ended.code:
                bench.note((ended.errors or ["no error was printed"])[-1][:200])
        bench.figure("ended_by_us", failed)
        bench.note("a figure above 0 shows what relaxed mode is for; 0 that no query fell into a capture")

    run.__doc__ = f"{kind}, with the helper's queries not in relaxed mode: does a capture end?"
    return run


def scaler(bench: Bench) -> None:
    """Fused AdamW with a GradScaler: the same parameters, all steps, and the two skipped updates."""
    steps = bench.pick(100, 100, 40)
    plain = bench.job("scaler", steps=steps)
    ours = bench.job("scaler", under=(), steps=steps)
    table = ours.run().steps
    error = abs(ours.truth["parameters"] - plain.truth["parameters"]) / abs(plain.truth["parameters"])
    bench.figure("parameter_error", error, Bound(1e-4, known=True))
    bench.figure("steps", len(table), Bound(steps, at_least=True, known=True))
    skipped = int(table["flags"].fillna("").str.contains("skipped").sum())
    bench.figure("not_two_skipped", abs(skipped - 2), Bound(0, known=True))
    step = [sum(row["step"] for row in ended.truth["steps"][30:]) for ended in (ours, plain)]
    bench.figure("slow_down", step[0] / step[1] - 1)


def one_rank(kind: str) -> Callable[[Bench], None]:
    """Communication with a sleeping kernel on its stream, at world size 1."""

    def run(bench: Bench) -> None:
        ended = bench.job("ranks", under=(), kind=kind, steps=bench.pick(150, 80, 40), device_ms=STEP_MS, comm_ms=5)
        _compare(bench, ended, {"comm": COMM})

    run.__doc__ = f"{kind} at world size 1, with a sleeping kernel on the stream of its communication"
    return run


def two_ranks(kind: str, options: tuple[str, ...] = ()) -> Callable[[Bench], None]:
    """On two GPUs."""

    def run(bench: Bench) -> None:
        under = ("--nproc-per-node=2", *options)
        ended = bench.job("ranks", under=under, kind=kind, steps=bench.pick(150, 80, 60), device_ms=STEP_MS, comm_ms=5)
        if kind == "fsdp2":
            _compare(bench, ended, {"comm": 2 * COMM})
            return
        ours, truth = _steady(ended)
        bench.figure("steps", len(ours))
        bench.figure("step_error", abs(float(ours["step_s"].mean() / truth["step"].mean()) - 1), Bound(EXACT))
        bench.figure("comm_ms", _mean_ms(ours["comm_s"]), Bound(0, at_least=True))
        if kind == "straggler":
            waited = _mean_ms(ours["straggler_s"])
            bench.figure("straggler_ms", waited)
            bench.figure("straggler_error", None if waited is None else abs(waited - 5) / 5, Bound(0.1))

    run.__doc__ = f"{kind} on two GPUs"
    return run


def _mean_ms(cells: Any) -> float | None:
    return 1e3 * float(cells.mean()) if len(cells) and cells.notna().any() else None


def contexts(bench: Bench) -> None:
    """A script on cuda:1 alone: no context of ours on GPU 0."""
    plain = bench.job("second", steps=50)
    ours = bench.job("second", under=(), steps=50)
    bench.figure("without", plain.truth["contexts"])
    more = ours.truth["contexts"] - plain.truth["contexts"]
    bench.figure("more_with_us", more, Bound(0, known=True))
    clock = rank_of(ours.run()).header.clock
    bench.figure("on_device_clock", int(clock == "device"), Bound(1, at_least=True, known=True))


def fault(kind: str) -> Callable[[Bench], None]:
    """The user's own error, exit code, and soon."""

    def run(bench: Bench) -> None:
        plain = bench.job("faults", kind=kind, steps=30, fails=True)
        ours = bench.job("faults", under=(), kind=kind, steps=30, fails=True)
        if not plain.code:
            raise Failed("the script did not fail without us")
        bench.figure("exit_code", ours.code)
        bench.figure("same_exit", int(ours.code == plain.code), Bound(1, at_least=True, known=True))
        bench.figure("same_error", int(ours.errors == plain.errors), Bound(1, at_least=True, known=True))
        bench.figure("seconds_plain", plain.seconds)
        bench.figure("seconds_ours", ours.seconds, Bound(ENDS_S))
        bench.figure("seconds_more", ours.seconds - plain.seconds)
        bench.note((ours.errors or ["no error was printed"])[-1][:200])

    run.__doc__ = f"{kind}: the user's own error and exit code, within {ENDS_S} s"
    return run
