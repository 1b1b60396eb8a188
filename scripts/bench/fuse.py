"""What fusing repetitive trainings gains, predicted and measured, beside what is required of it.

`python -m scripts.bench.fuse sweep` (minutes): eight learning rates on scikit-learn's digits as one, against a loop in
one process, and against eight processes, two at a time. `python -m scripts.bench.fuse nets` (minutes): the gain
predicted from few models against the gain measured, for ten networks; `others`: for ten networks of others, with
whether the verdict is what the measurement says; a number of models and of cases may follow (`others 4 0,1`). One
thread; wall time from start to end, and the processor time of all processes; steps take turns. What is compared with is
a script as a user writes it, without us. The load of the machine is printed, as it is in every wall time.
"""

from __future__ import annotations

import importlib
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from ddlprof.base.cores import available_cores

RATES = "1e-3,2e-3,3e-3,5e-3,1e-2,2e-2,3e-2,5e-2"
_NETS, _OTHERS = "scripts.bench.fuse_cases", "scripts.bench.fuse_others"
_ONE = """
import sys, torch
from torch.nn import functional
from {nets} import digits_net, digits_test, digits_train
torch.set_num_threads(1)
for rate in sys.argv[2].split(","):
    torch.manual_seed(0)
    model = digits_net()
    optimizer = torch.optim.Adam(model.parameters(), float(rate))
    for epoch in range(int(sys.argv[1])):
        for x, y in digits_train():
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in digits_test():
            output = model(x)
            print(rate, functional.cross_entropy(output, y).item(), (output.argmax(1) == y).float().mean().item())
"""
_START = """
import torch
from {nets} import digits_net
digits_net()
"""
_FUSED = """
import sys, torch
from ddlprof.extensions.fusion.task import Names
from ddlprof.extensions.fusion.loop import Course, Length, train
from ddlprof.extensions.fusion.training import Together
torch.set_num_threads(1)
task = Names("{nets}:digits_net", "{nets}:digits_train", metric="accuracy", evaluation="{nets}:digits_test").load()
values = [{{"lr": float(rate)}} for rate in sys.argv[2].split(",")]
course = Course(task, Together(task, values), range(len(values)), values[0], Length(None, int(sys.argv[1])), True)
for each in train(course, lambda done: None):
    print(each)
"""
_COMMAND = """
import sys
from ddlprof.cli.app import main
sys.argv = ["ddlprof", "fuse", "{nets}:digits_net", "--data", "{nets}:digits_train", "--eval", "{nets}:digits_test",
            "--metric", "accuracy", "--epochs", sys.argv[1], "--sweep", "lr=" + sys.argv[2]]
sys.exit(main())
"""


def main() -> int:
    """Prints a table, as Markdown."""
    os.environ["OMP_NUM_THREADS"] = "1"
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what == "sweep":
        _sweep(int(sys.argv[2]) if len(sys.argv) > 2 else 40, int(sys.argv[3]) if len(sys.argv) > 3 else 3)
    elif what in ("nets", "others"):
        which = [int(each) for each in sys.argv[3].split(",")] if len(sys.argv) > 3 else None
        _nets(_NETS if what == "nets" else _OTHERS, int(sys.argv[2]) if len(sys.argv) > 2 else 8, which)
    else:
        print(__doc__)
        return 2
    return 0


