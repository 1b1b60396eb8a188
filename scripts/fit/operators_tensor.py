"""Products on tensor cores: the fit to published measurements of 16-bit products, of all shapes.

Every generation has a level and an energy of its own, drawn to what its data sheet and its process say, so that tiles,
waves and memory are learned from shapes and not from differences between GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from ddlprof.base.typed import decode
from ddlprof.instance_catalog import Catalog
from ddlprof.recommender.compute.gpu_peaks import GpuPeaks, for_tf32, peaks_of, tensor_cores
from ddlprof.recommender.compute.kernel_time import Array, Flags, Sizes
from ddlprof.recommender.compute.tensor_time import TensorCoefficients, TensorCores, TensorRates, tensor_product_seconds

Fit = dict[str, Any]

SYSTEMS = {
    "a100_sxm": "A100-SXM4-80GB",
    "h100_sxm": "H100-SXM5-80GB",
    "l40s": "L40S",
    "b200_sxm": "B200",
    "gb200": "GB200",
}
"""The source's names of the GPUs. Its Intel B60 is left out: its times hold 30 us of the host for each call, its matrix
units are of another kind, and no machine of the catalogue has it."""
LEAST_ROWS = 1024
"""Products of at least so many rows are those of trainings; fewer are those of inference."""
ENERGY = {7.0: 2.0, 7.5: 2.0, 8.0: 1.0, 8.6: 1.2, 8.9: 1.0, 9.0: 1.0, 10.0: 1.0, 12.0: 1.0}
"""Energy of a clock by process, before the fit: 12 nm twice that of TSMC's 7 to 4 nm, Samsung's 8 nm a little more."""
TYPE_ENERGY = {"tf32": 1.8, "fp8": 0.55}
"""As in `ddlprof.recommender.compute.gpu_peaks`."""
LARGE = Path(__file__).with_name("large_products.csv")
_LARGE_SIDE = 8192.0
_LARGE_CLOCK_HZ = 1.9e9
_SCALE = 0.12
"""How far the logarithms of single products are off: the scale beyond which a row counts less."""
_GPU_ROWS, _LARGE_ROWS = 150.0, 3.0
"""How much the rows of a GPU weigh together, and how much one published large product does."""
_SHARE = {True: 1 / 18, False: 1 / 60}
"""The share of the products taken of each stratum (factors of four in m, n and k), by whether they have at least
`LEAST_ROWS` rows."""
_FEWEST_ROWS = 64


class Start(NamedTuple):
    """Where a coefficient starts, and how far its logarithm goes easily."""

    value: float
    width: float


_STARTS = {
    "efficiency": Start(0.95, 0.05),
    "load": Start(38.0, 0.15),
    "load_sharing": Start(138.0, 0.15),
    "load_norm": Start(3.0, 0.2),
    "tile_clocks": Start(3000.0, 0.3),
    "tile_clocks_sharing": Start(1000.0, 0.3),
    "tile_store": Start(15.0, 0.3),
    "wave": Start(0.95, 0.15),
    "wave_sharing": Start(0.5, 0.25),
    "l2_store": Start(7.0, 0.2),
    "l2_share": Start(0.75, 0.05),
    "read": Start(0.9, 0.05),
    "write": Start(0.85, 0.05),
    "norm": Start(3.0, 0.15),
    "watts": Start(1.6, 0.1),
    "clock_power": Start(0.4, 0.1),
    "start_s": Start(2.1e-6, 0.15),
    "split_s": Start(2.4e-6, 0.35),
}
_SHARES = ("efficiency", "wave", "wave_sharing")
_LEVEL_WIDTH = np.array([[0.04], [0.15]])
"""Of the logarithms of a generation's level and energy."""


class TensorLevel(NamedTuple):
    """What one generation has of its own."""

    level: float
    energy: float


@dataclass(frozen=True)
class Measured:
    """Products measured on one GPU."""

    name: str
    capability: float
    rates: TensorRates
    """Without the level and the energy of the generation."""
    sizes: Sizes
    seconds: Array
    weight: float
    lead_s: float = 0.0
    """What a measured time holds besides the kernel."""

    def rows(self, chosen: Flags) -> Measured:
        """Some of the products."""
        mine = self.sizes
        sizes = Sizes(mine.b[chosen], mine.m[chosen], mine.n[chosen], mine.k[chosen], mine.bytes[chosen])
        return replace(self, sizes=sizes, seconds=self.seconds[chosen])

    def ratios(self, fitted: TensorCoefficients, level: TensorLevel) -> Array:
        """Predicted over measured."""
        energy = self.rates.energy * level.energy
        rates = replace(self.rates, level=level.level, energy=energy)
        found: Array = (tensor_product_seconds(self.sizes, rates, fitted) + self.lead_s) / self.seconds
        return found


def read_products(folder: Path) -> pd.DataFrame:
    """The measured 16-bit products of all shapes: columns system, m, n, k, seconds (the median over frameworks)."""
    rows = pd.read_csv(folder / "aiconfigurator_gemm_bf16.csv.gz")
    rows = rows[rows["system"].isin(SYSTEMS) & (rows["m"] > 0)]
    found: pd.DataFrame = rows.assign(seconds=rows["median"] * 1e-3)[["system", "m", "n", "k", "seconds"]]
    return found


