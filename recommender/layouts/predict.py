"""`(job, placement, batch, layout) -> step time and memory` for a transformer over many GPUs.

Steps of the job that were measured correct the estimates: a Gaussian process on the logarithm of measured over
predicted seconds, for computation and for waiting apart. At a measured point the estimate is the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddlprof.instance_catalog import Catalog, Gpu
from ddlprof.model.operators import Checkpointing
from ddlprof.recommender.compute.gpu_peaks import peak_of, peaks_of
from ddlprof.recommender.compute.memory_fit import figures_of, usable_gib_of, verdict_of
from ddlprof.recommender.compute.precisions import precision_named
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.estimate import Z80, Estimate, StepTimes
from ddlprof.recommender.layout import Layout, require_layouts
from ddlprof.recommender.layouts.coefficients import FittedLayouts, LayoutCoefficients, shipped_layouts
from ddlprof.recommender.layouts.data_parallel import PRECISIONS, coefficients_of
from ddlprof.recommender.layouts.layer import HALF_BYTES
from ddlprof.recommender.layouts.links import fabric_of
from ddlprof.recommender.layouts.memory import LayoutMemory, layout_memory
from ddlprof.recommender.layouts.time import LayoutStep, LayoutTime
from ddlprof.recommender.target import Machine, Machines, Target, check_target
from ddlprof.recommender.workload import Measurement, Workload

_COMMON, _OF_GPU = 0.6, 0.2
"""Shares of the variance that all steps of a job have in common, and those on one kind of GPU; the rest belongs to
layouts that are alike."""
_REACH = 2.0
"""Layouts that differ by so many doublings of a degree have half of a layout's own variance in common."""
_NOISE_SD = 0.01
_NEW_GPU_SD = 0.08
"""The standard deviation added where the GPU was not in the fit: the error on GPUs left out."""
_RECOMPUTED: dict[Checkpointing, str] = {False: "none", True: "full", "selective": "selective"}
"""What checkpointing is called in a layout."""
_SHARDS = {"ddp": "none", "fsdp": "zero3", "zero": "zero1", "zero2": "zero2"}


@dataclass(frozen=True)
class _Asked:
    """A placement under a layout, complete."""

    machine: Machine
    gpu: Gpu
    """That of the machine."""
    per_node: int
    gpus: int
    layout: Layout
    sequences: int
    micro_batches: int
    precision: str
    alone: Target
    """The same micro-batch on one GPU, without a layout."""


