"""Fills the manifest from what the probe saw."""

from __future__ import annotations

import os
import sys
import time

from ddlprof.collect.attribution import StepAssembler
from ddlprof.collect.calibration import backend_of
from ddlprof.collect.context import host_facts, peak_rss_bytes, versions
from ddlprof.collect.features import model_facts, precision_of, strategy_of
from ddlprof.collect.probe import Probe
from ddlprof.collect.redact import redact
from ddlprof.model.manifest import Manifest
from ddlprof.model.records import StepRow

_PACKAGES = ("torch", "ddlprof")


def new_manifest(name: str, argv: list[str], job_id: str, world_size: int, origin_unix_ns: int) -> Manifest:
    """What is known before the script runs."""
    return Manifest(
        name=name,
        argv=redact(argv),
        job_id=job_id,
        created_unix_ns=time.time_ns(),
        world_size=world_size,
        origin_unix_ns=origin_unix_ns,
        working_directory=os.getcwd(),
        versions=versions(_PACKAGES),
        host=host_facts(),
    )


def update_manifest(manifest: Manifest, probe: Probe, assembler: StepAssembler, row: StepRow | None) -> None:
    """What is known after some steps; `row` is a step whose batch is typical, None at the end of the run."""
    training = manifest.training
    training.peak_process_memory_bytes = peak_rss_bytes()
    torch = sys.modules.get("torch")
    if torch is None:
        return
    manifest.versions = versions(_PACKAGES)
    if row is not None:
        training.micro_batches = row.microbatches or None
        if row.samples:
            training.global_batch = row.samples * manifest.world_size
            training.batch_per_rank = row.samples // max(1, row.microbatches)
    if probe.module is not None:
        manifest.model = model_facts(probe.module)
        _add_flops(manifest, probe)
        training.strategy = strategy_of(probe.module, None)
        if training.strategy == "ddp" and "ZeroRedundancyOptimizer" in assembler.optimizer_names.values():
            training.strategy = "zero"
        training.precision = precision_of(probe.module, probe.autocast)
    if assembler.anchor is not None:
        training.optimizer = assembler.optimizer_names.get(assembler.anchor)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        training.backend = backend_of(torch.distributed)
    if torch.cuda.is_initialized():
        training.peak_device_memory_bytes = int(torch.cuda.max_memory_allocated())
    training.loader_workers = probe.loader_workers
    training.dataset_samples = probe.dataset_samples


def _add_flops(manifest: Manifest, probe: Probe) -> None:
    batch = manifest.training.batch_per_rank
    if probe.flops is not None and probe.flops.forward and batch:
        manifest.model.forward_flops_per_sample = probe.flops.forward / batch
        manifest.model.backward_flops_per_sample = probe.flops.backward / batch
