"""Reads the published measurements on one GPU for the fit of computation. The files stay where they are."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ddlprof.instance_catalog import CatalogError
from ddlprof.recommender.compute.gpu_peaks import precision_class
from ddlprof.recommender.target import default_catalog

TF32_BY_DEFAULT = ("PaddlePaddle Perf", "Sia SOSP23")
"""Sources whose "fp32" on GPUs with TF32 may be TF32: left out there."""

ONE_SUITE = {"Pollux OSDI21": "Pollux and Sia", "Sia SOSP23": "Pollux and Sia"}
"""Sources that ran the same programs."""

PROFET_TENSORS = {
    "AlexNet": 32, "CIFAR10_CNN": 12, "LeNet5": 10, "MNIST_CNN": 6, "ResNet18": 76, "ResNet34": 140, "ResNet50": 206,
    "ResNetSmall": 46, "VGG11": 22, "VGG16": 32, "VGG19": 38,
}  # fmt: skip
"""Trainable tensors, counted in the Keras definitions of PROFET's authors (`model_info.py`): convolutions and dense
layers have a bias, normalisation has two; their ResNets convolve after it and their AlexNet normalises."""


def read_profet(folder: Path) -> pd.DataFrame:
    """PROFET: columns job (model and image size), model, gpu, batch, seconds, tensors (trainable; NaN if unknown)."""
    table = pd.read_csv(folder / "single_gpu_aws_train.csv")
    gpus = {name: default_catalog().gpu(name).gpu_model for name in table.gpu_model.unique()}
    rows: pd.DataFrame = pd.DataFrame(
        {
            "job": table.model + " " + table.image_px.astype(str) + " px",
            "model": table.model,
            "gpu": table.gpu_model.map(gpus),
            "batch": table.batch_per_gpu,
            "seconds": table.step_time_s,
            "tensors": table.model.map(PROFET_TENSORS),
        }
    )
    return rows


def read_single_gpu(folder: Path) -> pd.DataFrame:
    """Every other source: columns source, job (source, model, sequence, compiler), model, gpu, precision, batch,
    seconds, gflops (forward and backward of one sample, or NaN). Rows of GPUs not in the catalogue are left out."""
    table: pd.DataFrame = pd.read_csv(folder / "train.csv", low_memory=False)
    table = table[(table.total_gpus == 1) & table.batch_per_gpu.gt(0) & table.step_time_s.gt(0)]
    table = table[~table.source.eq("PROFET")]
    gpus = {name: _gpu_model(name) for name in table.gpu_model.dropna().unique()}
    table = table.assign(gpu=table.gpu_model.map(gpus)).dropna(subset=["gpu", "precision"])
    flops = pd.read_csv(folder / "models.csv").set_index("model").fwd_gflops_per_sample
    xla = table.precision.str.contains("xla")
    cluster = table.source.replace(ONE_SUITE)
    rows = pd.DataFrame(
        {
            "source": table.source,
            "job": cluster + "|" + table.model + "|" + table.seq_len.fillna(0).astype(str) + "|" + xla.astype(str),
            "model": table.model,
            "gpu": table.gpu,
            "precision": [_class(p, g) for p, g in zip(table.precision, table.gpu, strict=True)],
            "batch": table.batch_per_gpu,
            "seconds": table.step_time_s / table.grad_accum.fillna(1),
            "gflops": 3 * table.model.map(flops),
        }
    )
    has_tf32 = rows.gpu.map(lambda name: bool(default_catalog().gpu(name).tf32_tflops))
    unclear = rows.source.isin(TF32_BY_DEFAULT) & rows.precision.eq("fp32") & has_tf32
    kept: pd.DataFrame = rows[~unclear].reset_index(drop=True)
    return kept


def _gpu_model(name: str) -> str | None:
    try:
        return default_catalog().gpu(name.removesuffix("(inferred)")).gpu_model
    except CatalogError:
        return None


def _class(precision: str, gpu: str) -> str:
    return precision_class(precision.removesuffix("+xla").removesuffix(" (TF 2.x default)"), default_catalog().gpu(gpu))
