"""A layout as a config of nanotron, in the form that its release 0.4 reads, for models like Llama."""

from __future__ import annotations

from ddlprof.emit.frameworks.training import DividedTraining
from ddlprof.emit.yaml_text import yaml_text

START = "torchrun ... run_train.py --config-file {path}"
_STAGES = {"none": 0, "zero1": 1}


def check(training: DividedTraining) -> None:
    """Raises UserError for what nanotron has no word for."""
    layout, model = training.layout, training.model
    training.require(
        "nanotron",
        experts=bool(model.experts),
        latent_attention=bool(model.kv_lora),
        a_network_without_a_gate=not model.gated,
        heads_of_another_width=model.head_dim * model.heads != model.hidden,
        virtual_stages=layout.virtual > 1,
        context_ranks=layout.context > 1,
        shard=layout.shard not in _STAGES,
        recomputation=layout.recompute != "none",
        precision=training.precision != "bf16",
        attention_to_all_tokens=not model.causal,
    )


def render(training: DividedTraining) -> str:
    """The YAML. Raises UserError for what nanotron has no word for."""
    check(training)
    torchrun = f"torchrun --nnodes {training.nodes} --nproc-per-node {training.gpus_per_node} ..."
    start = START.replace("torchrun ...", torchrun).format(path="THIS_FILE")
    return yaml_text([(training.comments(start), _config(training))])


def _config(training: DividedTraining) -> dict[str, object]:
    layout = training.layout
    return {
        "general": {"project": "ddlprof", "run": training.job, "seed": 42},
        "model": {
            "dtype": "bfloat16",
            "make_vocab_size_divisible_by": 1,
            "ddp_bucket_cap_mb": 25,
            "init_method": {"std": 0.02},
            "model_config": _sizes(training),
        },
        "parallelism": {
            "dp": training.data,
            "tp": layout.tensor,
            "pp": layout.pipeline,
            "expert_parallel_size": layout.expert,
            "pp_engine": "1f1b",
            "tp_mode": "REDUCE_SCATTER" if layout.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": layout.sequence_parallel,
        },
        "optimizer": {
            "zero_stage": _STAGES[layout.shard],
            "accumulate_grad_in_fp32": True,
            "weight_decay": 0.1,
            "clip_grad": 1.0,
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "adam_eps": 1e-8,
            "torch_adam_is_fused": True,
            "learning_rate_scheduler": {"learning_rate": 3e-4, "lr_warmup_style": "linear", "lr_decay_style": "cosine"},
        },
        "tokenizer": {"tokenizer_name_or_path": None},
        "tokens": {
            "sequence_length": training.model.seq,
            "micro_batch_size": training.micro_batch,
            "batch_accumulation_per_replica": training.micro_batches,
            "train_steps": training.steps,
            "val_check_interval": -1,
            "limit_val_batches": 0,
            "limit_test_batches": 0,
        },
    }


def _sizes(training: DividedTraining) -> dict[str, object]:
    model = training.model
    return {
        "is_llama_config": True,
        "hidden_act": "silu",
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "max_position_embeddings": model.seq,
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.kv_heads,
        "pad_token_id": None,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "tie_word_embeddings": model.tied,
        "use_cache": True,
        "vocab_size": model.vocab,
    }
