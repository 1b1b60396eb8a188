"""Products on tensor cores as XLA's tables have them, of devices that are not in the catalogue: to try the fit on."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from ddlprof.recommender.compute.gpu_peaks import tensor_cores
from ddlprof.recommender.compute.kernel_time import Sizes
from scripts.fit.operators_tensor import Measured, tensor_type_rates

DEVICES = {
    # TFLOP/s by type, GB/s, SMs, W, energy, like which capability. Stated by the vendors: H100 SXM; Rubin (4 and 2
    # PFLOP/s, 22 TB/s, 2026); MI300X; MI350 series. CDNA 4 has no TF32; the library emulates it.
    "sm_90": ({"bf16": 989.4, "tf32": 494.7}, 3350.0, 132.0, 700.0, 1.0, 9.0),
    "sm_107": ({"bf16": 4000.0, "tf32": 2000.0}, 22000.0, 224.0, 1800.0, 0.7, 10.0),
    "gfx942": ({"bf16": 1307.4, "fp16": 1307.4, "tf32": 653.7, "fp8": 2614.9}, 5300.0, 304.0, 750.0, 1.0, 8.0),
    "gfx950": ({"bf16": 2300.0, "fp16": 2300.0, "fp8": 4600.0}, 8000.0, 256.0, 1400.0, 1.0, 8.0),
}
_TYPES = {"bf16": "bf16", "f16": "fp16", "f32": "tf32"}
LAUNCH_S = 2.4e-6
"""What a time of these tables holds besides the kernel: on H100, it is so much longer (median) than that of the same
product in a graph of kernels, whatever its size. Added to what is predicted."""
_ROWS = 400
_WEIGHT = 60.0
_CLOCK_HZ = 1.9e9


def device_groups(rows: pd.DataFrame, devices: Collection[str]) -> list[Measured]:
    """The rows by device and type, where the device computes that type; the name is "device type"."""
    found = []
    for device in devices:
        peaks, gb_s, sms, watts, energy, like = DEVICES[device]
        mine = rows[rows["device"] == device]
        types = mine["a"].map(lambda name: "fp8" if name.startswith("f8") else _TYPES[name])
        cores = tensor_cores(peaks["bf16"] * 1e12, sms, like, _CLOCK_HZ)
        for dtype, peak in peaks.items():
            chosen = mine[types == dtype]
            rates = tensor_type_rates(cores, dtype, peak / peaks["bf16"], gb_s * 1e9, watts, energy)
            b, m, n, k = (chosen[name].to_numpy(float) for name in "bmnk")
            element = rates.element_bytes
            sizes = Sizes(b, m, n, k, b * (element * (m * k + k * n) + max(element, 2) * m * n))
            seconds, name = chosen["latency_us"].to_numpy(float) * 1e-6, f"{device} {dtype}"
            found.append(Measured(name, like, rates, sizes, seconds, _WEIGHT, LAUNCH_S))
    return found


def few(groups: Collection[Measured]) -> list[Measured]:
    """At most so many rows of each group, drawn evenly."""
    found = []
    for group in groups:
        chosen = np.zeros(len(group.seconds), dtype=bool)
        chosen[np.random.default_rng(0).permutation(len(chosen))[:_ROWS]] = True
        found.append(group.rows(chosen))
    return found
