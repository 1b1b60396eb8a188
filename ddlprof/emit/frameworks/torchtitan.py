"""A layout as a job file of torchtitan, in TOML as torchtitan reads it up to 0.2."""

from __future__ import annotations

import math

from ddlprof.base.text import text_of
from ddlprof.emit.frameworks.training import DividedTraining, one_line
from ddlprof.recommender.architecture import Transformer

START = "CONFIG_FILE={path} ./run_train.sh"
_FAMILIES = "a flavor with these sizes must be registered in torchtitan.models, and named here"


def check(training: DividedTraining) -> None:
    """Raises UserError for what torchtitan has no word for."""
    layout, model = training.layout, training.model
    training.require(
        "torchtitan",
        tensor_ranks_without_sequence_parallelism=layout.tensor > 1 and not layout.sequence_parallel,
        a_network_without_a_gate=not model.gated,
        a_tied_head_in_a_pipeline=model.tied and layout.pipeline > 1,
        **{f"{len(training.stage_layers)} parts of {model.layers} layers": _layers_per_stage(training) is None},
        precision=training.precision != "bf16",
        attention_to_all_tokens=not model.causal,
    )


def render(training: DividedTraining) -> str:
    """The TOML. Raises UserError for what torchtitan has no word for."""
    layout, model = training.layout, training.model
    check(training)
    copies, shards = training.data_copies_and_shards
    sections: dict[str, dict[str, object]] = {
        "job": {"description": f"{training.job}, {layout.text()}"},
        "model": {"name": _family(model), "flavor": training.job},
        "training": {
            "seq_len": model.seq,
            "local_batch_size": training.micro_batch * (training.micro_batches if layout.pipeline > 1 else 1),
            "global_batch_size": training.global_batch,
            "steps": training.steps,
            "mixed_precision_param": "bfloat16",
            "mixed_precision_reduce": "float32",
        },
        "parallelism": {
            "data_parallel_replicate_degree": copies,
            "data_parallel_shard_degree": shards,
            "fsdp_reshard_after_forward": "always" if layout.shards[0] else "never",
            "tensor_parallel_degree": layout.tensor,
            "pipeline_parallel_degree": layout.pipeline,
            "context_parallel_degree": layout.context,
            "expert_parallel_degree": layout.expert,
            **(_pipeline(training) if layout.pipeline > 1 else {}),
        },
        "activation_checkpoint": {
            "mode": layout.recompute,
            **({"selective_ac_option": "op"} if layout.recompute == "selective" else {}),
        },
    }
    lines = [f"# {line}" for line in training.comments(START.format(path="THIS_FILE"))] + _sizes(training)
    if layout.shard in ("zero1", "zero2"):
        lines.append(f"# {layout.shard}: the nearest that torchtitan has is FSDP without resharding after forward.")
    for section, values in sections.items():
        lines += ["", f"[{section}]", *(f"{key} = {one_line(value)}" for key, value in values.items())]
    return text_of(lines)


def _family(model: Transformer) -> str:
    """The model of torchtitan that can have such sizes."""
    if model.kv_lora:
        return "deepseek_v3"
    if model.experts:
        return "llama4"
    return "qwen3" if model.tied or model.head_dim * model.heads != model.hidden else "llama3"


def _layers_per_stage(training: DividedTraining) -> int | None:
    """The number of which torchtitan makes as many parts of the model as are wanted: it divides the layers by it and
    rounds up. None: no number does."""
    largest = max(training.stage_layers)
    return largest if math.ceil(training.model.layers / largest) == len(training.stage_layers) else None


def _pipeline(training: DividedTraining) -> dict[str, object]:
    """The schedule. Stages are divided as evenly as can be, neither the first nor the last holding less."""
    layout = training.layout
    return {
        "pipeline_parallel_schedule": "Interleaved1F1B" if layout.virtual > 1 else "1F1B",
        "pipeline_parallel_microbatch_size": training.micro_batch,
        "pipeline_parallel_layers_per_stage": _layers_per_stage(training),
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }


def _sizes(training: DividedTraining) -> list[str]:
    model = training.model
    text = (
        f"dim {model.hidden}, n_layers {model.layers}, n_heads {model.heads}, n_kv_heads {model.kv_heads},"
        f" ffn {model.ffn}, vocab_size {model.vocab}"
    )
    if model.experts:
        text += f", {model.experts} experts of {model.expert_ffn}, {model.experts_per_token} for a token"
    return [f"# Sizes: {text}; {_FAMILIES}."]
