"""Plans that divide the layers of a model over unequal devices: predicted and measured steps, and memory.

`python -m scripts.bench.stages [--rounds 3] [--steps 5]`. Processes stand for the devices
(`scripts/lab/unequal_devices.py`). Each of them measures some blocks of the net at some numbers of samples; two
measure a transfer. From this and from the traced net (`ddlprof features`) the search of `ddlprof plan` makes its plan.
In each round the devices measure again, then the plan and the best one with as many layers on every device are trained,
each in processes of its own. A round's step is the median of all steps but the first; it is predicted from what was
measured right before. Figures are medians of the rounds. Last, each device tries to train the whole model alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from bisect import bisect
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from ddlprof.extensions.hetero.devices import Devices, GpuNode
from ddlprof.extensions.hetero.predicted import joined_layers, memory_use
from ddlprof.extensions.hetero.problem import DeviceWork
from ddlprof.extensions.hetero.report.stages import as_plan
from ddlprof.extensions.hetero.stages.problem import MemoryUse, Stage, StagedProblem, StagedStrategy
from ddlprof.extensions.hetero.stages.schedule import simulate_stages
from ddlprof.extensions.hetero.stages.search import PlannedStages, StagedPlan, make_staged_plan
from ddlprof.model.operators import StepOperators
from ddlprof.operators.model_alone import look, parse_input
from ddlprof.operators.trace_step import StepSettings
from ddlprof.recommender import Workload
from ddlprof.recommender.compute.memory import JobMemory
from scripts.bench.machine import describe
from scripts.lab.unequal_devices import SAMPLES, Net, NetSizes, SlowDevice, measured_blocks, run

MIB = 2**20
FIXED_MIB = 24.0
"""What threads, buffers of gloo and the allocator of a process take besides."""
LIMIT = 0.10
"""The largest accepted error of a predicted step."""


@dataclass(frozen=True)
class Scenario:
    """A net and devices for it."""

    name: str
    net: NetSizes
    devices: tuple[SlowDevice, ...]
    batch: int


SCENARIOS = (
    Scenario(
        "three unequal", NetSizes(512, 12, 2),
        (SlowDevice("slow", 0.2, 150), SlowDevice("fast", 0.6, 180), SlowDevice("middle", 0.3, 150)), 16,
    ),
    Scenario(
        "two, the fast one is small", NetSizes(512, 10, 2),
        (SlowDevice("small", 0.5, 130), SlowDevice("large", 0.3, 160)), 16,
    ),
    Scenario(
        "few and large layers", NetSizes(1024, 2, 2),
        (SlowDevice("slow-1", 0.1, 110), SlowDevice("slow-2", 0.1, 110), SlowDevice("fast", 0.2, 110)), 16,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class MeasuredTimes:
    """The times of devices by what each measured of one block."""

    measured: tuple[dict[str, Any], ...]
    blocks: float
    """The computation of the whole net, as a multiple of what was measured."""
    updates: float
    """The parameters of the whole net, as a multiple of those that were updated."""

    def work(self, device: int, samples: int) -> DeviceWork:
        """The whole net with so many samples, linear between what was measured."""
        found = self.measured[device]
        above = min(max(bisect(SAMPLES, samples), 1), len(SAMPLES) - 1)
        few, many = SAMPLES[above - 1 : above + 1]

        def at(seconds: list[float]) -> float:
            short, long = seconds[above - 1 : above + 1]
            return max(short + (long - short) * (samples - few) / (many - few), 1e-9) * self.blocks

        return DeviceWork(at(found["forward_s"]), at(found["backward_s"]), update_s=found["update_s"] * self.updates)

    def most(self, device: int) -> int | None:
        """Not looked at: stages count their memory themselves."""
        return None


def traced(net: NetSizes) -> StepOperators:
    """The step of the net as `ddlprof features` counts it."""
    import torch

    with torch.device("meta"):
        model = Net(net)
    settings = StepSettings(batch=8, precision="fp32", optimizer="adam-single")
    found = look(model, [parse_input(f"{net.rows},16")], settings).step
    assert found is not None
    return found


def problem(scenario: Scenario, step: StepOperators, measured: list[dict[str, Any]]) -> StagedProblem:
    """The scenario with what its processes measured."""
    (few, short_s), (many, long_s) = measured[0]["moved"]
    gb_s = (many - few) / max(long_s - short_s, 1e-9) / 1e9
    latency_s = max(short_s - few / gb_s / 1e9, 0.0)
    assert step.memory is not None
    layers = joined_layers(step.layers, step.batch, step.memory.input_bytes or 0.0)
    flops, gradients = (
        sum(getattr(each, name) for each in step.layers) for name in ("forward_flops", "gradient_bytes")
    )
    of_block = [each for each in step.layers if each.name.startswith("blocks.0.")]
    blocks = measured_blocks(scenario.net, len(scenario.devices))
    times = MeasuredTimes(
        tuple(measured), flops / blocks / sum(each.forward_flops for each in of_block),
        gradients / blocks / sum(each.gradient_bytes for each in of_block),
    )  # fmt: skip
    workload = Workload(
        "net", len(step.layers), gradient_bytes=gradients, global_batch=scenario.batch, step=step, measurements=[]
    )
    memory = partial(memory_use, JobMemory(workload), step)

    def of_process(samples: int) -> MemoryUse:
        found = memory(samples)
        return MemoryUse(FIXED_MIB * MIB, found.states, found.saved, found.temporary)

    machines = tuple(GpuNode(each.name, 1, gb_s, gb_s) for each in scenario.devices)
    limits = tuple(each.memory_mib * MIB for each in scenario.devices)
    return StagedProblem(Devices(machines, latency_s), layers, scenario.batch, times, of_process, limits)


def train(folder: Path, scenario: Scenario, staged: StagedProblem, planned: PlannedStages, steps: int) -> list[Any]:
    """Trains by a plan; what each of its ranks wrote."""
    plan = json.loads(as_plan("net", StagedPlan(staged, planned, None)))
    devices = [scenario.devices[index] for index in planned.strategy.used]
    return run(folder, "train", devices, scenario.net, batch=scenario.batch, plan=plan, steps=steps)


def alone(folder: Path, scenario: Scenario, device: int) -> dict[str, Any]:
    """One device that tries to train the whole model, a sample at a time."""
    plan = {
        "schema": 2,
        "ranks": [{"device": scenario.devices[device].name, "machine": "here", "samples": 1}],
        "stages": [{"begins": "", "ranks": [0]}],
        "micro_batches": scenario.batch,
    }
    devices = [scenario.devices[device]]
    found: dict[str, Any] = run(folder, "train", devices, scenario.net, batch=scenario.batch, plan=plan, steps=1)[0]
    return found


def replicated(staged: StagedProblem) -> PlannedStages:
    """A block on the last device and one on the two others, which divide each of four micro-batches."""
    cut = next(number for number, layer in enumerate(staged.layers) if layer.name.startswith("blocks.1."))
    whole = staged.batch // 4
    stages = Stage(0, cut, (2,), (whole,)), Stage(cut, len(staged.layers), (0, 1), (whole // 2, whole // 2))
    strategy = StagedStrategy(stages, 4)
    return PlannedStages(strategy, simulate_stages(staged, strategy))


def steps_of(ranks: list[Any]) -> list[float]:
    """The seconds of each step but the first: until its last rank is done."""
    return [max(each) for each in zip(*(rank["steps_s"] for rank in ranks), strict=True)][1:]


def compare(scenario: Scenario, rounds: int, steps: int, folder: Path) -> bool:
    """Prints a scenario; returns whether predictions are within the limit and the plan is not the slower one."""
    step, tried = traced(scenario.net), dict[str, PlannedStages]()
    predicted_s: dict[str, list[float]] = {}
    measured_s: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}
    for number in range(rounds):
        now = run(folder / f"measure-{number}", "measure", list(scenario.devices), scenario.net)
        staged = problem(scenario, step, now)
        if not tried:
            plan = make_staged_plan(staged)
            assert plan is not None, "nothing fits"
            tried = {"plan": plan.best} | ({"equal layers": plan.uniform} if plan.uniform else {})
            if scenario.net.blocks == 2:
                tried["replicas"] = replicated(staged)
        for name, planned in tried.items():
            predicted_s.setdefault(name, []).append(simulate_stages(staged, planned.strategy).step_s)
            ranks = train(folder / f"{name}-{number}", scenario, staged, planned, steps)
            measured_s.setdefault(name, []).append(median(steps_of(ranks)))
            used[name] = [rank["used_mib"] for rank in ranks]
    print(f"\n{scenario.name}: {scenario.net.blocks} blocks, {scenario.batch} samples a step")
    good = True
    for name, planned in tried.items():
        ratio = median(one / other for one, other in zip(predicted_s[name], measured_s[name], strict=True))
        good &= abs(ratio - 1) <= LIMIT
        of = {"predicted": predicted_s[name], "measured": measured_s[name]}
        steps_ms = "  ".join(f"{word} {median(each) * 1e3:6.0f} ms" for word, each in of.items())
        print(f"  {name:13} {steps_ms}  ratio {ratio:.3f}  bubble {planned.step.bubble:.0%}")
        print(f"    {_words(staged, planned)}")
        needs = [f"{planned.step.memory_bytes[device] / MIB:.0f}" for device in planned.strategy.used]
        found = ", ".join(f"{each:.0f}" for each in used[name])
        print(f"    memory predicted {', '.join(needs)} MiB, used {found} MiB")
    if "equal layers" in tried:
        good &= median(measured_s["plan"]) <= 1.02 * median(measured_s["equal layers"])
    for number, device in enumerate(scenario.devices):
        failed = alone(folder / f"alone-{number}", scenario, number).get("failed")
        print(f"  {device.name} alone: {'does not fit: ' + failed if failed else 'fits'}")
    return good


def _words(staged: StagedProblem, planned: PlannedStages) -> str:
    stages = [
        f"{staged.layers[stage.first].name} on {' + '.join(staged.devices.all[d].name for d in stage.devices)}"
        + (f" {stage.samples}" if len(stage.devices) > 1 else "")
        for stage in planned.strategy.stages
    ]
    return f"{planned.strategy.micro_batches} micro-batches; " + "; ".join(stages)


def main() -> None:
    """Prints all scenarios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", default="", help="scenarios whose name contains this")
    options = parser.parse_args()
    print(describe())
    with tempfile.TemporaryDirectory() as folder:
        chosen = [each for each in SCENARIOS if options.only in each.name]
        good = [compare(each, options.rounds, options.steps, Path(folder, each.name)) for each in chosen]
    print("\nholds" if all(good) else f"\ndoes not hold: predictions within {LIMIT:.0%}, plans not the slower ones")


if __name__ == "__main__":
    main()
