"""A transformer by its sizes as a workload that nobody has to run."""

from __future__ import annotations

from ddlprof.recommender.architecture import Transformer
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.workload import Workload

_HALF_BYTES = 2.0


def transformer(
    *,
    layers: int,
    hidden: int,
    heads: int,
    vocab: int,
    seq: int,
    ffn: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    gated: bool = True,
    tied: bool = False,
    causal: bool = True,
    flash: bool = True,
    experts: int = 0,
    experts_per_token: int = 0,
    expert_ffn: int = 0,
    shared_experts: int = 0,
    dense_layers: int = 0,
    q_lora: int = 0,
    kv_lora: int = 0,
    rope_dim: int = 0,
    value_dim: int = 0,
    name: str = "transformer",
    software: str | None = None,
) -> Workload:
    """The job of training such a model in bf16, one sample being a sequence of `seq` tokens.

    `ffn` None: 4 x `hidden`; `kv_heads` None: as `heads`; `head_dim` None: `hidden` / `heads`. `q_lora`, `kv_lora`,
    `rope_dim` and `value_dim` are those of multi-head latent attention; see `recommender.architecture.Transformer`.
    `software` is what trains it: megatron, nanotron, torchtitan, ...; None: not known. Raises `PredictionError` for
    sizes that contradict each other.
    """
    if head_dim is None and (heads < 1 or hidden % heads):
        raise PredictionError(f"transformer: hidden {hidden} is not a multiple of heads {heads}: give head_dim")
    sizes = Transformer(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocab=vocab,
        seq=seq,
        ffn=4 * hidden if ffn is None else ffn,
        kv_heads=heads if kv_heads is None else kv_heads,
        head_dim=hidden // heads if head_dim is None else head_dim,
        gated=gated,
        tied=tied,
        causal=causal,
        flash=flash,
        experts=experts,
        experts_per_token=experts_per_token,
        expert_ffn=expert_ffn,
        shared_experts=shared_experts,
        dense_layers=dense_layers,
        q_lora=q_lora,
        kv_lora=kv_lora,
        rope_dim=rope_dim,
        value_dim=value_dim,
    )
    return workload_of(sizes, name, software)


def workload_of(sizes: Transformer, name: str = "transformer", software: str | None = None) -> Workload:
    """The job of training a model of these sizes in bf16."""
    weights, tensors = _layers_and_tensors(sizes)
    return Workload(
        name=name,
        layers=weights,
        parameter_tensors=tensors,
        gradient_bytes=_HALF_BYTES * sizes.parameters,
        flops_per_sample=sizes.flops_per_token * sizes.seq,
        tokens_per_sample=sizes.seq,
        transformer=sizes,
        software=software,
    )


def _layers_and_tensors(sizes: Transformer) -> tuple[int, int]:
    """Modules with a matrix, and all parameter tensors: two norms a layer, and the last one."""
    attention, mixed = (5 if sizes.kv_lora and sizes.q_lora else 4), sizes.mixed_layers
    networks = (sizes.layers - mixed) + mixed * (sizes.experts + sizes.shared_experts)
    routers, ends = mixed, 1 if sizes.tied else 2
    found = sizes.layers * attention + networks * sizes.products + routers + ends
    return found, found + 2 * sizes.layers + 1
