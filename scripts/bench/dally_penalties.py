"""Penalties of placements that tell racks from networks, of the models and layers that Dally's authors published.

    python -m scripts.bench.dally_penalties LAYERS.csv RACK_GB_S NETWORK_GB_S > penalties.json
    ddlprof cluster simulate --trace DALLY.csv:TRACE --cluster 4x2x8 --penalties penalties.json --policy ...

LAYERS.csv has the layers of a model with the nanoseconds of forward and backward and the bytes that are reduced. Each
layer's gradients go over a ring, behind the rest of the backward pass, at NVLink's speed in a machine and at the two
given ones between machines of a rack and between racks. A slowdown is the step there over that in a machine.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import NamedTuple

GPUS = (2, 4, 8, 16, 24, 32, 40, 48, 56)
NVLINK_GB_S = 150.0
LATENCY_S = {"machine": 3e-6, "rack": 5e-6, "network": 50e-6}


class Layer(NamedTuple):
    """A layer of a step."""

    forward_s: float
    backward_s: float
    gradient_bytes: float


def read_layers(path: Path) -> dict[str, list[Layer]]:
    """By the model of the jobs. The input gradients of the first two layers are not counted: the first needs none, and
    both were measured together with the start-up."""
    found: dict[str, list[Layer]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if "astra-sim" in row["file"]:
                layers = found.setdefault(row["dally_job_model"], [])
                input_s = float(row["input_grad_ns"] or 0) if len(layers) > 1 else 0.0
                backward_s = (input_s + float(row["weight_grad_ns"] or 0)) / 1e9
                layers.append(Layer(float(row["forward_ns"]) / 1e9, backward_s, float(row["allreduce_bytes"] or 0)))
    return found


def step_s(layers: list[Layer], gpus: int, gb_s: float, latency_s: float) -> float:
    """A step with an all-reduce for each layer over a ring of so many GPUs."""
    now_s = sum(layer.forward_s for layer in layers)
    free_s = 0.0
    for layer in reversed(layers):
        now_s += layer.backward_s
        if layer.gradient_bytes:
            ring_s = 2 * (gpus - 1) * (layer.gradient_bytes / gpus / (gb_s * 1e9) + latency_s)
            free_s = max(free_s, now_s) + ring_s
    return max(free_s, now_s)


def main() -> None:
    """Prints the file."""
    models = read_layers(Path(sys.argv[1]))
    speeds = {"rack": float(sys.argv[2]), "network": float(sys.argv[3])}
    rows = []
    for model, layers in models.items():
        for level, gb_s in speeds.items():
            slowdowns = [
                step_s(layers, gpus, gb_s, LATENCY_S[level]) / step_s(layers, gpus, NVLINK_GB_S, LATENCY_S["machine"])
                for gpus in GPUS
            ]
            rows.append({"gpu_model": "V100", "model": model, "gpus": GPUS, "level": level,
                         "slowdown": [round(each, 3) for each in slowdowns]})  # fmt: skip
    print(json.dumps({"penalties": rows}, indent=1))


if __name__ == "__main__":
    main()
