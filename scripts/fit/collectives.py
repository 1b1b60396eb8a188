"""Fits what an all-reduce over NVLink costs to published measurements of collectives, each device left out in turn.

    seconds = lead * (1 + growth * log2(GPUs / 2)) + bytes * ring(GPUs) / (efficiency * link)

`link` is the data sheet's speed of a GPU's NVLinks in one direction. The lead, what a reduction costs however fast the
links are, is what keeps small buckets from using faster links; the shipped `nvlink` links have it.

    python -m scripts.fit.collectives --data ../shared/data
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import least_squares

from ddlprof.recommender.communication.exposed import Array
from ddlprof.recommender.target import default_catalog

DEVICES = {
    "sm_90": "H100-SXM5-80GB", "sm_103": "B300",
    "a100_sxm": "A100-SXM4-80GB", "h100_sxm": "H100-SXM5-80GB", "b200_sxm": "B200", "gb200": "GB200",
}  # fmt: skip
"""The devices of XLA's table (sm_...) and of aiconfigurator's, as the catalogue names them."""
LEAST_BYTES = 2e5
"""Smaller reductions than any bucket of gradients say nothing of bandwidth."""
MOST_GPUS = 8
_START = np.array([40e-6, 0.3, 0.7])
_BOUNDS = ([1e-6, 0.0, 0.1], [300e-6, 3.0, 1.2])


@dataclass(frozen=True)
class Reductions:
    """Measured all-reduces as arrays of equal length."""

    device: tuple[str, ...]
    gpus: Array
    bytes: Array
    seconds: Array
    link_gb_s: Array

    def where(self, kept: Array) -> Reductions:
        """Those that are kept."""
        devices = tuple(name for name, keep in zip(self.device, kept, strict=True) if keep)
        return Reductions(devices, self.gpus[kept], self.bytes[kept], self.seconds[kept], self.link_gb_s[kept])


def read_reductions(folder: Path) -> Reductions:
    """The all-reduces in machines of up to eight GPUs, of XLA (`operators/collectives_nvlink.csv`) and of
    aiconfigurator (`layouts/aiconfigurator_nccl.csv`, in 16 bit)."""
    rows = []
    for device, gpus, size, seconds in [*_of_xla(folder), *_of_aiconfigurator(folder)]:
        if device in DEVICES and gpus <= MOST_GPUS and size >= LEAST_BYTES:
            rows.append((device, gpus, size, seconds, default_catalog().gpu(DEVICES[device]).nvlink_gb_s))
    devices, *columns = zip(*rows, strict=True)
    return Reductions(devices, *(np.array(column, dtype=float) for column in columns))


def _of_xla(folder: Path) -> Iterator[tuple[str, int, float, float]]:
    """Device, GPUs, bytes and seconds of each all-reduce."""
    for row in _rows(folder / "operators" / "collectives_nvlink.csv"):
        if row["op"] == "all-reduce":
            size = float(row["bytes"])
            yield row["device"], int(row["devices_per_group"]), size, size / float(row["gb_s"]) / 1e9


def _of_aiconfigurator(folder: Path) -> Iterator[tuple[str, int, float, float]]:
    for row in _rows(folder / "layouts" / "aiconfigurator_nccl.csv"):
        if row["op_name"] == "all_reduce" and row["nccl_dtype"] == "half":
            size = 2.0 * float(row["message_size"])  # elements of two bytes
            yield row["system"], int(row["num_gpus"]), size, float(row["latency"]) / 1e3


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def seconds_of(numbers: Sequence[float] | Array, at: Reductions) -> Array:
    """The form of this module. `numbers`: lead in seconds, its growth, efficiency."""
    lead, growth, efficiency = numbers
    ring = 2.0 * (at.gpus - 1) / at.gpus
    wire = at.bytes * ring / (efficiency * at.link_gb_s * 1e9)
    return np.asarray(lead * (1.0 + growth * np.log2(at.gpus / 2.0)) + wire)


def fit_reductions(seen: Reductions) -> Array:
    """Lead, growth and efficiency; every device counts alike."""
    rows = Counter(seen.device)
    weights = np.array([1.0 / math.sqrt(rows[device]) for device in seen.device])

    def residuals(numbers: Array) -> Array:
        return np.asarray(weights * np.log(seconds_of(numbers, seen) / seen.seconds))

    return np.asarray(least_squares(residuals, _START, loss="soft_l1", bounds=_BOUNDS, x_scale=_START).x)


def left_out_errors(seen: Reductions) -> dict[str, float]:
    """The median absolute error on each device, fitted on the others."""
    names = np.array([DEVICES[device] for device in seen.device])
    found = {}
    for device in sorted(set(names)):
        mine = seen.where(names == device)
        predicted = seconds_of(fit_reductions(seen.where(names != device)), mine)
        found[str(device)] = float(median(np.abs(predicted / mine.seconds - 1.0)))
    return found


def main() -> None:
    """Prints the fit and its errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the published collectives")
    seen = read_reductions(parser.parse_args().data)
    lead, growth, efficiency = fit_reductions(seen)
    print(f"lead {1e6 * lead:.0f} us, growth {growth:.2f}, efficiency {efficiency:.2f}; {len(seen.seconds)} reductions")
    for device, error in left_out_errors(seen).items():
        print(f"{device} left out: median error {error:.0%}")


if __name__ == "__main__":
    main()
