"""Errors of predicted computation on models, GPUs and sources that were left out of the fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddlprof.recommender.compute.micro_batch import ComputeCoefficients, ComputeModel, shipped
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.estimate import Z80
from ddlprof.recommender.target import default_catalog
from ddlprof.recommender.workload import Measurement, Workload
from scripts.bench.jobs import print_table, progress
from scripts.fit import published
from scripts.fit.combine_fit import Sds
from scripts.fit.compute_fit import KnownSteps, fit
from scripts.fit.pairs import fit_pairs

SHIPPED = Path(__file__).resolve().parents[2] / "recommender" / "compute" / "coefficients.json"
ONE_AND_OTHERS = "one GPU and three other jobs measured on both, model left out"
QUESTIONS = {
    "nothing measured": "I have a laptop", "model left out": "I measured one GPU",
    ONE_AND_OTHERS: "and three other jobs on both GPUs", "two GPUs measured, model left out": "I measured two GPUs",
    "GPU left out": "I measured one, nobody the other", "same GPU, another batch": "I measured it at another batch",
}  # fmt: skip
FOLDS = 8
"""The models of all sources but PROFET, whose models are left out one by one."""
MOST_BATCHES = 3
"""Predicted of each series: the smallest, the middle and the largest."""
MOST_TARGETS = 3
"""Predicted from each GPU, of sources that measured many."""
COVERAGE = 0.8
COLUMNS = (
    "what",
    "source",
    "known",
    "cases",
    "mean",
    "median",
    "p90",
    "coverage",
    "width",
    "worst_model",
    "worst_mean",
)
Case = dict[str, Any]


@dataclass(frozen=True)
class Fitted:
    """How a fit without some rows is made."""

    steps: KnownSteps
    sds: dict[str, Sds]
    profet: pd.DataFrame | None = None
    """PROFET's steps, for the ratios between its GPUs; None: as shipped."""

    def without(self, column: str, held: Sequence[str]) -> ComputeCoefficients:
        """The coefficients without the rows that have one of these values."""
        steps = {name: rows[~rows[column].isin(held)] for name, rows in self.steps.items()}
        pairs = json.loads(SHIPPED.read_text(encoding="utf-8"))["pairs"]
        if self.profet is not None and any(name.startswith("PROFET|") for name in held):
            pairs = fit_pairs(self.profet[~("PROFET|" + self.profet.model).isin(held)], spreads=pairs)
        if self.profet is not None and column == "gpu":
            pairs = [pair for pair in pairs if not {pair["source"], pair["target"]} & set(held)]
        return ComputeCoefficients.from_json({**fit(steps, self.sds), "pairs": pairs})


def evaluate(table: pd.DataFrame, fitter: Fitted) -> pd.DataFrame:
    """Every case: what was predicted from what, for which source and model, and how it came out."""
    cases: pd.DataFrame = pd.DataFrame([*models_left_out(table, fitter), *gpus_left_out(table, fitter)])
    return cases


def models_left_out(table: pd.DataFrame, fitter: Fitted) -> Iterator[Case]:
    """Every model is predicted by a fit without it, in whatever source."""
    for held in folds(table):
        progress(f"without {len(held)} models, the first {held[0]}")
        fitted = fitter.without("family", held)
        left_out = table[table.family.isin(held)]
        for _, job in left_out.groupby("job"):
            yield from _nothing_measured(fitted, job)
            yield from _other_gpus(fitted, job, "model left out")
            yield from _two_gpus(fitted, job)
            yield from _other_batches(fitted, job)
        yield from _other_jobs(fitted, left_out, table)


def gpus_left_out(table: pd.DataFrame, fitter: Fitted) -> Iterator[Case]:
    """Every GPU is predicted by a fit that has never seen it."""
    for gpu in sorted(table.gpu.unique()):
        jobs = table[table.job.isin(table.job[table.gpu == gpu])]
        if jobs.groupby("job").gpu.nunique().max() < 2:
            continue
        fitted = fitter.without("gpu", [gpu])
        for _, job in jobs.groupby("job"):
            yield from _other_gpus(fitted, job, "GPU left out", only=gpu)


