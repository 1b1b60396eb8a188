"""Writes what `ModelInspector` saw into the manifest. `ddlprof.collect.job.rank_output` writes what is known before."""

from __future__ import annotations

import sys

from ddlprof.base.guarded import attempt
from ddlprof.collect.accelerator import known
from ddlprof.collect.facts.machine import PACKAGES, versions
from ddlprof.collect.facts.model_inspector import ModelInspector
from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.model.manifest import Manifest, ModelFacts, TrainingFacts
from ddlprof.model.operators import Operator, StepMemory, StepOperators
from ddlprof.model.records import StepRow
from ddlprof.operators.features import (
    JoinedModules,
    comm_hook_of,
    layers,
    model_facts,
    parameter_bytes,
    precision_of,
    reduced_in,
    weight_elements,
)
from ddlprof.operators.graph_operators import GraphStep, step_of
from ddlprof.operators.parallel import Parallelism, backend_of
from ddlprof.torch_private.engine import no_torch_function


def update_manifest(
    manifest: Manifest,
    probe: ModelInspector,
    assembler: StepAssembler,
    row: StepRow | None,
    parallelism: Parallelism | None,
) -> None:
    """Adds what is known after some steps. `row`: a step with a typical batch; None: leave the batch as it is.

    `parallelism`: how the ranks share the work, as far as is known now.
    """
    training = manifest.training
    torch = sys.modules.get("torch")
    if torch is None:
        return
    manifest.versions = versions(PACKAGES)
    training.cpu_threads = attempt(torch.get_num_threads)
    modules = probe.modules
    learn = bool(modules) and (manifest.model.name is None or probe.all_alive)  # models alive at the end may not be all
    if learn and parallelism is not None:
        training.strategy, training.zero_stage = parallelism.strategy, parallelism.zero_stage
        training.data_parallel_ranks, manifest.layout = parallelism.data_parallel_ranks, parallelism.layout
    if row is not None:
        _add_batch(manifest, probe, row)
    if learn:
        with no_torch_function(torch):  # do not run tensor subclasses' __torch_function__
            manifest.model = model_facts(*modules, failed=probe.failed)
            probe.counted = probe.flops.of_microbatch(*weight_elements(JoinedModules(modules)))
            probe.recomputed = probe.flops.recomputed_in_microbatch()
            probe.sizes = attempt(lambda: parameter_bytes(JoinedModules(modules)))
            probe.layers = attempt(lambda: layers(modules, probe.flops.of_weights_in_microbatch())) or ()
            if probe.flops.microbatches:
                manifest.model.graph_nodes = probe.flops.nodes // probe.flops.microbatches
            training.precision = precision_of(JoinedModules(modules), probe.autocast, probe.failed, known.uses_tf32)
        training.comm_hook = comm_hook_of(modules[0])
        training.reduced_in = reduced_in(modules[0], training.comm_hook)
    training.passes_in_update = assembler.passes_in_update
    _add_gradients(manifest.model, probe, training.passes_in_update)
    manifest.model.frozen = probe.frozen or assembler.teaches
    training.unused_iterations = probe.ddp.iterations if probe.ddp.finds_unused and not probe.ddp.unused else None
    training.buffers_change, training.batch_statistics = probe.ddp.buffers_change, probe.ddp.statistics
    _add_flops(manifest, probe)
    if assembler.boundaries.anchor is not None:
        training.optimizer = assembler.boundaries.names.get(assembler.boundaries.anchor)
        training.new_optimizers = assembler.boundaries.new_share
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        training.backend = backend_of(torch.distributed)
    accelerator = known.in_use()
    if accelerator is not None:
        training.peak_device_memory_bytes = accelerator.peak_allocated_bytes()
    _add_input(training, probe)
    training.interpreter_hook, training.debug_modes = probe.switches.interpreter_hook, probe.switches.debug_modes
    training.anomaly_share, training.deterministic = probe.switches.anomaly_share, probe.switches.deterministic
    if (subnormal := probe.subnormals.found) is not None:
        training.subnormal_of, training.subnormal_share, training.subnormal_times = subnormal
    training.evaluates_with_gradients = assembler.evaluates_with_gradients
    training.evaluated_samples = assembler.evaluated_samples or None
    training.kept_graphs, training.retained_graphs = probe.kept_graphs.kept, probe.kept_graphs.retained
    _add_optimizer(manifest, probe)


def _add_input(training: TrainingFacts, probe: ModelInspector) -> None:
    """Adds what is known of the loader and its batches."""
    training.loader_workers = probe.loader_workers
    for name, value in probe.loader.items():
        setattr(training, name, value)
    training.dataset_samples = probe.dataset_samples
    training.repeated_batches = probe.parts.repeats.repeat
    training.repeated_orders = probe.orders.repeated
    training.batch_tensors, training.batch_bytes = probe.parts.tensors, probe.parts.bytes
    training.tokens_per_sample = probe.text.tokens_per_sample(training.batch_per_rank)
    training.padding_share, training.ignored_share = probe.text.padding_share, probe.text.ignored_share


