"""Fits what layouts of large transformers cost beyond products and links to published steps, and writes the file.

Each software (nanotron, Megatron-LM, torchtitan, ...) has its own coefficients around common ones: a hierarchical fit
with Gaussian priors. Errors are those of models, sources and GPUs left out.

    python -m scripts.fit.layouts --data ../shared/data/layouts [--write]
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from ddlprof.recommender.communication.exposed import Array
from ddlprof.recommender.estimate import Z80
from ddlprof.recommender.layouts.coefficients import TUNED, LayoutCoefficients, shipped_layouts
from ddlprof.recommender.layouts.time import LayoutTime
from scripts.bench.jobs import print_table
from scripts.fit.layout_cases import Case, cases

FILE = Path("recommender/layouts/coefficients.json")
LEAST_MFU = 0.15
"""Slower steps of nanotron's sweep scatter by factors for one layout."""
SOFTWARE = {
    "bridge": "megatron", "mlperf": "megatron", "simumax": "megatron-plain", "torchtitan": "torchtitan",
    "fms": "torchtitan", "internevo": "internevo", "nanotron": "nanotron",
}  # fmt: skip
"""The software of each source. SimuMax measured Megatron-LM without its overlaps and fused kernels."""
STATED: dict[str, dict[str, Any]] = {
    "nanotron": {"activations": 1.8, "gradient_bytes": 6.0, "balanced": True},
    "torchtitan": {"selective_products": 0.5, "logit_bytes": 14.0},
    "internevo": {"activations": 1.2},
    "megatron": {"piece": 2.0**27},
}
"""What is known of a software besides: what it keeps (medians of published peaks), computes again, how it divides
layers, and its buckets (Megatron-Bridge's; those of Megatron-LM are as large from 128 data ranks on)."""
MEMORY_SPREAD = {"megatron": 0.1, "megatron-plain": 0.1}
_EAGER_SPREAD, _ANY_SPREAD = 0.2, 0.7
"""How much more activations may take: by software that was compared row by row, by others, and where it is not known
(`scripts/fit/layout_errors.py` of commit 88b731a1 has the comparison)."""
LOOSE = {"megatron": 10.0}
"""How much more a software may differ: freely. Megatron-LM, tuned by its vendor, is not one of those that the common
coefficients stand for: where it is likely, they are not used."""
_ROBUST = 0.15
"""Errors well beyond this count by their size, not by their square."""
_NOISE = 0.1
_MOST_OF_A_GROUP = 10.0
"""Rows of one model, GPU and source count as at most so many."""
_STEP = 1e-3


class Parameter(NamedTuple):
    """A coefficient with its prior: where it starts, its scale, and standard deviations on that scale."""

    name: str
    start: float
    share: bool
    """Whether it is a share from 0 to 1 (logit), or positive (logarithm)."""
    sd: float
    differs: float
    """How much software differs; 0: it does not."""

    def inner(self, value: float) -> float:
        """The value on the fitted scale."""
        return math.log(value / (1 - value)) if self.share else math.log(value)

    def outer(self, inner: float) -> float:
        """The value of the coefficient."""
        return 1 / (1 + math.exp(-inner)) if self.share else math.exp(inner)


PARAMETERS = (
    Parameter("products", 1.15, False, 0.15, 0.12),
    Parameter("attention", 1.3, False, 0.3, 0.2),
    Parameter("streams", 1.4, False, 0.4, 0.3),
    Parameter("experts", 1.3, False, 0.4, 0.0),
    Parameter("kernel_s", 1.5e-5, False, 1.0, 0.8),
    Parameter("tensor_host_s", 2e-3, False, 1.0, 1.0),
    Parameter("tensor_stage_s", 3e-4, False, 1.0, 1.5),
    Parameter("micro_s", 1e-3, False, 1.0, 0.7),
    Parameter("step_s", 0.02, False, 0.5, 1.0),
    Parameter("update_bytes", 40.0, False, 0.4, 0.3),
    Parameter("accumulate_bytes", 10.0, False, 0.3, 0.0),
    Parameter("tensor_exposed", 0.6, True, 1.0, 1.0),
    Parameter("data_hidden", 0.7, True, 1.0, 1.0),
    Parameter("update_hidden", 0.4, True, 1.0, 1.5),
    Parameter("piece", 3e7, False, 0.5, 1.0),
    Parameter("gather_hidden", 0.8, True, 1.0, 0.0),
    Parameter("network", 0.7, True, 0.7, 0.0),
    Parameter("hop_s", 3e-5, False, 0.7, 0.0),
    Parameter("send_s", 2e-4, False, 1.0, 1.0),
    Parameter("uneven", 0.01, False, 0.7, 0.0),
)
_START = np.array([each.inner(each.start) for each in PARAMETERS])
_SD = np.array([each.sd for each in PARAMETERS])
_DIFFERS = np.array([each.differs for each in PARAMETERS])
_OWN = np.flatnonzero(_DIFFERS)
_TUNABLE = np.array(
    [
        PARAMETERS[index].name
        in ("products", "attention", "streams", "tensor_exposed", "data_hidden", "update_hidden", "tensor_host_s")
        for index in _OWN
    ]
)
"""Whether a vendor's tuning changes it by much: fused kernels and overlap."""