def summary(cases: pd.DataFrame) -> list[dict[str, Any]]:
    """One row for each kind of prediction, source and what was known, with the errors relative to the measured step:
    mean, median and 90th percentile over cases, share of cases inside the 80 % interval, the interval's upper end over
    its lower one (median), the model with the largest mean error."""
    rows = []
    for (what, source, known), group in cases.groupby(["what", "source", "known"], sort=False):
        error = (group.predicted_s / group.seconds - 1).abs()
        by_model = error.groupby(group.model).mean()
        values = (
            what, source, known, len(group), error.mean(), error.median(), error.quantile(0.9),
            group.seconds.between(group.low_s, group.high_s).mean(), (group.high_s / group.low_s).median(),
            by_model.idxmax(), by_model.max(),
        )  # fmt: skip
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def widths_of(cases: pd.DataFrame) -> dict[str, float]:
    """The factor of intervals for each state of knowledge, such that 80 % of the cases lie inside: sources count alike,
    and models alike within them. `cases` are of models left out, with intervals of factor one."""
    found = {}
    for name, group in cases[cases.what != "GPU left out"].groupby("knows"):
        sd = np.log(group.high_s / group.predicted_s) / Z80  # the lower end may be that of physics
        score = (np.log(group.predicted_s / group.seconds)).abs() / sd / Z80
        sizes = group.groupby(["source", "model"]).seconds.transform("size")
        models = group.groupby("source").model.transform("nunique")
        order = np.argsort(score.to_numpy())
        weight = (1 / (sizes * models)).to_numpy()[order].cumsum()
        found[str(name)] = float(score.to_numpy()[order][np.searchsorted(weight, COVERAGE * weight[-1])])
    return found


def as_shipped(table: pd.DataFrame) -> pd.DataFrame:
    """The cases of the coefficients that are shipped; their models are in the fit."""
    asks = _nothing_measured, partial(_other_gpus, what="model left out"), _two_gpus, _other_batches
    jobs = [job for _, job in table.groupby("job")]
    cases: pd.DataFrame = pd.DataFrame([case for job in jobs for ask in asks for case in ask(shipped(), job)])
    return cases


def print_ends(cases: pd.DataFrame) -> None:
    """How many intervals begin below what the data sheet's peak allows: as they would if they were as wide below as
    above in the logarithm, and as they do; and how many published steps are below it."""
    lines = []
    for (what, known), group in cases[cases.least_s > 0].groupby(["what", "known"], sort=False):
        least_s = 0.999 * group.least_s
        before = group.predicted_s**2 / group.high_s < least_s
        counts = before.sum(), (group.low_s < least_s).sum(), (group.seconds < least_s).sum()
        lines.append([QUESTIONS[what], known, len(group), *counts])
    print_table(["what was measured", "known of the job", "cases", "would", "do", "published steps"], lines)


def widened(cases: pd.DataFrame, widths: dict[str, float]) -> pd.DataFrame:
    """The cases with the interval of each multiplied by the factor of what was known."""
    half = np.log(cases.high_s / cases.predicted_s) * cases.knows.map(widths).fillna(1.0)
    wide: pd.DataFrame = cases.assign(low_s=cases.predicted_s * np.exp(-half), high_s=cases.predicted_s * np.exp(half))
    return wide


def print_by_question(rows: Sequence[dict[str, Any]], knowledge: str = "operators") -> None:
    """The rows of `summary` with one line for each source: mean and median error, and the share inside the interval, by
    what a user has measured."""
    cells = {(row["source"], row["what"]): row for row in rows if row["known"] == knowledge}
    lines = []
    for source in sorted({source for source, _ in cells}):
        found = [cells.get((source, name)) for name in QUESTIONS]
        shown = [f"{row['mean']:.1%} / {row['median']:.1%}, {row['coverage']:.0%}" if row else "" for row in found]
        lines.append([source, *shown])
    print_table(["source", *QUESTIONS.values()], lines)


def folds(table: pd.DataFrame) -> Iterator[list[str]]:
    yield from ([family] for family in sorted(table.family[table.source == "PROFET"].unique()))
    others = sorted(table.family[table.source != "PROFET"].unique())
    yield from (others[fold::FOLDS] for fold in range(FOLDS))