def _sweep(epochs: int, rounds: int) -> None:
    rates = RATES.split(",")
    ways: dict[str, Callable[[], tuple[float, float]]] = {
        "as one": lambda: _run([(_FUSED, RATES)], epochs, 1),
        "as one, `ddlprof fuse` with its verdict": lambda: _run([(_COMMAND, RATES)], epochs, 1),
        "one after another in one process": lambda: _run([(_ONE, RATES)], epochs, 1),
        "eight processes, two at a time": lambda: _run([(_ONE, rate) for rate in rates], epochs, 2),
    }
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            found[way].append(run())
            print(way, *(f"{each:.1f}" for each in found[way][-1]), file=sys.stderr, flush=True)
    empty = [_run([(_START, RATES)], epochs, 1) for _ in range(rounds)]
    start_wall, start_cpu = (statistics.median(each) for each in zip(*empty, strict=True))
    print(f"{epochs} epochs, {len(rates)} learning rates, adam; load average {os.getloadavg()[0]:.1f};")
    print(f"a process that starts and ends takes {start_wall:.1f} s (processor {start_cpu:.1f} s)\n")
    print("| way | wall s | times | processor s | times | without starts: processor s | times |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    starts = dict.fromkeys(ways, 1) | {"eight processes, two at a time": len(rates)}
    walls = {way: statistics.median(wall for wall, _ in each) for way, each in found.items()}
    cpus = {way: statistics.median(cpu for _, cpu in each) for way, each in found.items()}
    trained = {way: cpus[way] - starts[way] * start_cpu for way in ways}
    for way in ways:
        cells = [f"{each[way]:.1f} | {each[way] / each['as one']:.1f}" for each in (walls, cpus, trained)]
        print(f"| {way} | {' | '.join(cells)} |")
    print("\nrequired of wall: two at a time at least 4 times, one after another at least 2 times")


def _run(programs: list[tuple[str, str]], epochs: int, at_once: int) -> tuple[float, float]:
    """Wall and processor seconds of the programs, so many at a time."""
    begin, before = time.perf_counter(), _children_s()
    waiting = list(programs)
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        while waiting and len(running) < at_once:
            program, rates = waiting.pop(0)
            command = [sys.executable, "-c", program.format(nets=_NETS), str(epochs), rates]
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        if running.pop(0).wait():
            raise SystemExit("a training failed")
    return time.perf_counter() - begin, _children_s() - before


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _nets(module: str, models: int, which: list[int] | None) -> None:
    import torch

    from ddlprof.extensions.fusion.job import run
    from ddlprof.extensions.fusion.loop import Length
    from ddlprof.extensions.fusion.part import Options
    from ddlprof.extensions.fusion.prediction import WORTH_GAIN
    from ddlprof.extensions.fusion.task import Names

    cases = list(importlib.import_module(module).CASES)
    torch.set_num_threads(1)
    print(f"{models} models; load average {os.getloadavg()[0]:.1f}; {available_cores()} cores; required: within 30 %\n")
    print(
        "| network | alone ms | same share | predicted | measured | off | two processes: predicted | measured | said |"
        " right |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|---|")
    off = []
    for number in range(len(cases)) if which is None else which:
        name = cases[number]
        names = Names(f"{module}:case_net", f"{module}:case_batches", optimizer="sgd")
        rates = [0.001 * (1 + each) for each in range(models)]
        options = Options(Length(2, 1), force=True, budget_s=3.0, beside=2)
        part = run(names, {"lr": list(rates), "number": [number], "momentum": [0.9]}, options).parts[0]
        found, measured = part.prediction, part.measured
        if found is None or measured is None:
            print(f"| {name} | {part.reason} |")
            continue
        off.append(abs(found.gain / measured.gain - 1))
        beside = [found.gain_beside, measured.gain_beside]
        said = "do not" if "--force" in part.reason else "fuse"
        should = "fuse" if measured.gain >= WORTH_GAIN and (beside[1] or 1) >= 1 else "do not"
        print(
            f"| {name} | {1e3 * found.alone_s:.2f} | {100 * found.launch_share:.0f} % | {found.gain:.2f} |"
            f" {measured.gain:.2f} | {100 * off[-1]:.0f} % |"
            f" {' | '.join('' if each is None else f'{each:.2f}' for each in beside)} | {said} |"
            f" {'yes' if said == should else 'no'} |",
            flush=True,
        )
    print(f"\noff: median {100 * statistics.median(off):.0f} %, worst {100 * max(off):.0f} %")


if __name__ == "__main__":
    sys.exit(main())
