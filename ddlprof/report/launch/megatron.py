"""A layout as arguments of Megatron-LM's `pretrain_gpt.py`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ddlprof.recommender.architecture import Transformer
from ddlprof.report.launch.launch import Launch
from ddlprof.report.text import text_of

START = "torchrun ... pretrain_gpt.py $(grep -v '^#' {path}) --data-path ..."
_SHARDS = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
_PRECISIONS = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp8": ["--bf16", "--fp8-format hybrid"], "fp32": []}


def check(launch: Launch) -> None:
    """Raises UserError for what Megatron-LM has no word for."""
    shard = launch.layout.shard
    launch.require(
        "Megatron-LM",
        precision=launch.precision not in _PRECISIONS,
        attention_to_all_tokens=not launch.model.causal,
        shard=shard in _SHARDS and launch.layout.pipeline > 1,
    )


def render(launch: Launch) -> str:
    """One argument a line, after comments. Raises UserError for what Megatron-LM has no word for."""
    check(launch)
    torchrun = f"torchrun --nnodes {launch.nodes} --nproc-per-node {launch.gpus_per_node} ..."
    start = START.replace("torchrun ...", torchrun).format(path="THIS_FILE")
    return text_of(
        [*(f"# {line}" for line in launch.comments(start)), *_model(launch.model), *_layout(launch), *_training(launch)]
    )


def _model(model: Transformer) -> Iterator[str]:
    yield f"--num-layers {model.layers}"
    yield f"--hidden-size {model.hidden}"
    yield f"--ffn-hidden-size {model.ffn}"
    yield f"--num-attention-heads {model.heads}"
    yield f"--seq-length {model.seq}"
    yield f"--max-position-embeddings {model.seq}"
    yield f"--vocab-size {model.vocab}"
    if model.kv_lora:
        yield "--multi-latent-attention"
        if model.q_lora:
            yield f"--q-lora-rank {model.q_lora}"
        yield f"--kv-lora-rank {model.kv_lora}"
        yield f"--qk-head-dim {model.head_dim - model.rope_dim}"
        yield f"--qk-pos-emb-head-dim {model.rope_dim}"
        yield f"--v-head-dim {model.of_value}"
    else:
        yield f"--kv-channels {model.head_dim}"
        if model.kv_heads < model.heads:
            yield "--group-query-attention"
            yield f"--num-query-groups {model.kv_heads}"
    if model.gated:
        yield "--swiglu"
        yield "--normalization RMSNorm"
        yield "--disable-bias-linear"
        yield "--position-embedding-type rope"
        yield "--hidden-dropout 0.0"
        yield "--attention-dropout 0.0"
    if not model.tied:
        yield "--untie-embeddings-and-output-weights"
    if model.experts:
        yield from _experts(model)


def _experts(model: Transformer) -> Iterator[str]:
    yield f"--num-experts {model.experts}"
    yield f"--moe-router-topk {model.experts_per_token}"
    yield f"--moe-ffn-hidden-size {model.expert_ffn}"
    if model.shared_experts:
        yield f"--moe-shared-expert-intermediate-size {model.shared_experts * model.expert_ffn}"
    if model.dense_layers:
        yield f"--moe-layer-freq ([0]*{model.dense_layers}+[1]*{model.layers - model.dense_layers})"
    yield "--moe-token-dispatcher-type alltoall"
    yield "--moe-grouped-gemm"


def _layout(launch: Launch) -> Iterator[str]:
    layout = launch.layout
    yield f"--tensor-model-parallel-size {layout.tensor}"
    if layout.tensor > 1 and layout.sequence_parallel:
        yield "--sequence-parallel"
    yield f"--pipeline-model-parallel-size {layout.pipeline}"
    yield from _stages(launch)
    yield f"--context-parallel-size {layout.context}"
    if launch.model.experts:
        yield f"--expert-model-parallel-size {layout.expert}"
        yield "--expert-tensor-parallel-size 1"
    yield from _shards(launch)
    if layout.recompute == "selective":
        yield "--recompute-granularity selective"
    elif layout.recompute == "full":
        yield "--recompute-granularity full"
        yield "--recompute-method uniform"
        yield "--recompute-num-layers 1"


def _stages(launch: Launch) -> Iterator[str]:
    """How layers are divided over stages: a number where it is the same for all, else each part by itself."""
    layers, layout = launch.stage_layers, launch.layout
    if layout.pipeline == 1:
        return
    if len(set(layers)) == 1:
        if layout.virtual > 1:
            yield f"--num-layers-per-virtual-pipeline-stage {layers[0]}"
        return
    *before, last = layers
    runs = [f"(t*{number}|)*{len(list(alike))}" for number, alike in groupby(before)]
    yield f"--pipeline-model-parallel-layout E{''.join(runs)}t*{last}L"


def _shards(launch: Launch) -> Iterator[str]:
    shard = launch.layout.shard
    copies, _ = launch.data_copies_and_shards
    if shard == "none":
        return
    yield "--use-distributed-optimizer"
    if shard != "zero1":
        yield "--use-megatron-fsdp"
        yield f"--data-parallel-sharding-strategy {_SHARDS.get(shard, _SHARDS['zero3'])}"
        yield "--ckpt-format fsdp_dtensor"
    if copies > 1:
        yield f"--num-distributed-optimizer-instances {copies}"
    yield "--overlap-grad-reduce"
    yield "--overlap-param-gather"


def _training(launch: Launch) -> Iterator[str]:
    yield f"--micro-batch-size {launch.micro_batch}"
    yield f"--global-batch-size {launch.global_batch}"
    yield f"--train-iters {launch.steps}"
    yield from _PRECISIONS[launch.precision]
