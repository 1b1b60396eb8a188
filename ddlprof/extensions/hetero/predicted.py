"""Makes a problem of a job known from a run or `ddlprof features`. The recommender predicts times and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

from ddlprof.base.errors import UserError
from ddlprof.extensions.hetero.devices import Devices
from ddlprof.extensions.hetero.problem import DeviceWork, GradientBucket, Problem, grouped
from ddlprof.extensions.hetero.stages.problem import MemoryUse, StagedProblem, StageLayer
from ddlprof.model.operators import Layer, StepOperators
from ddlprof.recommender import Estimate, Learned, Predictor, Target, Workload
from ddlprof.recommender.compute.memory import GIB, JobMemory
from ddlprof.recommender.workload import MAX_BATCH

EQUAL_SHARES = "its layers were not recorded: all are taken for equal; profile it again, or use `ddlprof features`"
NO_FLOPS = "the FLOPs of its layers were not recorded: computation is taken to be the same for each"
NOT_DIVIDED = (
    "layers were not divided over GPUs: what passes between them is known of `ddlprof features` alone, not of a run"
)
SHARED = "layers were not divided over GPUs: weights are shared from the first to the last of them"
MOST_PARTS = 32
"""The most parts of a model among which stages are divided."""
_ACCUMULATED = 2
"""Micro-batches of an update, as far as memory depends on them: gradients are there all the time."""
_FORWARD_SHARE = 1 / 3
"""The share of forward in computation if the operators are not known: backward's two products cost twice as much."""


def predicted_problem(
    workload: Workload, devices: Devices, batch: int | None = None, learned: Learned | None = None
) -> tuple[Problem, list[str]]:
    """The problem, and a sentence for each assumption.

    `batch`: replaces the job's samples of an update. Raises `DdlprofError` if too little is known.
    """
    parts, notes = layers_of(workload)
    batch = batch or _global_batch(workload)
    if batch is None:
        raise UserError(f"{workload.name}: the samples of an update are not known; give --global-batch")
    if batch > MAX_BATCH:
        raise UserError(f"--global-batch {batch}: at most {MAX_BATCH:,} samples")
    times = PredictedTimes(workload, devices, learned)
    return Problem(devices, grouped(parts), batch, times), [*notes, *times.notes(batch)]


def layers_of(workload: Workload) -> tuple[list[GradientBucket], list[str]]:
    """The layers in forward order with their shares of computation, and a sentence for each assumption.

    Raises `UserError` if not even the bytes of all gradients are known.
    """
    layers = workload.step.layers if workload.step else ()
    if not layers:
        if not workload.gradient_bytes:
            raise UserError(f"{workload.name}: its gradient bytes are not known; profile it again")
        count = max(workload.layers or 1, 1)
        each = workload.gradient_bytes / count
        return [GradientBucket(f"layer {number + 1}", each, 1 / count) for number in range(count)], [EQUAL_SHARES]
    flops = sum(layer.forward_flops for layer in layers)
    if not flops:
        return [GradientBucket(each.name, each.gradient_bytes, 1 / len(layers)) for each in layers], [NO_FLOPS]
    return [GradientBucket(each.name, each.gradient_bytes, each.forward_flops / flops) for each in layers], []


def staged_problem(workload: Workload, problem: Problem) -> tuple[StagedProblem | None, list[str]]:
    """The same job for stages of a pipeline, or the reason why its layers cannot be divided, as a sentence."""
    step, times = workload.step, problem.times
    assert isinstance(times, PredictedTimes)
    memory = JobMemory(workload)
    need = memory.need(1, 1, _ACCUMULATED)
    layers = step.layers if step else ()
    if step is None or need is None or not any(layer.saved_bytes for layer in layers):
        return None, [NOT_DIVIDED]
    parts = joined_layers(layers, step.batch, step.memory.input_bytes or 0.0 if step.memory else 0.0)
    if len(parts) < 2:
        return None, [SHARED]
    of_devices = [problem.devices.machines[each.machine].memory_gib for each in problem.devices.all]
    limits = tuple(None if gib is None else gib * GIB for gib in of_devices)
    use = cache(partial(memory_use, memory, step))
    return StagedProblem(problem.devices, parts, problem.batch, times, use, limits), []


def joined_layers(layers: Sequence[Layer], batch: int, input_bytes: float) -> tuple[StageLayer, ...]:
    """The layers as parts between which the model can be divided, `MOST_PARTS` at most, with bytes of one sample.

    `batch`: the samples to which the layers' bytes refer; `input_bytes`: those of such a batch. Where there are more
    parts, the boundaries that most passes are given up first, and of equal ones those around the least computation.
    """
    whole = sum(layer.forward_flops for layer in layers)
    parts: list[StageLayer] = []
    for number, layer in enumerate(layers):
        share = layer.forward_flops / whole if whole else 1 / len(layers)
        passed = input_bytes if not number else layer.input_bytes
        saved = (layer.saved_bytes or 0.0) / batch
        each = StageLayer(layer.name, share, layer.gradient_bytes, (passed or 0.0) / batch, saved)
        if passed is None and parts:
            parts[-1] = _with(parts[-1], each)
        else:
            parts.append(each)
    while len(parts) > MOST_PARTS:
        at = max(range(1, len(parts)), key=lambda n: (parts[n].input_bytes, -parts[n - 1].share - parts[n].share, -n))
        parts[at - 1 : at + 1] = [_with(parts[at - 1], parts[at])]
    return tuple(parts)


