"""Fits convolutions in 16 bits to timm's pairs of steps with channels first and last, and prints families left out.

    python -m scripts.fit.convolutions --data ../shared/data/throughput [--counted FOLDER] [--only NAME ...] [--write]

The pairs are timm's, of an RTX 3090 under AMP. It needs timm. Networks are counted once, and kept in the folder.
`--only`: the other coefficients stay as they are shipped, and with them what was fitted on other GPUs. A family that is
left out is then left out of the fit of the named ones only.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from ddlprof.base.errors import UserError
from ddlprof.base.typed import decode
from ddlprof.instance_catalog import load
from ddlprof.model.operators import StepOperators
from ddlprof.planning.features import count_model
from ddlprof.recommender.compute.convolution_time import WIDTH, TensorConvolutions, tensor_convolution_seconds
from ddlprof.recommender.compute.gpu_peaks import peaks_of
from ddlprof.recommender.compute.kernel_time import Array, OperatorTable, implicit_seconds
from ddlprof.recommender.compute.operator_coefficients import shipped
from ddlprof.recommender.compute.operator_time import LAID_OUT, OperatorModel
from ddlprof.recommender.compute.what_if import as_asked, at_batch
from scripts.bench.jobs import print_table
from scripts.fit.operators import OUT
from scripts.fit.published import name_of, steps
from scripts.fit.readable import readable, rounded
from scripts.fit.throughput import read_single_gpu

_NAMES = """
bat_resnext26ts convmixer_1024_20_ks9_p14 convmixer_1536_20 convmixer_768_32 cs3darknet_l cs3edgenet_x cspresnet50
darknet53 densenet121 dla60_res2net dla60x dm_nfnet_f1 dpn68 eca_nfnet_l0 eca_resnext26ts ecaresnetlight
edgenext_small efficientnet_b0 efficientnet_b0_g8_gn efficientnetv2_rw_s ese_vovnet39b fbnetc_100 fbnetv3_b
gcresnext50ts gernet_m ghostnet_100 haloregnetz_b hardcorenas_a hrnet_w64 ig_resnext101_32x16d inception_v4
lcnet_100 legacy_seresnext50_32x4d mixnet_m mixnet_xl mnasnet_100 mobilenetv3_large_100 mobilevitv2_100
nf_regnet_b1 nf_regnet_b3 nf_resnet50 nfnet_f0 nfnet_f4 poolformer_s12 repvgg_b0 repvgg_b1g4 repvgg_b2g4 resnest14d
resnest26d resnet18 resnet26 resnet50 resnetrs50 resnetv2_50 resnext101_64x4d resnext50_32x4d rexnet_100 selecsls60
semnasnet_075 semnasnet_100 senet154 seresnext101_32x8d tf_efficientnet_b5 tf_efficientnet_el tf_efficientnetv2_b0
tinynet_d vgg16 visformer_small wide_resnet50_2 xception41
"""
NETWORKS = tuple(_NAMES.split())
"""Networks of all families of convolutions, several of each where it has groups or depthwise convolutions of other
sizes. Those with InplaceABN are left out, as its kernel has one layout only."""
_RENAMED = {"ig_resnext101_32x16d": "resnext101_32x16d"}
_PREFIX = r"(?:tf|ig|legacy|eca|dm|ese|bat|gc|dla60|nf|se)_?"
_GPU = "RTX3090-24GB"
_LAYOUTS = {"Lambda deeplearning-benchmark": False, "NVIDIA DeepLearningExamples": True}
"""Sources of the power of the width, and whether channels lie last there."""
_SCALE = 0.1
_PRIOR = 0.3
"""How far a logarithm is off, and how much the start of a coefficient weighs beside that."""
_START = {
    "implicit": 1.5, "copies": 0.8, "padding": 0.4, "grouped_first.flops": 0.3, "grouped_first.memory": 0.3,
    "grouped_last.flops": 0.3, "grouped_last.memory": 0.6, "slow_groups": 0.06, "slow_wide": 0.06,
    "depthwise_first.flops": 0.04, "depthwise_first.memory": 0.6, "depthwise_last.flops": 0.08,
    "depthwise_last.memory": 0.6, "slow_windows": 0.02, "streams": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """One measured step, in the parts that the fit needs."""

    network: str
    channels_last: bool
    seconds: float
    convolutions: OperatorTable
    implicit_s: Array
    streams_s: float
    rest_s: float

    @property
    def family(self) -> str:
        """Networks of one family are left out together."""
        return re.sub(rf"^{_PREFIX}", "", self.network)[:5]


class _Fitted:
    """The model's parts on the GPU of the pairs."""

    def __init__(self) -> None:
        self.model, self.gpu = OperatorModel.shipped(), load().gpu(_GPU)
        self.speeds = self.model.convolution_speeds(self.gpu, "fp16")

    def pair(self, network: str, last: bool, seconds: float, step: StepOperators) -> Pair:
        """The step in parts."""
        table = OperatorTable.of(step.operators)
        kernels_s = self.model.operators(step.operators, self.gpu) * table.count
        mine = (table.kind == "convolution") & (table.dtype == "fp16")
        streams = np.isin(table.kind, LAID_OUT) & (table.dtype == "fp16")
        convolutions = table.rows(mine)
        return Pair(
            network, last, seconds, convolutions, implicit_seconds(convolutions, self.speeds.convolution.products),
            float(kernels_s[streams].sum()), float(kernels_s[~streams & ~mine].sum()),
        )  # fmt: skip

    def ratio(self, pair: Pair, fitted: TensorConvolutions) -> float:
        """Predicted over measured."""
        assert self.speeds.convolving is not None
        found = tensor_convolution_seconds(
            pair.convolutions, pair.implicit_s, self.speeds.convolving, fitted, pair.channels_last
        )
        streams_s = pair.streams_s / (fitted.streams if pair.channels_last else 1.0)
        return (float(found @ pair.convolutions.count) + streams_s + pair.rest_s) / pair.seconds


