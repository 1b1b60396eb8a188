"""Errors of predicted computation on models and GPUs that were left out of the fit, as a Markdown table.

python -m scripts.fit.compute_errors --data ../shared/data/throughput
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from recommender.compute.micro_batch import Coefficients, ComputeModel
from recommender.target import default_catalog
from recommender.workload import Measurement, Workload
from scripts.fit.compute_fit import fit
from scripts.fit.throughput import read_profet, read_single_gpu

FOLDS = 8
"""The models of all sources but PROFET, whose models are left out one by one."""
COLUMNS = ("what", "source", "known", "cases", "mean", "median", "p90", "coverage", "worst_model", "worst_mean")
Fitter = Callable[[pd.DataFrame, pd.DataFrame], Coefficients]


def evaluate(profet: pd.DataFrame, others: pd.DataFrame) -> list[dict[str, Any]]:
    """One row for each kind of prediction, source and what was known, with the errors relative to the measured step:
    mean, median and 90th percentile over cases, share of cases inside the 80 % interval, the model with the largest
    mean error."""
    profet = profet.assign(source="PROFET", precision="fp32", gflops=float("nan"))
    cases = pd.DataFrame([*_models_left_out(profet, others), *_gpus_left_out(profet, others)])
    rows = []
    for (what, source, known), group in cases.groupby(["what", "source", "known"], sort=False):
        error = (group.predicted_s / group.seconds - 1).abs()
        by_model = error.groupby(group.model).mean()
        values = (
            what, source, known, len(group), error.mean(), error.median(), error.quantile(0.9),
            group.seconds.between(group.low_s, group.high_s).mean(), by_model.idxmax(), by_model.max(),
        )  # fmt: skip
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def markdown(rows: Iterable[dict[str, Any]]) -> str:
    """The rows of `evaluate` as a table."""
    lines = ["| prediction | source | known | cases | mean | median | p90 | in 80 % interval | worst model |"]
    lines.append("|---|---|---|---:|---:|---:|---:|---:|---|")
    for row in rows:
        shares = " | ".join(f"{100 * row[name]:.1f} %" for name in ("mean", "median", "p90", "coverage"))
        worst = f"{row['worst_model']} {100 * row['worst_mean']:.0f} %"
        lines.append(f"| {row['what']} | {row['source']} | {row['known']} | {row['cases']} | {shares} | {worst} |")
    return "\n".join(lines)


def _fitted(profet: pd.DataFrame, others: pd.DataFrame) -> Coefficients:
    return Coefficients.from_json(fit(profet, others))


def _models_left_out(profet: pd.DataFrame, others: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for model in profet.model.unique():
        fitted = _fitted(profet[profet.model != model], others[others.model != model])
        left_out = profet[profet.model == model]
        yield from _other_gpus(fitted, left_out, "another GPU, model left out")
        yield from _other_batches(fitted, left_out)
    models = sorted(others.model.unique())
    for fold in range(FOLDS):
        held = models[fold::FOLDS]
        fitted = _fitted(profet, others[~others.model.isin(held)])
        left_out = others[others.model.isin(held)]
        yield from _other_gpus(fitted, left_out, "another GPU or precision, model left out")
        yield from _other_batches(fitted, left_out)
        yield from _from_flops(fitted, left_out)


def _gpus_left_out(profet: pd.DataFrame, others: pd.DataFrame) -> Iterator[dict[str, Any]]:
    both = pd.concat([profet, others])
    for gpu in sorted(both.gpu.unique()):
        jobs = both[both.job.isin(both.job[both.gpu == gpu])]
        if jobs.gpu.nunique() == 1:
            continue
        fitted = _fitted(profet[profet.gpu != gpu], others[others.gpu != gpu])
        yield from _other_gpus(fitted, jobs, "a GPU left out", target_gpu=gpu)


def _other_gpus(
    fitted: Coefficients, table: pd.DataFrame, what: str, target_gpu: str | None = None
) -> Iterator[dict[str, Any]]:
    """Predicts from the steps of each GPU and precision those of each other one, at the batches measured on both."""
    for _, job in table.groupby("job"):
        cells = {(str(gpu), str(precision)): of_cell for (gpu, precision), of_cell in job.groupby(["gpu", "precision"])}
        for source, measured in cells.items():
            several = ComputeModel(_workload(measured), fitted)
            for target, there in cells.items():
                if target == source or (
                    target_gpu is not None and (target[0] != target_gpu or source[0] == target_gpu)
                ):
                    continue
                for batch, seconds in there.groupby("batch").seconds.median().items():
                    same = measured[measured.batch == batch]
                    if same.empty:
                        continue
                    yield _case(several, (*target, batch), seconds, there, what, "all batches")
                    one = ComputeModel(_workload(same), fitted)
                    yield _case(one, (*target, batch), seconds, there, what, "this batch")
                    if target_gpu is None and "tensors" in table:
                        tensors = int(measured.tensors.iloc[0])
                        for steps, known in ((measured, "all batches, tensors"), (same, "this batch, tensors")):
                            model = ComputeModel(_workload(steps, tensors), fitted)
                            yield _case(model, (*target, batch), seconds, there, what, known)


def _other_batches(fitted: Coefficients, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for _, group in table.groupby(["job", "gpu", "precision"]):
        steps = group.groupby("batch", as_index=False).agg({**dict.fromkeys(group, "first"), "seconds": "median"})
        if len(steps) < 3:
            continue
        middle = steps.iloc[[len(steps) // 2]]
        for i in range(len(steps)):
            row, rest = steps.iloc[i], steps.drop(index=steps.index[i])
            where, what = (row.gpu, row.precision, row.batch), "another batch, same GPU"
            model = ComputeModel(_workload(rest), fitted)
            yield _case(model, where, row.seconds, group, what, "all other batches")
            if row.batch != middle.batch.iloc[0]:
                model = ComputeModel(_workload(middle), fitted)
                yield _case(model, where, row.seconds, group, what, "the middle batch")


def _from_flops(fitted: Coefficients, table: pd.DataFrame) -> Iterator[dict[str, Any]]:
    known = table[(table.gflops > 0.01) & (table.gflops * table.batch / table.seconds < 1e6)]
    for (_, *where), group in known.groupby(["job", "gpu", "precision", "batch"]):
        workload = Workload(name="left out", flops_per_sample=group.gflops.iloc[0] * 1e9)
        model = ComputeModel(workload, fitted)
        yield _case(model, tuple(where), group.seconds.median(), group, "from FLOPs, model left out", "FLOPs")


def _workload(measured: pd.DataFrame, tensors: int | None = None) -> Workload:
    steps = measured.groupby("batch").agg({"gpu": "first", "precision": "first", "seconds": "median"})
    return Workload(
        name="left out",
        parameter_tensors=tensors,
        measurements=[
            Measurement(placement=(1,), batch_per_gpu=int(batch), step_s=seconds, precision=precision, gpu_model=gpu)
            for batch, gpu, precision, seconds in steps.reset_index().to_numpy().tolist()
        ],
    )


def _case(
    model: ComputeModel, where: tuple[Any, ...], seconds: float, of: pd.DataFrame, what: str, known: str
) -> dict[str, Any]:
    """Measured and predicted step; `where` is GPU, precision and batch, `of` gives the source and the model."""
    gpu, precision, batch = where
    predicted = model.estimate(default_catalog().gpu(gpu), int(batch), precision).seconds
    return {
        "what": what, "source": of.source.iloc[0], "known": known, "model": of.model.iloc[0], "seconds": seconds,
        "predicted_s": predicted.mean_s, "low_s": predicted.low_s, "high_s": predicted.high_s,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.csv and its neighbours")
    chosen = parser.parse_args(arguments)
    print(markdown(evaluate(read_profet(chosen.data), read_single_gpu(chosen.data))))


if __name__ == "__main__":
    main()