class LayoutPredictor:
    """Predicts one transformer under any number of layouts; learns from its measured steps once."""

    def __init__(
        self,
        workload: Workload,
        catalog: Catalog,
        fitted: FittedLayouts | None = None,
        alone_s: Callable[[Target], float | None] | None = None,
    ) -> None:
        """`fitted` None: the coefficients of the package. `alone_s`: the seconds of a step on one GPU by its operators,
        where they are known: all layouts are then as much faster or slower as that one is.

        Raises `PredictionError` where the workload has no sizes of a transformer.
        """
        self.workload = workload
        self._model = require_layouts(workload.transformer, workload.name)
        self._all_fitted = fitted or shipped_layouts()
        self._machines = Machines(catalog)
        self._times: dict[tuple[object, ...], LayoutTime] = {}
        self._alone_s = alone_s
        self._factors: dict[Target, float] = {}
        self._seen = [
            (asked, *self._residuals(measurement, asked))
            for measurement in workload.measurements
            if (asked := self._asked_of(measurement)) is not None
        ]

    def predict(self, target: Target) -> Estimate:
        """The step, its interval and its memory.

        Raises `PredictionError` for a layout that does not divide the GPUs or the model.
        """
        asked = self._asked(target)
        step, memory, fitted = self._step(asked), self._memory(asked), self._fitted(asked)
        corrections, sd = self._correction(asked, fitted)
        times = _times(step, corrections)
        step_s = sum(vars(times).values())
        tokens = self._tokens(asked)
        mfu = self._mfu(asked, tokens / step_s)
        return Estimate(
            step_s=step_s,
            low_s=step_s * max(math.exp(-Z80 * sd), min(mfu, 1.0)),  # at its peak, the GPU has an MFU of 1
            high_s=step_s * math.exp(Z80 * sd),
            times=times,
            extrapolated=self._is_new(asked),
            basis=self._basis(asked, fitted, step, memory),
            memory_gib=memory.gib,
            **figures_of(verdict_of(memory.needed, usable_gib_of(asked.gpu))),
            tokens_per_s=tokens / step_s,
            mfu=mfu,
            dimensions={name: sent.seconds * corrections[1] for name, sent in step.dimensions.items()},
        )

    def memory(self, target: Target) -> LayoutMemory:
        """The memory of the GPU that needs most, by use. Raises as `predict` does."""
        return self._memory(self._asked(target))

    def _asked(self, target: Target) -> _Asked:
        machine = self._machines.of(target)
        check_target(target, machine)
        if machine.gpu is None:
            raise PredictionError("target without a GPU: give an instance type or a GPU model")
        if target.lora is not None or target.qlora is not None:
            raise PredictionError("adapters (lora, qlora) are predicted from the operators of a step, not with layouts")
        if target.host_launch_us is not None:
            raise PredictionError("host_launch_us is for operators of a step: layouts have coefficients for the host")
        layout = target.layout or Layout(
            shard=_SHARDS.get(target.strategy or "ddp", "none"), recompute=_RECOMPUTED[target.checkpointing or False]
        )
        gpus = sum(target.placement)
        if problem := layout.problem(self._model, gpus):
            raise PredictionError(f"layout {layout.text()}: {problem}")
        name = precision_named(target.precision or "bf16")
        if name not in PRECISIONS:
            raise PredictionError(f"layouts are predicted in {', '.join(PRECISIONS)} only, not in {name}")
        alone = replace(target, layout=None, placement=(1,), grad_accum=1, strategy="ddp", checkpointing=False)
        return _Asked(
            machine, machine.gpu, max(target.placement), gpus, layout, target.batch_per_gpu, target.grad_accum or 1,
            PRECISIONS[name], replace(alone, precision=name),
        )  # fmt: skip

    def _asked_of(self, measured: Measurement) -> _Asked | None:
        """The measured step as a target; None where it says nothing of one."""
        if measured.instance_type is None and measured.gpu_model is None:
            return None
        try:
            return self._asked(
                Target(
                    instance_type=measured.instance_type, gpu_model=measured.gpu_model,
                    interconnect=measured.interconnect, network_gbps=measured.network_gbps,
                    placement=measured.placement, batch_per_gpu=measured.batch_per_gpu,
                    grad_accum=measured.grad_accum, precision=measured.precision, strategy=measured.strategy,
                    layout=measured.layout,
                )
            )  # fmt: skip
        except PredictionError:
            return None

    def _fitted(self, asked: _Asked) -> LayoutCoefficients:
        return coefficients_of(self.workload, asked.alone.precision or "bf16", self._all_fitted)

    def _time(self, asked: _Asked) -> LayoutTime:
        key = (asked.machine, asked.per_node, asked.precision)
        if key not in self._times:
            fabric = fabric_of(asked.machine, asked.per_node)
            self._times[key] = LayoutTime(self._model, asked.gpu, fabric, self._fitted(asked), asked.precision)
        return self._times[key]

    def _step(self, asked: _Asked) -> LayoutStep:
        step, factor = self._time(asked).step(asked.layout, asked.gpus, asked.sequences, asked.micro_batches), 1.0
        if self._alone_s is not None:
            factor = self._by_operators(asked)
        return replace(
            step,
            compute_s=factor * step.compute_s,
            other_s=factor * step.other_s,
            bubble_s=factor * step.bubble_s,
        )

    def _by_operators(self, asked: _Asked) -> float:
        """The step on one GPU by its operators over the one without a division."""
        if asked.alone not in self._factors:
            assert self._alone_s is not None
            seconds = self._alone_s(asked.alone)
            whole_s = self._time(asked).step(Layout(), 1, asked.sequences, 1).step_s
            self._factors[asked.alone] = seconds / whole_s if seconds else 1.0
        return self._factors[asked.alone]

    def _memory(self, asked: _Asked) -> LayoutMemory:
        stages, fitted = self._time(asked).stages(asked.layout, asked.sequences), self._fitted(asked)

        def needed(fitted: LayoutCoefficients) -> LayoutMemory:
            sizes = (asked.layout, asked.gpus, asked.sequences, asked.micro_batches)
            return layout_memory(self._model, *sizes, stages, fitted)

        if fitted.parameter_bytes or self.workload.software or (asked.alone.precision or "").startswith("amp"):
            return needed(fitted)
        return replace(needed(fitted), least=needed(replace(fitted, parameter_bytes=HALF_BYTES)).bytes)

    def _tokens(self, asked: _Asked) -> float:
        """Tokens of a step on all GPUs."""
        data = asked.layout.data_ranks(asked.gpus)
        return float(data * asked.sequences * asked.micro_batches * self._model.seq)

    def _mfu(self, asked: _Asked, tokens_per_s: float) -> float:
        peak = peak_of(peaks_of(asked.gpu), asked.precision, False).flops_s
        return tokens_per_s * self._model.flops_per_token / (asked.gpus * peak)

    def _residuals(self, measured: Measurement, asked: _Asked) -> tuple[float, float]:
        """The logarithms of measured over predicted computation, and over predicted waiting for other ranks."""
        step = self._step(asked)
        waiting_s = step.bubble_s + sum(sent.seconds for sent in step.dimensions.values())
        whole = math.log((measured.step_s - (measured.data_s or 0.0)) / step.step_s)
        exposed_s = measured.exposed_comm_s
        if not exposed_s or not waiting_s:
            return whole, whole
        busy_s = max(measured.step_s - (measured.data_s or 0.0) - exposed_s, 1e-3 * measured.step_s)
        return math.log(busy_s / (step.compute_s + step.other_s)), math.log(exposed_s / waiting_s)

    def _correction(self, asked: _Asked, fitted: LayoutCoefficients) -> tuple[tuple[float, float], float]:
        """The factors on computation and on waiting, and the standard deviation of the logarithm of the step."""
        prior = math.hypot(fitted.sd, _NEW_GPU_SD if self._is_new(asked) else 0.0)
        if not self._seen:
            return (1.0, 1.0), prior
        seen = [row[0] for row in self._seen]
        among = np.array([[_alike(one, other) for other in seen] for one in seen])
        here = np.array([_alike(asked, one) for one in seen])
        noise = (_NOISE_SD / prior) ** 2 * np.eye(len(seen))
        weights = np.linalg.solve(among + noise, here)
        left = max(1.0 - float(here @ weights), (_NOISE_SD / prior) ** 2)
        busy, waiting = (math.exp(float(weights @ [row[index] for row in self._seen])) for index in (1, 2))
        return (busy, waiting), prior * math.sqrt(left)

    def _is_new(self, asked: _Asked) -> bool:
        return asked.machine.gpu_model not in self._all_fitted.gpus

    def _basis(
        self, asked: _Asked, fitted: LayoutCoefficients, step: LayoutStep, memory: LayoutMemory
    ) -> tuple[str, ...]:
        lines = [*self.workload.assumed, "computation from the products of each rank, communication by dimension"]
        if self.workload.software:
            lines.append(f"software: {self.workload.software}")
        elif replace(fitted, parameter_bytes=0.0) == self._all_fitted.common:
            lines.append(
                "software not known: between that of tuned and of eager trainers; name it to narrow the interval"
            )
        else:
            lines.append("software not known: steps in fp8 or with experts are taken for those of Megatron-LM")
        if asked.layout.pipeline > 1:
            lines.append(f"layers of the stages: {_runs(step.stages)}")
            lines.append(f"stage {memory.stage} needs the most memory")
        if not asked.machine.network_gbps and asked.gpus > asked.per_node:
            usual = "400 Gbit/s for each GPU" if asked.machine.link == "nvlink" else "25 Gbit/s for each machine"
            lines.append(f"network not known: taken as {usual}")
        if memory.least is not None:
            lines.append("memory: with a copy of the weights in fp32; at the lower end, all is in 16 bit")
        if self._is_new(asked):
            lines.append(f"outside what was fitted: {asked.machine.gpu_model}")
        if self._seen:
            lines.append(f"corrected by {len(self._seen)} measured steps of this job")
        return tuple(lines)