def counted(network: str, pixels: int, folder: Path | None) -> StepOperators:
    """The operators of a training step of a network under AMP, from the folder if it was counted before."""
    kept = folder and folder / f"{network}.json"
    if kept and kept.exists():
        return decode(StepOperators, json.loads(kept.read_text(encoding="utf-8")))
    step = count_model(
        f"timm:{_RENAMED.get(network, network)}", (f"float32:3,{pixels},{pixels}",),
        precision="amp-fp16", optimizer="sgd-momentum",
    ).workload().step  # fmt: skip
    if step is None:
        raise UserError(f"{network}: its operators were not counted")
    if kept:
        kept.write_text(json.dumps(asdict(replace(step, memory=None, layers=()))), encoding="utf-8")
    return step


def pairs(folder: Path, keep: Path | None) -> Iterator[Pair]:
    """The measured steps of `NETWORKS`."""
    table, fitted = pd.read_csv(folder / "train.csv", low_memory=False), _Fitted()
    table = table[table.source.eq("timm")]
    names = table.model.str.extract(r"timm_(.+)_(\d+)px")
    for network in NETWORKS:
        rows = table[names[0].eq(network)]
        step = counted(network, int(names[1][rows.index[0]]), keep)
        for row in rows.to_dict("records"):
            last = "nhwc" in row["system"]
            yield fitted.pair(network, last, row["step_time_s"], at_batch(step, int(row["batch_per_gpu"])))


def fit(measured: Sequence[Pair], only: Sequence[str] = ()) -> TensorConvolutions:
    """The coefficients, drawn to where they start. `only`: those of these names, the others as shipped."""
    start, of = np.log(list(_START.values())), _Fitted()
    free = np.array([not only or name in only for name in _START])
    held = np.log([attrgetter(name)(shipped().convolution_16) for name in _START])

    def whole(values: Array) -> Array:
        found: Array = held.copy()
        found[free] = values
        return found

    def residuals(values: Array) -> Array:
        fitted = coefficients(whole(values))
        off = [np.log(of.ratio(pair, fitted)) / _SCALE for pair in measured]
        return np.concatenate([_PRIOR * (values - start[free]), off])

    return coefficients(whole(least_squares(residuals, start[free], loss="soft_l1").x))


