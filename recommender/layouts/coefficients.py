"""The fitted coefficients of layouts; `coefficients.json` is written by `scripts/fit/layouts.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.layouts.links import CollectiveCost

TUNED = "megatron"
"""The software of all published steps in fp8 or with experts: assumed for these where none is named."""


@dataclass(frozen=True)
class LayoutCoefficients:
    """What published steps say beyond products and links, for one software or for all together."""

    products: float
    """Seconds of products beside those of products alone: neighbours share power and clock."""
    attention: float
    streams: float
    """The same of what memory binds."""
    experts: float
    """The further factor on layers with experts: many small products, uneven loads."""
    kernel_s: float
    """Seconds of the host for one kernel."""
    tensor_host_s: float
    """The least seconds of a layer and micro-batch between tensor ranks: their collectives are launched, too."""
    tensor_stage_s: float
    """The further least seconds for each tensor rank, where there is a pipeline as well."""
    micro_s: float
    """Seconds of the host for one micro-batch in one stage."""
    step_s: float
    """Seconds of a step besides."""
    update_bytes: float
    """Bytes that an update moves for each parameter that a rank updates."""
    accumulate_bytes: float
    """Bytes that adding gradients moves for each parameter of a rank and micro-batch."""
    tensor_exposed: float
    """The share of tensor and expert traffic that computation does not hide."""
    data_hidden: float
    """The share of a micro-batch's computation behind which reductions of gradients hide."""
    update_hidden: float
    """The same where optimizer states are divided (ZeRO-1): of scattered gradients, and of gathered parameters."""
    piece: float
    """Parameters that one such collective sends: a bucket, or a tensor."""
    gather_hidden: float
    """The share of a micro-batch's computation behind which gathering divided parameters hides."""
    network: float
    """The share of the network's data sheet that collectives reach."""
    hop_s: float
    """Latency of a collective between domains."""
    send_s: float
    """Latency of a message between stages, with the host's part."""
    uneven: float
    """Seconds lost to ranks that are late, as a share of the step for each doubling of domains."""
    selective_products: float
    """The share of products that selective recomputation computes again: none in Megatron-LM, half in torchtitan."""
    activations: float
    """Activations kept beside those that have to be: eager operators keep more."""
    gradient_bytes: float
    """Bytes of a gradient that is kept: 4 in fp32, and 2 more where the one in 16 bit stays beside it."""
    logit_bytes: float
    """Bytes of a logit at the loss: 6 in 16 bit and in fp32; more where the loss is not fused."""
    balanced: bool
    """Whether stages are divided such that the head counts as layers, or equally."""
    sd: float
    """Standard deviation of the logarithm of the step, by errors on models or sources left out of the fit."""
    memory_spread: float
    """How much more activations, logits and buffers may take, as a share: what software keeps differs."""
    collectives: dict[str, CollectiveCost]
    reduced_bytes: float = 4.0
    """Bytes of a gradient that is added up and reduced: in fp32, as Megatron-LM, nanotron and FSDP2 do by default."""
    gathered_bytes: float = 2.0
    """Bytes of a parameter that is gathered: 1 where Megatron-LM gathers those in fp8 (`--fp8-param-gather`)."""
    parameter_bytes: float = 0.0
    """Bytes of a number, where weights, gradients and states are all of one type, as the job was counted; 0: weights in
    16 bit beside a copy in fp32, gradients in fp32."""


@dataclass(frozen=True)
class FittedLayouts:
    """The coefficients by software; the first are those of all together."""

    common: LayoutCoefficients
    software: dict[str, LayoutCoefficients]
    gpus: tuple[str, ...]
    """The GPUs of the fit."""

    def of(self, name: str | None, precision: str = "bf16", experts: bool = False) -> LayoutCoefficients:
        """The coefficients of a software. None: of all together, or of `TUNED` for fp8 and experts.

        Raises `PredictionError` for an unknown one.
        """
        if name is None:
            return self.software[TUNED] if precision == "fp8" or experts else self.common
        if name not in self.software:
            raise PredictionError(f"software {name!r} is not known; one of: {', '.join(self.software)}")
        return self.software[name]


def layouts_from(data: dict[str, Any]) -> FittedLayouts:
    """From the content of the file."""
    collectives = {name: CollectiveCost(**row) for name, row in data["collectives"].items()}
    common = LayoutCoefficients(**data["common"], collectives=collectives)
    software = {
        name: LayoutCoefficients(**{**data["common"], **row}, collectives=collectives)
        for name, row in data["software"].items()
    }
    return FittedLayouts(common, software, tuple(data["gpus"]))


@lru_cache(maxsize=1)
def shipped_layouts() -> FittedLayouts:
    """The coefficients of the package, read once."""
    text = files("ddlprof.recommender").joinpath("layouts/coefficients.json").read_text("utf-8")
    return layouts_from(json.loads(text))