def _cells(job: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
    return {(str(gpu), str(precision)): of for (gpu, precision), of in job.groupby(["gpu", "precision"])}


def _few(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.sort_values("batch")
    return rows.iloc[sorted({0, len(rows) // 2, len(rows) - 1})] if len(rows) > MOST_BATCHES else rows


def _workloads(measured: pd.DataFrame | None, like: Any) -> Iterator[tuple[str, Workload]]:
    """The job as it is known with its operators, with its FLOPs, and without either."""
    steps = [] if measured is None else [_measurement(row) for row in measured.itertuples(index=False)]
    tensors = None if np.isnan(like.tensors) else int(like.tensors)
    if isinstance(like.network, str):
        step = published.steps()[like.network]
        yield "operators", Workload("left out", step=step, parameter_tensors=tensors, measurements=steps)
    if like.gflops > 0.01:
        flops = like.gflops * 1e9
        yield "flops", Workload("left out", flops_per_sample=flops, parameter_tensors=tensors, measurements=steps)
    if steps:
        yield "steps", Workload("left out", measurements=steps)


def _measurement(row: Any) -> Measurement:
    return Measurement(
        placement=(1,), batch_per_gpu=int(row.batch), step_s=row.seconds, precision=row.precision, gpu_model=row.gpu
    )


def _nothing_measured(fitted: ComputeCoefficients, job: pd.DataFrame) -> Iterator[Case]:
    for knowledge, workload in _workloads(None, job.iloc[0]):
        model = ComputeModel(workload, fitted)
        for there in _cells(job).values():
            for row in _few(there).itertuples(index=False):
                yield from _case(model, row, "nothing measured", knowledge, "nothing")


def _other_gpus(fitted: ComputeCoefficients, job: pd.DataFrame, what: str, only: str | None = None) -> Iterator[Case]:
    """Predicts from the steps of each GPU and precision those of each other one, at batches measured on both."""
    cells = _cells(job)
    for number, (source, measured) in enumerate(cells.items()):
        targets = [cell for cell in cells if cell != source and (only is None or (cell[0] == only != source[0]))]
        targets = targets[number % 2 if len(targets) > MOST_TARGETS else 0 :: max(1, len(targets) // MOST_TARGETS)]
        if not targets:
            continue
        for knowledge, workload in _workloads(measured, measured.iloc[0]):
            model = ComputeModel(workload, fitted)
            for target in targets:
                there = cells[target]
                for row in _few(there[there.batch.isin(measured.batch)]).itertuples(index=False):
                    yield from _case(model, row, what, knowledge, "elsewhere")


def _two_gpus(fitted: ComputeCoefficients, job: pd.DataFrame) -> Iterator[Case]:
    """The same from two others."""
    cells = _cells(job)
    for target, there in cells.items():
        others = [of for cell, of in cells.items() if cell[0] != target[0]]
        if len({of.gpu.iloc[0] for of in others}) < 2:
            continue
        first = others[0]
        second = next(of for of in others if of.gpu.iloc[0] != first.gpu.iloc[0])
        for knowledge, workload in _workloads(pd.concat([first, second]), first.iloc[0]):
            model = ComputeModel(workload, fitted)
            for row in _few(there).itertuples(index=False):
                yield from _case(model, row, "two GPUs measured, model left out", knowledge, "elsewhere")


def _other_batches(fitted: ComputeCoefficients, job: pd.DataFrame) -> Iterator[Case]:
    for there in _cells(job).values():
        if len(there) < MOST_BATCHES:
            continue
        there = there.sort_values("batch")
        middle = there.iloc[[len(there) // 2]]
        for knowledge, workload in _workloads(middle, middle.iloc[0]):
            model = ComputeModel(workload, fitted)
            for row in _few(there).itertuples(index=False):
                if row.batch != middle.batch.iloc[0]:
                    yield from _case(model, row, "same GPU, another batch", knowledge, "here")


def _other_jobs(fitted: ComputeCoefficients, left_out: pd.DataFrame, table: pd.DataFrame) -> Iterator[Case]:
    """From one other GPU, and three jobs of other models of the source that were measured on both GPUs."""
    known = table[table.network.notna() & ~table.family.isin(left_out.family)]
    for (source, _), job in left_out[left_out.network.notna()].groupby(["source", "job"]):
        cells = _cells(job)
        mine = known[known.source == source]
        for cell, measured in cells.items():
            for target, there in cells.items():
                if target[0] == cell[0]:
                    continue
                others = list(_both(mine, cell, target))
                if len(others) < MOST_BATCHES:
                    continue
                _, workload = next(_workloads(measured, measured.iloc[0]))
                model = ComputeModel(workload, fitted, others=others)
                for row in _few(there[there.batch.isin(measured.batch)]).itertuples(index=False):
                    yield from _case(model, row, ONE_AND_OTHERS, "operators", "elsewhere")


def _both(known: pd.DataFrame, *cells: tuple[str, str]) -> Iterator[Workload]:
    """Three jobs of different models measured on both GPUs, the middle batch of each."""
    families: set[str] = set()
    for job, rows in known.groupby("job"):
        of = _cells(rows)
        if len(families) == MOST_BATCHES or rows.family.iloc[0] in families or any(c not in of for c in cells):
            continue
        families.add(rows.family.iloc[0])
        steps = pd.concat([of[cell].sort_values("batch").iloc[[len(of[cell]) // 2]] for cell in cells])
        yield Workload(str(job), step=published.steps()[rows.network.iloc[0]],
                       measurements=[_measurement(row) for row in steps.itertuples(index=False)])  # fmt: skip


def _case(model: ComputeModel, row: Any, what: str, knowledge: str, known: str) -> Iterator[Case]:
    """Measured and predicted step of a row; nothing where it cannot be predicted."""
    try:
        gpu = default_catalog().gpu(row.gpu)
        found = model.estimate(gpu, int(row.batch), row.precision)
    except PredictionError:
        return
    yield {
        "what": what, "source": row.source, "known": knowledge, "knows": f"{knowledge}, {known}", "model": row.model,
        "job": row.job, "gpu": row.gpu, "precision": row.precision, "batch": row.batch, "seconds": row.seconds,
        "predicted_s": found.seconds.mean_s, "low_s": found.seconds.low_s, "high_s": found.seconds.high_s,
        "least_s": found.least.step_s(),
    }  # fmt: skip
