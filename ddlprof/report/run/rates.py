"""How fast a job trains, in the figures that the field compares by: tokens, FLOP/s, and the share of the peak (MFU)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddlprof.base.units import percent, significant
from ddlprof.model.records import MISSING

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt
    from ddlprof.model.manifest import Manifest

WORTH_TFLOPS = 0.01
"""A rate below is not shown on the card: a job on processors, or one that computes next to nothing."""


@dataclass(frozen=True)
class Rates:
    """Rates over the steady steps; None: not known. A GPU stands for one rank, on processors too."""

    samples_per_s: float | None = None
    """Of all ranks together."""
    samples_per_s_per_gpu: float | None = None
    tokens_per_s: float | None = None
    """Of all ranks together, padding included."""
    tokens_per_s_per_gpu: float | None = None
    padding_share: float | None = None
    """The share of the tokens that is padding."""
    tflops_per_gpu: float | None = None
    """FLOPs of the model, without what is computed again, in 1e12 a second."""
    peak_tflops: float | None = None
    """The dense peak of the precision by the data sheet of the GPU."""
    mfu: float | None = None
    """`tflops_per_gpu` as a share of the peak (model FLOPs utilization)."""
    hfu: float | None = None
    """The same with what is computed again (hardware FLOPs utilization); None where nothing is."""


def rates_of(manifest: Manifest | None, headline: Attempt | None) -> Rates:
    step_ns = headline.summary.mean_ns("step") if headline is not None else None
    if manifest is None or headline is None or not step_ns:
        return Rates()
    training, ranks = manifest.training, headline.ranks[0].data.header.world_size
    strategy = training.strategy or "none"
    gpus = None if "dp" in strategy.split("+") else ranks  # DataParallel has several GPUs in one rank
    batch = _global_batch(manifest, headline, ranks)
    samples = batch / (step_ns / 1e9) if batch else None
    amounts, padding = headline.amounts, training.padding_share
    tokens, work = _times(samples, training.tokens_per_sample), 1.0
    if amounts is not None and amounts.is_text:  # of all ranks, as one of them may get longer texts
        tokens = amounts.mean_values * (training.data_parallel_ranks or ranks) / (step_ns / 1e9)
        work, padding = amounts.work_of_mean or 1.0, amounts.padding_share
    model, done = (None, None) if "pp" in strategy.split("+") else _flops(manifest)  # counted of one stage only
    tflops = _of_each(_times(samples, _times(model, work)), gpus, 1e12)
    peak = _peak_tflops(headline.ranks[0].data.header.device, training.precision)
    hardware = (
        _of_each(_times(samples, _times(done, work)), gpus, 1e12) if done is not None and model is not None else None
    )
    return Rates(
        samples_per_s=samples,
        samples_per_s_per_gpu=_of_each(samples, gpus),
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=_of_each(tokens, gpus),
        padding_share=padding,
        tflops_per_gpu=tflops,
        peak_tflops=peak,
        mfu=tflops / peak if tflops is not None and peak else None,
        hfu=hardware / peak if hardware is not None and peak and done != model else None,
    )


def _global_batch(manifest: Manifest, headline: Attempt, ranks: int) -> float | None:
    """The samples of all ranks in a mean steady step."""
    training = manifest.training
    if "pp" in (training.strategy or "").split("+"):  # stages count micro-batches, and see the same samples
        return training.global_batch
    samples = np.concatenate([rank.data.steps["samples"][rank.times.steady] for rank in headline.fed])
    known = samples[samples != MISSING]
    if not len(known):
        return training.global_batch
    return float(known.mean()) * (training.data_parallel_ranks or ranks)


def _flops(manifest: Manifest) -> tuple[float | None, float | None]:
    """The FLOPs of a sample: those of the model, and all that are done."""
    model = manifest.model
    forward, backward = model.forward_flops_per_sample, model.backward_flops_per_sample
    if forward is None or backward is None:
        return None, None
    return forward + backward - (model.recomputed_flops_per_sample or 0.0), forward + backward


def _times(rate: float | None, amount: float | None) -> float | None:
    return None if rate is None or amount is None else rate * amount


def _of_each(rate: float | None, number: int | None, unit: float = 1.0) -> float | None:
    return None if rate is None or not number else rate / number / unit


def _peak_tflops(device: str, precision: str | None) -> float | None:
    """The dense peak of a GPU for a precision; None for processors, and for what the catalogue does not know."""
    if device == "cpu" or precision is None:
        return None
    from ddlprof.instance_catalog import CatalogError, load  # not at the top: the card of a CPU run does without
    from ddlprof.recommender import PredictionError
    from ddlprof.recommender.compute.gpu_peaks import peak_tflops, precision_class

    try:
        gpu = load(None).gpu(device)
        kind = precision_class(precision, gpu)
        return None if kind == "fp8" else peak_tflops(gpu, kind)  # the catalogue has no peaks of fp8
    except (CatalogError, PredictionError):
        return None


def rates_text(rates: Rates, on_cpu: bool) -> str:
    """`61,000 tokens/s (7,600 a GPU), padding 12 %, 182 TFLOP/s a GPU, MFU 46 %`, as far as it is known."""
    return ", ".join(_words(rates, "rank" if on_cpu else "GPU"))


def _words(rates: Rates, each: str) -> Iterator[str]:
    if rates.tokens_per_s is not None:
        yield _rate(rates.tokens_per_s, rates.tokens_per_s_per_gpu, "tokens/s", each)
    elif rates.samples_per_s is not None:
        yield _rate(rates.samples_per_s, rates.samples_per_s_per_gpu, "samples/s", each)
    if rates.padding_share is not None:
        yield f"padding {percent(rates.padding_share)}"
    if rates.tflops_per_gpu is not None and rates.tflops_per_gpu >= WORTH_TFLOPS:
        yield f"{significant(rates.tflops_per_gpu)} TFLOP/s a {each}"
    if rates.mfu is not None:
        again = f" (HFU {percent(rates.hfu)})" if rates.hfu is not None else ""
        yield f"MFU {percent(rates.mfu)}{again} of {significant(rates.peak_tflops or 0.0)} TFLOP/s"


def _rate(all_of: float, one: float | None, unit: str, each: str) -> str:
    more = one is not None and one != all_of
    return f"{significant(all_of)} {unit}" + (f" ({significant(one or 0.0)} a {each})" if more else "")