def _alike(one: _Asked, other: _Asked) -> float:
    """The correlation of the errors of two steps."""
    same_gpu = one.machine.gpu_model == other.machine.gpu_model
    logs = [
        (math.log2(getattr(one.layout, name)) - math.log2(getattr(other.layout, name))) ** 2
        for name in ("tensor", "pipeline", "virtual", "context", "expert")
    ]
    logs += [math.log2(one.gpus / other.gpus) ** 2, math.log2(one.sequences / other.sequences) ** 2]
    logs += [math.log2(one.micro_batches / other.micro_batches) ** 2 / 4]
    logs += [one.layout.shard != other.layout.shard, one.layout.recompute != other.layout.recompute]
    close = math.pow(0.5, sum(logs) / _REACH**2) * same_gpu
    return _COMMON + _OF_GPU * same_gpu + (1 - _COMMON - _OF_GPU) * close


def _times(step: LayoutStep, corrections: Sequence[float]) -> StepTimes:
    busy, waiting = corrections
    sent = step.dimensions.values()
    inside_s = sum(each.inside_s for each in sent)
    return StepTimes(
        compute_s=step.compute_s * busy,
        interconnect_s=inside_s * waiting,
        network_s=(sum(each.seconds for each in sent) - inside_s) * waiting,
        other_s=step.other_s * busy,
        bubble_s=step.bubble_s * waiting,
    )


def _runs(stages: Sequence[int]) -> str:
    """`3 x 11, 7`: numbers of layers that follow one another."""
    found: list[list[int]] = []
    for layers in stages:
        if found and found[-1][1] == layers:
            found[-1][0] += 1
        else:
            found.append([1, layers])
    return ", ".join(f"{count} x {layers}" if count > 1 else str(layers) for count, layers in found)