def width_power(folder: Path) -> float:
    """How convolutions grow with the width of SMs: the median over the networks of two sources, one of each layout, on
    GPUs with wider SMs than that of the pairs, with the shipped coefficients."""
    model, catalog, found = OperatorModel.shipped(), load(), []
    rows = read_single_gpu(folder)
    for row in rows[rows.precision.eq("half") & rows.source.isin(_LAYOUTS)].to_dict("records"):
        name = name_of(row["source"], row["job"], row["model"])
        gpu = catalog.gpu(row["gpu"])
        cores = peaks_of(gpu).tensor
        if name is None or cores is None or cores.width <= WIDTH:
            continue
        step = as_asked(
            steps()[name], batch=int(row["batch"]), precision="amp-fp16", channels_last=_LAYOUTS[row["source"]]
        )
        by_kind = model.kernel_seconds(step, gpu)
        mine_s = by_kind.get("convolution", 0.0)
        rest_s = sum(by_kind.values()) - mine_s
        if mine_s > rest_s and row["seconds"] > rest_s:
            longer = np.log((row["seconds"] - rest_s) / mine_s) / np.log(cores.width / WIDTH)
            found.append([row["source"], name, row["gpu"], float(longer) + model.fitted.convolution_16.width])
    table = pd.DataFrame(found, columns=["source", "network", "gpu", "power"])
    of_network = table.groupby(["source", "network", "gpu"]).power.median()
    return float(of_network.groupby(["source", "gpu"]).median().median())


def coefficients(values: Array) -> TensorConvolutions:
    """Logarithms, in the order of `_START`."""
    nested: dict[str, Any] = {}
    for name, value in zip(_START, np.exp(values).tolist(), strict=True):
        outer, _, inner = name.partition(".")
        if inner:
            nested.setdefault(outer, {})[inner] = value
        else:
            nested[outer] = value
    nested["width"] = shipped().convolution_16.width
    return decode(TensorConvolutions, nested)


def left_out(measured: Sequence[Pair], only: Sequence[str]) -> Iterator[tuple[Pair, float]]:
    """Each step with its ratio of predicted to measured, its family left out of the fit."""
    of = _Fitted()
    for family in sorted({pair.family for pair in measured}):
        fitted = fit([pair for pair in measured if pair.family != family], only)
        yield from ((pair, of.ratio(pair, fitted)) for pair in measured if pair.family == family)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the published throughputs")
    parser.add_argument("--counted", type=Path, help="a folder that keeps what was counted of networks")
    parser.add_argument("--only", nargs="*", default=(), help="coefficients to fit; the others stay as shipped")
    parser.add_argument("--write", action="store_true", help="write the coefficients into operators.json")
    asked = parser.parse_args(arguments)
    measured = list(pairs(asked.data, asked.counted))
    shown, of = [], _Fitted()
    now = shipped().convolution_16
    for name, ratios in (
        ("shipped", [(p, of.ratio(p, now)) for p in measured]),
        ("left out", list(left_out(measured, asked.only))),
    ):
        for last in (False, True):
            off = np.array([ratio - 1 for pair, ratio in ratios if pair.channels_last is last])
            cells = (np.abs(off).mean(), np.median(np.abs(off)), off.mean(), off.min(), off.max())
            shown.append([name, "NHWC" if last else "NCHW", str(len(off)), *(f"{each:.1%}" for each in cells)])
    print_table(["coefficients", "layout", "steps", "mean", "median", "bias", "least", "most"], shown)
    fitted = fit(measured, asked.only)
    fitted = fitted if asked.only else replace(fitted, width=width_power(asked.data))
    print(json.dumps(asdict(fitted), indent=1))
    if asked.write:
        data = json.loads(OUT.read_text(encoding="utf-8"))
        data["convolution_16"] = rounded(asdict(fitted))
        OUT.write_text(readable(data), encoding="utf-8")


if __name__ == "__main__":
    main()