@dataclass
class Fit:
    """Fitted numbers: common ones, and the differences of each software."""

    common: Array
    own: dict[str, Array] = field(default_factory=dict)

    def coefficients(self, software: str | None) -> LayoutCoefficients:
        """Those of a software; of all together where it was not in the fit."""
        base, numbers = shipped_layouts().common, self.common.copy()
        if software in self.own:
            numbers[_OWN] += self.own[software]
        values = {each.name: each.outer(float(number)) for each, number in zip(PARAMETERS, numbers, strict=True)}
        stated = STATED.get(software or "", {"balanced": True} if software is None else {})
        return replace(base, **{"balanced": False, **values, **stated})


class Steps:
    """Predicts cases; layers of one shape are timed once for all coefficients."""

    def __init__(self) -> None:
        self._timed: dict[tuple[object, ...], LayoutTime] = {}

    def seconds(self, found: Sequence[Case], fit: Fit, known: bool = True) -> Array:
        """The predicted step of each case. `known`: with the coefficients of its software."""
        times: dict[tuple[object, ...], LayoutTime] = {}
        result = []
        for case in found:
            software = SOFTWARE[case.source] if known else _assumed(case)
            key = (case.model, case.gpu, case.fabric, case.precision)
            if key not in self._timed:
                common = shipped_layouts().common
                self._timed[key] = LayoutTime(case.model, case.gpu, case.fabric, common, case.precision)
            run = (key, software, *case.stated.items())
            if run not in times:
                fitted = replace(fit.coefficients(software), **dict[str, Any](case.stated))
                times[run] = self._timed[key].fitted_as(fitted)
            step = times[run].step(case.layout, case.gpus, case.micro_batch, case.grad_accum)
            result.append(step.step_s)
        return np.array(result)


def _assumed(case: Case) -> str | None:
    """The software where none is named, as `FittedLayouts.of` chooses it."""
    return TUNED if case.precision == "fp8" or case.model.experts else None


def fit_cases(found: Sequence[Case], steps: Steps, rounds: int = 10) -> Fit:
    """The fit; robust, each group of rows bounded in weight."""
    names = sorted({SOFTWARE[case.source] for case in found})
    weights, measured = _weights(found), np.log([case.step_s for case in found])
    masks = {name: np.array([SOFTWARE[case.source] == name for case in found]) for name in names}
    own, many = len(_OWN), len(PARAMETERS)
    differs = {name: _DIFFERS[_OWN] * np.where(_TUNABLE, LOOSE.get(name, 1.0), 1.0) for name in names}

    def split(numbers: Array) -> Fit:
        rest = numbers[many:].reshape(len(names), own)
        return Fit(numbers[:many], dict(zip(names, rest, strict=True)))

    def residuals(numbers: Array) -> Array:
        fit = split(numbers)
        errors = weights * (np.log(steps.seconds(found, fit)) - measured)
        bent = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + (errors / _ROBUST) ** 2) - 1)) * _ROBUST / _NOISE
        priors = [(fit.common - _START) / _SD, *(fit.own[name] / differs[name] for name in names)]
        return np.concatenate([bent, *priors])

    def slopes(numbers: Array) -> Array:
        """One difference serves all software at once: rows depend on their own only."""
        here = residuals(numbers)
        found_slopes = np.zeros((len(here), len(numbers)))
        rows = len(found)
        for column in range(many):
            moved = numbers.copy()
            moved[column] += _STEP
            found_slopes[:, column] = (residuals(moved) - here) / _STEP
        for column in range(own):
            moved = numbers.copy()
            moved[many + column :: own] += _STEP
            change = (residuals(moved) - here)[:rows] / _STEP
            for index, name in enumerate(names):
                at = many + index * own + column
                found_slopes[:rows, at] = change * masks[name]
                found_slopes[rows + at, at] = 1 / differs[name][column]
        return found_slopes

    start = np.concatenate([_START, np.zeros(own * len(names))])
    return split(np.asarray(least_squares(residuals, start, jac=slopes, max_nfev=rounds).x))


def _weights(found: Sequence[Case]) -> Array:
    groups = [(case.source, case.group, case.gpu.gpu_model, case.precision) for case in found]
    sizes = Counter(groups)
    return np.sqrt([min(sizes[group], _MOST_OF_A_GROUP) / sizes[group] for group in groups])


