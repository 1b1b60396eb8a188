"""A layout as arguments of Megatron-LM's `pretrain_gpt.py`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ddlprof.base.text import text_of
from ddlprof.emit.frameworks.training import DividedTraining
from ddlprof.recommender.architecture import Transformer

START = "torchrun ... pretrain_gpt.py $(grep -v '^#' {path}) --data-path ..."
_SHARDS = {"zero2": "optim_grads", "zero3": "optim_grads_params"}
_PRECISIONS = {"bf16": ["--bf16"], "fp16": ["--fp16"], "fp8": ["--bf16", "--fp8-format hybrid"], "fp32": []}


def check(training: DividedTraining) -> None:
    """Raises UserError for what Megatron-LM has no word for."""
    shard = training.layout.shard
    training.require(
        "Megatron-LM",
        precision=training.precision not in _PRECISIONS,
        attention_to_all_tokens=not training.model.causal,
        shard=shard in _SHARDS and training.layout.pipeline > 1,
    )


def render(training: DividedTraining) -> str:
    """One argument a line, after comments. Raises UserError for what Megatron-LM has no word for."""
    check(training)
    torchrun = f"torchrun --nnodes {training.nodes} --nproc-per-node {training.gpus_per_node} ..."
    start = START.replace("torchrun ...", torchrun).format(path="THIS_FILE")
    comments = [f"# {line}" for line in training.comments(start)]
    return text_of([*comments, *_model(training.model), *_layout(training), *_training(training)])


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


def _layout(training: DividedTraining) -> Iterator[str]:
    layout = training.layout
    yield f"--tensor-model-parallel-size {layout.tensor}"
    if layout.tensor > 1 and layout.sequence_parallel:
        yield "--sequence-parallel"
    yield f"--pipeline-model-parallel-size {layout.pipeline}"
    yield from _stages(training)
    yield f"--context-parallel-size {layout.context}"
    if training.model.experts:
        yield f"--expert-model-parallel-size {layout.expert}"
        yield "--expert-tensor-parallel-size 1"
    yield from _shards(training)
    if layout.recompute == "selective":
        yield "--recompute-granularity selective"
    elif layout.recompute == "full":
        yield "--recompute-granularity full"
        yield "--recompute-method uniform"
        yield "--recompute-num-layers 1"


def _stages(training: DividedTraining) -> Iterator[str]:
    """How layers are divided over stages: a number where it is the same for all, else each part by itself."""
    layers, layout = training.stage_layers, training.layout
    if layout.pipeline == 1:
        return
    if len(set(layers)) == 1:
        if layout.virtual > 1:
            yield f"--num-layers-per-virtual-pipeline-stage {layers[0]}"
        return
    *before, last = layers
    runs = [f"(t*{number}|)*{len(list(alike))}" for number, alike in groupby(before)]
    yield f"--pipeline-model-parallel-layout E{''.join(runs)}t*{last}L"


def _shards(training: DividedTraining) -> Iterator[str]:
    shard = training.layout.shard
    copies, _ = training.data_copies_and_shards
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


def _training(training: DividedTraining) -> Iterator[str]:
    yield f"--micro-batch-size {training.micro_batch}"
    yield f"--global-batch-size {training.global_batch}"
    yield f"--train-iters {training.steps}"
    yield from _PRECISIONS[training.precision]
