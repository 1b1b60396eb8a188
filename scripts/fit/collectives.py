"""Fits what an all-reduce over NVLink costs to published measurements of collectives, each device left out in turn.

    seconds = lead * (1 + growth * log2(GPUs / 2)) + bytes * ring(GPUs) / (efficiency * link)

`link` is the data sheet's speed of a GPU's NVLinks in one direction. The lead, what a reduction costs however fast the
links are, is what keeps small buckets from using faster links; the shipped `nvlink` links have it.

    python -m scripts.fit.collectives --data ../shared/data/operators
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import least_squares

from recommender.communication.exposed import Array
from recommender.target import default_catalog

DEVICES = {"sm_90": "H100-SXM5-80GB", "sm_103": "B300"}
"""The devices of the table whose links the catalogue knows."""
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
    """The all-reduces of `collectives_nvlink.csv` in machines of up to eight GPUs."""
    rows = []
    with (folder / "collectives_nvlink.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            gpus, size = int(row["devices_per_group"]), float(row["bytes"])
            kept = row["op"] == "all-reduce" and row["device"] in DEVICES and gpus <= MOST_GPUS and size >= LEAST_BYTES
            if kept:
                link = default_catalog().gpu(DEVICES[row["device"]]).nvlink_gb_s
                rows.append((row["device"], gpus, size, size / float(row["gb_s"]) / 1e9, link))
    device, *columns = zip(*rows, strict=True)
    return Reductions(device, *(np.array(column, dtype=float) for column in columns))


def seconds_of(numbers: Sequence[float] | Array, at: Reductions) -> Array:
    """The form of this module. `numbers`: lead in seconds, its growth, efficiency."""
    lead, growth, efficiency = numbers
    ring = 2.0 * (at.gpus - 1) / at.gpus
    wire = at.bytes * ring / (efficiency * at.link_gb_s * 1e9)
    return np.asarray(lead * (1.0 + growth * np.log2(at.gpus / 2.0)) + wire)


def fit_reductions(seen: Reductions) -> Array:
    """Lead, growth and efficiency."""

    def residuals(numbers: Array) -> Array:
        return np.log(seconds_of(numbers, seen) / seen.seconds)

    return np.asarray(least_squares(residuals, _START, loss="soft_l1", bounds=_BOUNDS, x_scale=_START).x)


def left_out_errors(seen: Reductions) -> dict[str, float]:
    """The median absolute error on each device, fitted on the others."""
    names = np.array(seen.device)
    found = {}
    for device in sorted(set(seen.device)):
        mine = seen.where(names == device)
        predicted = seconds_of(fit_reductions(seen.where(names != device)), mine)
        found[DEVICES[device]] = float(median(np.abs(predicted / mine.seconds - 1.0)))
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