def judged(folder: Path) -> list[Case]:
    """The cases of the fit: all but the slow steps of nanotron's sweep."""
    return [case for case in cases(folder) if case.source != "nanotron" or (case.mfu or 0.0) > LEAST_MFU]


class Row(NamedTuple):
    """Errors on cases left out: logarithms of predicted over measured steps."""

    left_out: str
    known: Array
    """With the coefficients of the software."""
    common: Array
    """Where the software is not known."""

    def cells(self, sd: tuple[float, float]) -> list[str]:
        """Cases; median and mean error with the software known, median without; shares inside the 80 % interval of
        `sd`, with the software known and without."""
        known, common = (np.abs(np.expm1(each)) for each in (self.known, self.common))
        inside = [np.mean(np.abs(each) <= Z80 * one) for each, one in zip((self.known, self.common), sd, strict=True)]
        errors = [float(np.median(known)), float(known.mean()), float(np.median(common))]
        return [
            self.left_out,
            str(len(known)),
            *(f"{each:.1%}" for each in errors),
            *(f"{each:.0%}" for each in inside),
        ]


HEADING = ["left out", "cases", "median", "mean", "median, unknown", "inside 80 %", "inside, unknown"]


def left_out_rows(found: Sequence[Case], steps: Steps) -> list[Row]:
    """Each model of nanotron's sweep, each source and each GPU left out."""
    rows = []
    models = sorted({case.group for case in found if case.source == "nanotron"})
    held: list[tuple[str, Callable[[Case], bool], Callable[[Case], bool]]] = [
        *((f"model {name}", lambda case, name=name: case.group == name, lambda case: True) for name in models),
        *((f"source {name}", lambda case, name=name: case.source == name, lambda case: True) for name in SOFTWARE),
        ("GPU B200", lambda case: case.gpu.gpu_model == "B200", lambda case: case.source == "simumax"),
    ]
    for name, out, shown in held:
        fit = fit_cases([case for case in found if not out(case)], steps, rounds=8)
        mine = [case for case in found if out(case) and shown(case)]
        measured = np.array([case.step_s for case in mine])
        rows.append(Row(name, *(np.log(steps.seconds(mine, fit, known) / measured) for known in (True, False))))
    return rows


def deviations(rows: Sequence[Row]) -> tuple[float, float]:
    """The standard deviations whose intervals cover 80 % of all cases, with the software known and without."""
    known, common = (np.concatenate(each) for each in zip(*((row.known, row.common) for row in rows), strict=True))
    return float(np.quantile(np.abs(known), 0.8)) / Z80, float(np.quantile(np.abs(common), 0.8)) / Z80


def content(fit: Fit, found: Sequence[Case], sd: tuple[float, float]) -> dict[str, Any]:
    """What the file holds. `sd`: with the software known, and not."""
    names = ("collectives",)
    common = {key: value for key, value in vars(fit.coefficients(None)).items() if key not in names}
    common |= {"sd": sd[1], "memory_spread": _ANY_SPREAD}
    software = {}
    for name in sorted(fit.own):
        mine = {key: value for key, value in vars(fit.coefficients(name)).items() if key not in names}
        mine |= {"sd": sd[0], "memory_spread": MEMORY_SPREAD.get(name, _EAGER_SPREAD)}
        software[name] = {key: _rounded(value) for key, value in mine.items() if value != common[key]}
    before = json.loads(FILE.read_text("utf-8"))
    return {
        "written_by": "scripts/fit/layouts.py",
        "sources": "nanotron's sweep (Hugging Face, 2025), Megatron-Bridge's performance summary (NVIDIA, 2026), MLPerf"
        " Training 5.0 and 5.1, torchtitan, SimuMax, InternEvo, fms-fsdp; collectives: aiconfigurator (NVIDIA, 2026)",
        "gpus": sorted({case.gpu.gpu_model for case in found}),
        "common": {key: _rounded(value) for key, value in common.items()},
        "software": software,
        "collectives": before["collectives"],
    }


def _rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def main() -> None:
    """Prints errors on what was left out; writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the published layouts")
    parser.add_argument("--write", action="store_true", help=f"write {FILE}")
    asked = parser.parse_args()
    found, steps = judged(asked.data), Steps()
    rows = left_out_rows(found, steps)
    sd = deviations(rows)
    print_table(HEADING, [row.cells(sd) for row in rows])
    print(f"standard deviations that cover 80 %: {sd[0]:.3f}, software not known {sd[1]:.3f}")
    if asked.write:
        text = json.dumps(content(fit_cases(found, steps), found, sd), indent=1)
        FILE.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
