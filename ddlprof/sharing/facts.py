"""The manifest and the operators of a shared run: each made anew, of the fields that are allowed."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from functools import cache
from typing import Any

from ddlprof.model.manifest import Manifest, ModelFacts, TrainingFacts
from ddlprof.model.operators import Operator, StepMemory, StepOperators
from ddlprof.sharing import names as words
from ddlprof.sharing.lines import Origins

JOB = "job"
"""The name of every shared job."""
MODEL = "model"
_MODEL_NUMBERS = (
    "layers", "parameter_tensors", "parameters", "gradient_bytes", "forward_flops_per_sample",
    "backward_flops_per_sample", "compiled",
)  # fmt: skip
_TRAINING_NUMBERS = (
    "batch_per_rank", "global_batch", "micro_batches", "dataset_samples", "loader_workers", "pin_memory",
    "persistent_workers", "prefetch_factor", "peak_device_memory_bytes", "peak_process_memory_bytes", "zero_stage",
    "data_parallel_ranks", "cpu_threads",
)  # fmt: skip
_HOST_NUMBERS = ("physical_cores", "logical_cores", "available_cores", "cpu_quota_cores", "memory_bytes")
_CALIBRATION_NUMBERS = ("ranks", "seconds")
_MEMORY_NUMBERS = (
    "parameter_bytes", "trained_bytes", "saved_bytes", "saved_fixed_bytes", "saved_cast_bytes", "temporary_bytes",
    "layer_bytes", "kept_bytes", "input_bytes", "points", "largest_tensor_bytes", "largest_block_bytes",
)  # fmt: skip
_OPERATOR_NUMBERS = (
    "shape", "flops", "bytes", "launches", "count", "grows", "fixed_bytes", "fused_bytes", "fused_launches",
)  # fmt: skip


def shared_manifest(manifest: Manifest, origins: Origins, job_id: str) -> Manifest:
    """The manifest without names, paths, arguments and dates."""
    training = manifest.training
    return Manifest(
        name=JOB,
        argv=[JOB],
        job_id=job_id,
        created_unix_ns=origins.unix(manifest.created_unix_ns),
        world_size=manifest.world_size,
        origin_unix_ns=origins.unix(manifest.origin_unix_ns),
        versions=words.versions(manifest.versions),
        host=_host(manifest.host),
        model=ModelFacts(MODEL if manifest.model.name else None, **_of(manifest.model, _MODEL_NUMBERS)),
        training=TrainingFacts(
            optimizer=words.optimizer(training.optimizer),
            precision=words.precision(training.precision),
            strategy=words.strategy(training.strategy),
            backend=words.backend(training.backend),
            comm_hook=words.comm_hook(training.comm_hook),
            **_of(training, _TRAINING_NUMBERS),
        ),
        calibration=_numbers_in(manifest.calibration, _CALIBRATION_NUMBERS) if manifest.calibration else None,
    )


def _of(facts: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in names}


def _numbers_in(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if isinstance(values.get(name), (int, float))}


def _host(host: dict[str, Any]) -> dict[str, Any]:
    found = _numbers_in(host, _HOST_NUMBERS)
    if isinstance(gpus := host.get("gpus"), list):
        found["gpus"] = [words.device(each) for each in gpus if isinstance(each, str)]
    if isinstance(memory := host.get("gpu_memory_bytes"), list):
        found["gpu_memory_bytes"] = [each for each in memory if isinstance(each, int)]
    if driver := words.version(host.get("gpu_driver")):
        found["gpu_driver"] = driver
    if host.get("instance_type") in _instance_types():
        found["instance_type"] = host["instance_type"]
    return found


@cache
def _instance_types() -> frozenset[str]:
    """The types that clouds offer to everybody: those of the catalogue that comes with ddlprof."""
    from instance_catalog import load

    return frozenset(machine.instance_type for machine in load(None).instances)


def manifest_text(manifest: Manifest) -> str:
    """The content of `manifest.json`."""
    return json.dumps(asdict(manifest), indent=1) + "\n"


def shared_operators(step: StepOperators, job_id: str) -> dict[str, Any]:
    """The content of `operators.json`, without names that are not torch's."""
    operators = [_operator(each) for each in step.operators]
    memory = StepMemory(**_of(step.memory, _MEMORY_NUMBERS)) if step.memory else None
    shared = StepOperators(
        batch=step.batch,
        precision=words.precision(step.precision) or "other",
        operators=(),
        optimizer=words.optimizer(step.optimizer),
        training=step.training,
        checkpointing=step.checkpointing,
        compiled=step.compiled,
        memory=memory,
    )
    described = {f.name: getattr(shared, f.name) for f in fields(shared) if f.name not in ("operators", "memory")}
    described["memory"] = asdict(memory) if memory else None
    return {"job_id": job_id, "step": described, "schema": 1, "operators": operators}


def _operator(each: Operator) -> dict[str, Any]:
    """One operator; its kind and phase are checked words of ddlprof's."""
    return {
        "kind": each.kind,
        "phase": each.phase,
        "name": words.operator(each.name, each.kind),
        "dtype": words.dtype(each.dtype),
        **_of(each, _OPERATOR_NUMBERS),
    }