def sampled(rows: pd.DataFrame) -> pd.DataFrame:
    """The same share of each stratum, so that all shapes count, and the fit takes seconds."""
    rows = rows[rows["m"] >= _FEWEST_ROWS].sample(frac=1, random_state=0)
    long = rows["m"] >= LEAST_ROWS
    stratum = rows.groupby([rows["system"], long, *(np.log2(rows[name]) // 2 for name in "mnk")])["m"]
    found: pd.DataFrame = rows[stratum.cumcount() + 0.5 < stratum.transform("size") * long.map(_SHARE)]
    return found


def measured_products(
    rows: pd.DataFrame, catalog: Catalog, bandwidth_of: Callable[[GpuPeaks], float]
) -> Iterator[Measured]:
    """The rows by GPU. `bandwidth_of`: what elementwise operators reach, as `operator_time` has it."""
    for system, mine in rows.groupby("system"):
        machine = peaks_of(catalog.gpu(SYSTEMS[str(system)]))
        assert machine.tensor is not None
        m, n, k = (mine[name].to_numpy(float) for name in "mnk")
        sizes = Sizes(np.ones_like(m), m, n, k, 2 * (m * k + k * n + m * n))
        rates = TensorRates(machine.tensor, 1.0, 2.0, bandwidth_of(machine), machine.watts)
        capability = generation_of(machine.capability)
        yield Measured(machine.name, capability, rates, sizes, mine["seconds"].to_numpy(float), _GPU_ROWS)


def large_products() -> Iterator[Measured]:
    """Published large products on tensor cores, of more GPUs."""
    for row in pd.read_csv(LARGE).to_dict("records"):
        if row["dtype"] == "fp32":
            continue
        speed = 0.5 if row["dtype"] == "tf32" else 1.0
        capability = generation_of(row["capability"])
        cores = tensor_cores(row["peak_tflops"] * 1e12 / speed, row["sms"], capability, _LARGE_CLOCK_HZ)
        rates = tensor_type_rates(cores, row["dtype"], speed, 1e12, row["watts"])
        side, second = np.array([_LARGE_SIDE]), 2 * _LARGE_SIDE**3 / (row["tflops"] * 1e12)
        sizes = Sizes(np.ones(1), side, side, side, rates.element_bytes * 3 * side**2)
        yield Measured(row["gpu_model"], capability, rates, sizes, np.array([second]), _LARGE_ROWS)


def tensor_type_rates(
    cores: TensorCores, dtype: str, speed: float, bandwidth_b_s: float, watts: float, energy: float = 1.0
) -> TensorRates:
    """The rates of a type whose peak is `speed` times that of 16-bit types."""
    element = {"tf32": 4.0, "fp8": 1.0}.get(dtype, 2.0)
    used = energy * TYPE_ENERGY.get(dtype, 1.0) * speed
    cores = cores if dtype != "tf32" else for_tf32(cores)
    return TensorRates(cores, speed, element, bandwidth_b_s, watts, energy=used)


def generation_of(capability: float) -> float:
    """The generation, by its first capability, of the fit."""
    return max((each for each in ENERGY if each <= capability), default=min(ENERGY))


def without(groups: Sequence[Measured], gpu: str) -> list[Measured]:
    """The measurements without a chip, by whomever."""
    chip = gpu.split("-")[0]
    return [group for group in groups if group.name.split("-")[0] != chip]


def tensor_coefficients(values: Array) -> Fit:
    """Logarithms, in the order of `_STARTS`, as `TensorCoefficients`."""
    e = dict(zip(_STARTS, np.exp(values).tolist(), strict=True))
    e |= {name: min(e[name], 1.0) for name in _SHARES}
    pairs = {name.removesuffix("_sharing") for name in e if name.endswith("_sharing")}
    found: Fit = {name: value for name, value in e.items() if name not in pairs and not name.endswith("_sharing")}
    return found | {name: [e[name], e[f"{name}_sharing"]] for name in sorted(pairs)}


def fit_tensor(groups: Collection[Measured], by: Callable[[Measured], Any]) -> tuple[Fit, dict[Any, TensorLevel]]:
    """Products on tensor cores. `by`: what has a level and an energy of its own (a generation, or a device)."""
    keys = sorted({by(group) for group in groups})
    start = np.log([each.value for each in _STARTS.values()])
    width = np.array([each.width for each in _STARTS.values()])
    prior = np.log([[1.0, ENERGY.get(key, 1.0)] for key in keys]).T

    def residuals(values: Array) -> Array:
        fitted = decode(TensorCoefficients, tensor_coefficients(values[: len(start)]))
        free = values[len(start) :].reshape(prior.shape)
        found = [(values[: len(start)] - start) / width, (free / _LEVEL_WIDTH).ravel()]
        levels = np.exp(free + prior).T.tolist()
        for group in groups:
            level = TensorLevel(*levels[keys.index(by(group))])
            off = np.log(group.ratios(fitted, level)) / _SCALE
            found.append(off * np.sqrt(group.weight / len(off)))
        return np.concatenate(found)

    first = np.concatenate([start, np.zeros(prior.size)])
    scale = np.concatenate([width, np.broadcast_to(_LEVEL_WIDTH, prior.shape).ravel()])
    best = least_squares(residuals, first, loss="soft_l1", max_nfev=40, x_scale=scale).x
    levels = np.exp(best[len(start) :].reshape(prior.shape) + prior).T.tolist()
    return tensor_coefficients(best[: len(start)]), {
        key: TensorLevel(*level) for key, level in zip(keys, levels, strict=True)
    }


def level_of(capability: float, levels: Mapping[Any, TensorLevel]) -> TensorLevel:
    """Of a generation; that of its data sheet and process where nothing of it was measured."""
    return levels.get(capability, TensorLevel(1.0, ENERGY.get(capability, 1.0)))
