"""A layout as a config of `accelerate launch`: FSDP, with tensor and context ranks where there are any."""

from __future__ import annotations

from ddlprof.emit.frameworks.training import DividedTraining
from ddlprof.emit.yaml_text import yaml_text

START = "accelerate launch --config_file {path} --machine_rank RANK --main_process_ip ADDRESS train.py"
_PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": "no"}


def check(training: DividedTraining) -> None:
    """Raises UserError for what accelerate has no word for."""
    layout = training.layout
    training.require(
        "accelerate",
        a_pipeline=layout.pipeline > 1,
        expert_ranks=layout.expert > 1,
        selective_recomputation=layout.recompute == "selective",
        recomputation_without_FSDP=layout.recompute == "full" and layout.shard == "none",
        tensor_or_context_ranks_without_FSDP=layout.shard == "none" and layout.model_ranks > 1,
        precision=training.precision not in _PRECISIONS,
    )


def render(training: DividedTraining) -> str:
    """The YAML. Raises UserError for what accelerate has no word for."""
    layout = training.layout
    check(training)
    lines = training.comments(START.format(path="THIS_FILE"))
    lines.append(
        f"The script sets a batch of {training.micro_batch} for each process"
        f" and gradient_accumulation_steps={training.micro_batches}."
    )
    if layout.shard in ("zero1", "zero2"):
        lines.append(f"{layout.shard}: the nearest that FSDP has is not to reshard after forward.")
    return yaml_text([(lines, _config(training))])


def _config(training: DividedTraining) -> dict[str, object]:
    layout = training.layout
    divided = layout.shard != "none"
    config: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if divided else "MULTI_GPU",
        "mixed_precision": _PRECISIONS[training.precision],
        "num_machines": training.nodes,
        "num_processes": training.gpus,
        "machine_rank": 0,
        "main_process_port": 29500,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if not divided:
        return config
    copies, shards = training.data_copies_and_shards
    config["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": layout.shards[0],
        "fsdp_activation_checkpointing": layout.recompute == "full",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_offload_params": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }
    config["parallelism_config"] = {
        "parallelism_config_dp_replicate_size": copies,
        "parallelism_config_dp_shard_size": shards,
        "parallelism_config_tp_size": layout.tensor,
        "parallelism_config_cp_size": layout.context,
    }
    return config