def _with(one: StageLayer, other: StageLayer) -> StageLayer:
    return replace(
        one, share=one.share + other.share, gradient_bytes=one.gradient_bytes + other.gradient_bytes,
        saved_bytes=one.saved_bytes + other.saved_bytes, layers=one.layers + other.layers,
    )  # fmt: skip


def memory_use(memory: JobMemory, step: StepOperators, samples: int) -> MemoryUse:
    """What the whole model needs with so many samples in a micro-batch, in parts that stages divide."""
    need = memory.need(samples, 1, _ACCUMULATED)
    assert need is not None
    assert step.memory is not None
    saved = (step.memory.saved_bytes or 0.0) * samples / step.batch
    return MemoryUse(
        fixed=need.context + need.workspace + max(need.other, 0.0),
        states=need.parameters + need.gradients + need.optimizer + need.update,
        saved=saved,
        temporary=max(need.activations - saved, 0.0) + need.input,
    )


def _global_batch(workload: Workload) -> int | None:
    if workload.global_batch is not None:
        return workload.global_batch
    return workload.step.batch if workload.step else None


class PredictedTimes:
    """The times of each device alone with its share of the batch, as `ddlprof predict` gives them for one GPU."""

    def __init__(self, workload: Workload, devices: Devices, learned: Learned | None = None) -> None:
        """Raises `PredictionError` if too little is known of the job."""
        self._devices = devices
        self._predictor = Predictor(workload, learned=learned)
        self._memory = JobMemory(workload)
        self._estimate = cache(self._predicted)
        self._work = cache(lambda machine, samples: _work(self._estimate(machine, samples)))
        self._most = cache(self._largest)

    def work(self, device: int, samples: int) -> DeviceWork:
        """See `Times`. Some numbers of samples are predicted; others are interpolated linearly."""
        machine = self._devices.all[device].machine
        below, above = _around(samples)
        low = self._work(machine, below)
        return low if below == above else _between(low, self._work(machine, above), (samples - below) / (above - below))

    def most(self, device: int) -> int | None:
        """See `Times`."""
        return self._most(self._devices.all[device].machine)

    def interval(self, device: int, samples: int) -> tuple[float, float]:
        """The ends of the 80 % interval of the device's step, as multiples of the step."""
        found = self._estimate(self._devices.all[device].machine, samples)
        return found.low_s / found.step_s, found.high_s / found.step_s

    def notes(self, batch: int) -> list[str]:
        """What the times are based on, one sentence each."""
        samples = max(batch // len(self._devices), 1)
        found = [
            sentence
            for number in range(len(self._devices.machines))
            for sentence in self._estimate(number, samples).basis
        ]
        if any(self._most(number) is None for number in range(len(self._devices.machines))):
            found.append("the memory of its step is not known: whether shares fit was not looked at")
        return list(dict.fromkeys(found))

    def _predicted(self, machine: int, samples: int) -> Estimate:
        return self._predictor.predict(self._target(machine, samples))

    def _target(self, machine: int, samples: int) -> Target:
        kind = self._devices.machines[machine]
        return Target(kind.instance_type, (1,), samples, grad_accum=1, gpu_model=kind.gpu_model)

    def _largest(self, machine: int) -> int | None:
        memory_gib = self._devices.machines[machine].memory_gib
        if memory_gib is None or self._memory.needed_gib(1, len(self._devices)) is None:
            return None
        return self._memory.largest_batch(memory_gib, len(self._devices))


_ALL_UP_TO, _DENSITY = 32, 8
"""Every number of samples up to the first value is predicted, and above it the second number of values for each
doubling. A search asks for thousands of numbers."""


def _around(samples: int) -> tuple[int, int]:
    """The nearest predicted numbers of samples below and above; equal for a predicted number."""
    if samples <= _ALL_UP_TO:
        return samples, samples
    apart = max(1 << (samples.bit_length() - 1), _DENSITY) // _DENSITY
    below = samples // apart * apart
    return (below, below) if below == samples else (below, below + apart)


def _between(one: DeviceWork, other: DeviceWork, share: float) -> DeviceWork:
    def at(low: float, high: float) -> float:
        return low + share * (high - low)

    return DeviceWork(
        at(one.forward_s, other.forward_s), at(one.backward_s, other.backward_s),
        at(one.before_s, other.before_s), at(one.update_s, other.update_s),
    )  # fmt: skip


def _work(estimate: Estimate) -> DeviceWork:
    times, phases = estimate.times, estimate.phases
    before_s = estimate.step_s - times.compute_s
    if phases is None:
        forward_s = _FORWARD_SHARE * times.compute_s
        return DeviceWork(forward_s, times.compute_s - forward_s, before_s)
    return DeviceWork(phases.forward_s, phases.backward_s, before_s, phases.optimizer_s)