def _add_batch(manifest: Manifest, probe: ModelInspector, row: StepRow) -> None:
    training = manifest.training
    training.micro_batches = row.microbatches or None
    if not row.samples or (probe.pipeline_ranks > 1 and probe.loader_workers is None):
        return  # a pipeline's schedule cuts batches up; only a loader gives the whole size
    training.batch_per_rank = max(row.samples // max(1, row.microbatches), 1)
    training.global_batch = row.samples * (training.data_parallel_ranks or manifest.world_size)


def _add_optimizer(manifest: Manifest, probe: ModelInspector) -> None:
    update = max(probe.updates.values(), key=lambda update: update.elements, default=None)
    if update is not None:
        training = manifest.training
        training.optimizer_loops, training.optimizer_switch = update.loops, update.switch
        training.optimizer_tensors, training.optimizer_history = update.tensors, update.history


def _add_gradients(model: ModelFacts, probe: ModelInspector, passes_in_update: int) -> None:
    """Adds what becomes of the gradients that backward computes."""
    needless = probe.needless
    model.needless_parameters, model.dropped_gradients = needless.parameters, needless.dropped
    if not (passes_in_update and needless.dropped):  # else it is not known which update they are for
        model.needless_share = needless.share
    model.repeated_share = None if needless.taken else probe.flops.repeated_share


def _add_flops(manifest: Manifest, probe: ModelInspector) -> None:
    batch = manifest.training.batch_per_rank
    if probe.counted is not None and batch:
        manifest.model.forward_flops_per_sample = probe.counted[0] / batch
        manifest.model.backward_flops_per_sample = probe.counted[1] / batch
        manifest.model.recomputed_flops_per_sample = (probe.recomputed or 0.0) / batch
        manifest.model.sparse_share, manifest.model.sparse_nonzero = probe.flops.sparse_share, probe.flops.nonzero


_TOO_LITTLE = (
    "too much of the model is in no autograd graph (frozen parts, compiled code or autograd functions of its own):"
    " forward and backward are not told"
)
_NO_UPDATE = "the update: no optimizer of torch's kind was seen"


def step_record(probe: ModelInspector, manifest: Manifest) -> StepOperators | None:
    """The operators of one step; None if no graph was read, or the batch or the precision is not known.

    If FLOPs could not be counted, operators of forward and backward are left out, as some would be missing.
    """
    batch, precision = manifest.training.batch_per_rank, manifest.training.precision
    found = step_of(probe.graphs, batch, probe.owned, _microbatches(probe, manifest)) if batch else None
    if batch is None or found is None or precision is None:
        return None
    updates = sorted(probe.updates.values(), key=lambda update: update.elements, reverse=True)
    of_update = [operator for update in updates for operator in update.operators()]
    whole = probe.counted is not None
    unseen = [*found.unseen, *([] if whole else [_TOO_LITTLE]), *([] if updates else [_NO_UPDATE])]
    operators: list[Operator] = [*(found.operators if whole else ()), *of_update]
    return StepOperators(
        batch=batch,
        precision=precision,
        operators=tuple(operators),
        optimizer=updates[0].full_name if updates else None,
        checkpointing=found.checkpointing,
        compiled=found.compiled or bool(manifest.model.compiled),
        channels_last=bool(manifest.model.channels_last),
        memory=_memory(found, probe),
        unseen=tuple(unseen),
        layers=probe.layers,
    )


def _microbatches(probe: ModelInspector, manifest: Manifest) -> float | None:
    """To how many micro-batches of a step the graphs that were read belong; None if not known.

    A step may have more micro-batches than there was time to read. Several backward passes through one batch, as in a
    GAN, count as one micro-batch.
    """
    of_step = manifest.training.micro_batches
    return of_step * probe.graphs.microbatches / probe.backwards if of_step and probe.backwards else None


def _memory(found: GraphStep, probe: ModelInspector) -> StepMemory:
    sizes = probe.sizes
    return StepMemory(
        parameter_bytes=sizes.all if sizes else None,
        trained_bytes=sizes.trained if sizes else None,
        saved_bytes=found.saved_bytes,
        saved_fixed_bytes=found.saved_fixed_bytes,
        saved_cast_bytes=found.saved_cast_bytes,
        temporary_bytes=found.temporary_bytes,
        points=found.points,
        largest_tensor_bytes=sizes.largest if sizes else None,
        input_bytes=probe.input_bytes,
    )
