"""The seconds of the operators of a step on any GPU of the catalogue, from its data sheet and fitted efficiencies.

A phase takes as long as its kernels or their dispatch by the host, whichever is longer. Efficiencies measured on the
GPU itself (`Reached`) replace those fitted on others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ddlprof.base.units import count
from ddlprof.instance_catalog import Gpu, Reached
from ddlprof.model.operators import PHASES, UNALIGNED_SLOWER, Operator, StepOperators
from ddlprof.recommender.compute.alignment import SLOWER_SD, padding
from ddlprof.recommender.compute.by_place import by_place_seconds
from ddlprof.recommender.compute.convolution_time import ConvolvingGpu, tensor_convolution_seconds
from ddlprof.recommender.compute.gpu_peaks import GpuPeaks, Peak, for_tf32, of_ampere, peak_of, peaks_of
from ddlprof.recommender.compute.host import Again, Host, dispatch_seconds, update_seconds
from ddlprof.recommender.compute.kernel_time import (
    A100,
    Array,
    ConvolutionRates,
    CudaCoreSpeeds,
    Flags,
    OfAmpere,
    OperatorTable,
    Products,
    Sizes,
    attention_seconds,
    convolution_seconds,
    implicit_seconds,
    large_products,
    product_seconds,
    recurrent_seconds,
    stream_seconds,
)
from ddlprof.recommender.compute.operator_coefficients import Generation, OperatorCoefficients, generation_of, shipped
from ddlprof.recommender.compute.recomputation import blocks_of, computed_again
from ddlprof.recommender.compute.tensor_time import TensorRates, tensor_product_seconds

__all__ = ["OperatorEstimate", "OperatorModel", "Reached"]

COMPUTING = ("product", "convolution", "attention", "recurrent")
"""The kinds whose peak depends on the precision."""
_ASSUMED = ("attention", "recurrent", "embedding", "pooling", "optimizer", "reduction", "copy")
"""The kinds whose efficiency is stated, not fitted."""
_NARROW_CHANNELS, _NARROW_SUM = 32, 160
"""The most output channels and summed elements of convolutions that behave like memory-bound operators on every GPU:
between K80, T4 and V100, small networks of such layers have the ratio of these operators, not that of products."""
LAID_OUT = ("normalization", "elementwise")
"""The kinds beside convolutions whose speed depends on where channels lie."""
_HALF = ("bf16", "fp16")
_CHANNELS_LAST_SD = 0.12
"""The standard deviation of the logarithm that channels last add to a step: what networks left out of their fit are off
beyond those with channels first."""
_MOST_TABLES = 64
"""The number of steps whose tables are cached."""
_OVERLAP = 4.0
"""The power of a power mean: host and GPU wait for each other a little if both take about as long."""

_TENSOR_TO_CUDA = 8
"""The peak of tensor cores over that of the CUDA cores that compute depthwise convolutions of their types."""
_TENSOR_BYTES = {"fp32": 4, "fp8": 1}
"""Bytes of an operand on tensor cores; 2 of others."""


@dataclass(frozen=True)
class Speeds:
    """How fast a GPU computes one type."""

    tensor: bool
    """Whether tensor cores compute it."""
    flops_s: float
    products: Products
    convolution: ConvolutionRates
    convolving: ConvolvingGpu | None = None
    """None: CUDA cores compute it."""
    ampere: OfAmpere = A100
    """How it runs kernels that are written for Ampere."""

    @property
    def bandwidth_b_s(self) -> float:
        return self.convolution.bandwidth_b_s


@dataclass(frozen=True)
class Spent:
    """The seconds of a step by resource, without overlap, so that each part can be corrected."""

    computing_s: float
    """Kernels of products and the like, whose peak depends on the precision."""
    streaming_s: float
    """Kernels that memory limits, and convolutions with so few channels that they behave like these."""
    dispatch_s: float
    """The host's work to launch all of them."""


@dataclass(frozen=True)
class OperatorEstimate:
    """The computation of one micro-batch on one GPU, and of one update."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    sd: float
    """Standard deviation of the logarithm of the seconds."""
    basis: tuple[str, ...]
    """What the seconds are based on, one sentence each."""
    extrapolated: bool
    """Whether the GPU or the precision is outside of those of whole models that were measured."""
    unfitted_share: float
    """The share of the seconds in operators of a kind that was not fitted (`other`)."""
    spent: Spent
    slow_s: float
    """All phases if the host is as slow as is allowed for."""

    @property
    def step_s(self) -> float:
        """All phases, with the update."""
        return self.forward_s + self.backward_s + self.optimizer_s


class OperatorModel:
    """Computes steps with one set of coefficients. Caches the tables of steps, for many GPUs of one job."""

    def __init__(self, coefficients: OperatorCoefficients) -> None:
        self._fitted = coefficients
        self._tables: dict[int, tuple[StepOperators, OperatorTable, Again | None]] = {}

    @classmethod
    def shipped(cls) -> OperatorModel:
        """A model with the coefficients of the package."""
        return cls(shipped())

    def operators(
        self, operators: Sequence[Operator], gpu: Gpu, tf32: bool = False, reached: Reached | None = None
    ) -> Array:
        """The seconds of the kernels of one call of each operator, including launches but not dispatch by the host.

        Raises `PredictionError` if the GPU lacks a precision or the catalogue its peak.
        """
        return self._seconds(OperatorTable.of(operators), peaks_of(gpu), tf32, reached)

    def step(
        self,
        step: StepOperators,
        gpu: Gpu,
        tf32: bool = False,
        reached: Reached | None = None,
        host: Host | None = None,
    ) -> OperatorEstimate:
        """One micro-batch and one update. `tf32`: products of fp32 use TF32 if the GPU has it. `host` None: the one of
        the fit, or as probed beside the GPU.

        Raises `PredictionError` if the GPU lacks a precision or the catalogue its peak.
        """
        (table, again), machine = self._table(step), peaks_of(gpu)
        kernels_s = self._kernels_s(step, table, machine, tf32, reached)
        dispatch_s = self._dispatch_s(table, step.compiled, reached, again)
        launching_s = dispatch_s
        if host is not None:
            launching_s = dispatch_seconds(table, self._fitted.host, step.compiled, host.launch_us, again)
            launching_s = launching_s + update_seconds(table, host.launch_us)
        phases = _phases(table, kernels_s, launching_s)
        total_s = sum(phases.values()) or 1e-12
        shares = _shares(table, kernels_s / total_s)
        shares["host"] = (sum(phases.values()) - float(kernels_s.sum())) / total_s
        deviation = self._deviation(shares, machine, table, tf32, reached)
        if step.channels_last and _laid_out(table, machine).any():
            deviation = math.hypot(deviation, _CHANNELS_LAST_SD)
        slow_s = np.where(_slowed(step, table, machine), kernels_s, 0.0)
        deviation = math.hypot(deviation, SLOWER_SD * float(slow_s.sum()) / total_s)
        return OperatorEstimate(
            phases["forward"],
            phases["backward"],
            phases["optimizer"],
            deviation,
            (*self._basis(table, shares, machine, tf32, reached, host), *padding(table, slow_s, total_s)),
            self._extrapolated(machine, table, tf32),
            shares["other"],
            _spent(table, kernels_s, dispatch_s),
            sum(_phases(table, kernels_s, launching_s * (host.slower if host else 1.0)).values()),
        )

    def spent(self, step: StepOperators, gpu: Gpu, tf32: bool = False, reached: Reached | None = None) -> Spent:
        """The seconds of the step by resource, as `step` computes them. Raises as `step` does."""
        (table, again), machine = self._table(step), peaks_of(gpu)
        kernels_s = self._kernels_s(step, table, machine, tf32, reached)
        return _spent(table, kernels_s, self._dispatch_s(table, step.compiled, reached, again))

    @property
    def fitted(self) -> OperatorCoefficients:
        return self._fitted

    def kernel_seconds(self, step: StepOperators, gpu: Gpu) -> dict[str, float]:
        """The seconds of all kernels of the step, by the kind of operator. Raises as `step` does."""
        (table, _), machine = self._table(step), peaks_of(gpu)
        kernels_s = self._kernels_s(step, table, machine, False, None)
        return {str(kind): float(kernels_s[table.kind == kind].sum()) for kind in np.unique(table.kind)}

    def convolution_speeds(self, gpu: Gpu, dtype: str) -> Speeds:
        """The speeds of products and convolutions of a type. Raises as `step` does."""
        machine = peaks_of(gpu)
        generation = generation_of(machine.capability, self._fitted.generations)
        bandwidth = self._bandwidth_b_s(machine, generation, None) / self._fitted.streams.memory["hbm"]
        return self._speeds(machine, peak_of(machine, dtype, False), dtype, generation, bandwidth)

    def _table(self, step: StepOperators) -> tuple[OperatorTable, Again | None]:
        known = self._tables.get(id(step))
        if known is None:
            if len(self._tables) >= _MOST_TABLES:
                self._tables.clear()
            again = Again(np.array(computed_again(step)), blocks_of(step)) if step.checkpointing else None
            known = self._tables[id(step)] = (step, OperatorTable.of(step.operators), again)  # keeps the id valid
        return known[1:]

    def _bandwidth_b_s(self, machine: GpuPeaks, generation: Generation, reached: Reached | None) -> float:
        """Bytes a second that an elementwise operator reaches."""
        if reached is not None and reached.memory_gb_s:
            return reached.memory_gb_s * 1e9
        return machine.bandwidth_b_s * self._fitted.streams.memory[machine.memory] * generation.memory

    def _kernels_s(
        self, step: StepOperators, table: OperatorTable, machine: GpuPeaks, tf32: bool, reached: Reached | None
    ) -> Array:
        """The seconds of the kernels of all calls of each operator."""
        seconds = self._seconds(table, machine, tf32, reached, step.channels_last)
        if machine.tensor and not step.compiled:
            seconds = by_place_seconds(table, seconds, machine.tensor)
        seconds = seconds * table.count
        streams = _laid_out(table, machine) & np.isin(table.kind, LAID_OUT)
        factor = np.where(streams & step.channels_last, 1 / self._fitted.convolution_16.streams, 1.0)
        factor = np.where(_slowed(step, table, machine), UNALIGNED_SLOWER, factor)
        result: Array = seconds * factor
        return result

    def _seconds(
        self, table: OperatorTable, machine: GpuPeaks, tf32: bool, reached: Reached | None, channels_last: bool = False
    ) -> Array:
        fitted = self._fitted
        generation = generation_of(machine.capability, fitted.generations)
        plain_b_s = self._bandwidth_b_s(machine, generation, reached)
        bandwidth = plain_b_s / fitted.streams.memory["hbm"]
        seconds = stream_seconds(table, plain_b_s, fitted.streams)
        for kind in COMPUTING:
            for dtype in sorted(set(table.dtype[table.kind == kind].tolist())):
                chosen = (table.kind == kind) & (table.dtype == dtype)
                may = tf32 or kind == "attention"
                speeds = self._speeds(machine, peak_of(machine, dtype, may), dtype, generation, bandwidth)
                found = self._computing(kind, table.rows(chosen), speeds, channels_last)
                seconds[chosen] = found * _measured_factor(reached, dtype, may, speeds)
        starts = np.where(np.isin(table.kind, ("product", "convolution")), table.launches - 1, table.launches)
        # Without a launch of its own, an operator moves bytes in the kernel that torch.compile joined it to.
        result: Array = seconds + np.maximum(starts, 0.0) * fitted.host.kernel_s
        return result

    def _computing(self, kind: str, table: OperatorTable, speeds: Speeds, channels_last: bool) -> Array:
        fused = self._fitted.fused
        if kind == "attention":
            ampere = speeds.ampere
            return attention_seconds(table, speeds.flops_s, speeds.bandwidth_b_s, fused, speeds.tensor, ampere)
        if kind == "recurrent":
            return recurrent_seconds(table, speeds.flops_s, speeds.bandwidth_b_s, fused)
        if kind == "convolution":
            nominal = 2 * table.sizes[:, :5].prod(axis=1)
            if speeds.convolving and np.isin(table.dtype, _HALF).all():
                implicit_s = implicit_seconds(table, speeds.convolution.products)
                fitted = self._fitted.convolution_16
                found = tensor_convolution_seconds(table, implicit_s, speeds.convolving, fitted, channels_last)
            else:
                found = convolution_seconds(table, speeds.convolution, self._fitted.convolution)
        else:
            nominal = 2 * table.sizes[:, :4].prod(axis=1)
            b, m, n, k = table.sizes[:, :4].T
            found = speeds.products(Sizes(b, m, n, k, table.bytes))
        # One operator may do the work of two of its sizes, as the backward of a convolution does.
        result: Array = found * np.maximum(1.0, table.flops / nominal)
        return result

    def _speeds(
        self, machine: GpuPeaks, peak: Peak, dtype: str, generation: Generation, bandwidth_b_s: float
    ) -> Speeds:
        """What computes a type on a GPU: tensor cores or CUDA cores."""
        if peak.tensor:
            on_tensor, tensor = tensor_rates(machine, peak, dtype, generation, bandwidth_b_s), self._fitted.tensor
            large = ConvolutionRates(
                lambda sizes: tensor_product_seconds(sizes, on_tensor, tensor, convolution=True),
                on_tensor.flops_s / _TENSOR_TO_CUDA, bandwidth_b_s, winograd=False,
            )  # fmt: skip
            convolving = ConvolvingGpu(on_tensor.flops_s, machine.fp32_flops_s, bandwidth_b_s, on_tensor.cores.width)
            return Speeds(
                True, on_tensor.flops_s, lambda sizes: tensor_product_seconds(sizes, on_tensor, tensor), large,
                convolving, of_ampere(on_tensor.cores),
            )  # fmt: skip
        flops_s = peak.flops_s * generation.cuda
        cuda = self._fitted.cuda
        tiles = generation.batched_tiles
        energy, batched = generation.cuda_energy, generation.batched
        on_cuda = CudaCoreSpeeds(flops_s, bandwidth_b_s, machine.sms, machine.watts, energy, batched, tiles)
        large = ConvolutionRates(large_products(on_cuda, cuda), flops_s, bandwidth_b_s, winograd=True)
        return Speeds(False, flops_s, lambda sizes: product_seconds(sizes, on_cuda, cuda), large)

    def _dispatch_s(self, table: OperatorTable, compiled: bool, reached: Reached | None, again: Again | None) -> Array:
        """The host's seconds for all calls of each operator, on the host of the fit or as probed beside the GPU."""
        host = self._fitted.host
        launch_us = (reached.launch_us if reached else None) or 1e6 * host.forward_s
        return dispatch_seconds(table, host, compiled, launch_us, again)

    def _deviation(
        self, shares: Mapping[str, float], machine: GpuPeaks, table: OperatorTable, tf32: bool, reached: Reached | None
    ) -> float:
        sd = self._fitted.deviations
        tensor = _tensor(machine, table, tf32)
        if _probed(reached, table, tf32):
            common = sd.within
        elif not self._new_generation(machine):
            common = sd.known_generation
        else:
            common = math.hypot(sd.gpu, sd.generation)
        if tensor or _emulated(machine, table):
            common = math.hypot(common, sd.precision)
        if tensor:
            products = shares["product"]
            common = products * min(self._products_sd(machine), common) + (1 - products) * common
        parts = [common, shares["assumed"] * sd.assumed, shares["other"] * sd.unfitted, shares["host"] * sd.host]
        return math.hypot(*parts, shares["convolution"] * sd.convolution)

    def _products_sd(self, machine: GpuPeaks) -> float:
        """Of products on tensor cores, of which all shapes were measured on GPUs of several generations."""
        known = generation_of(machine.capability, self._fitted.generations).capability in self._fitted.tensor_measured
        return (
            self._fitted.deviations.tensor
            if known and machine.fitted_maker
            else self._fitted.deviations.tensor_generation
        )

    def _new_generation(self, machine: GpuPeaks) -> bool:
        return not machine.fitted_maker or machine.capability not in self._fitted.measured

    def _extrapolated(self, machine: GpuPeaks, table: OperatorTable, tf32: bool) -> bool:
        return self._new_generation(machine) or _tensor(machine, table, tf32) or _emulated(machine, table)

    def _basis(
        self,
        table: OperatorTable,
        shares: Mapping[str, float],
        machine: GpuPeaks,
        tf32: bool,
        reached: Reached | None,
        host: Host | None,
    ) -> tuple[str, ...]:
        probed = _probed(reached, table, tf32)
        how = "what was measured on it" if probed else "its data sheet and what published operators reach"
        kinds = count(len(table), "kind")
        lines = [f"computation from {kinds} of operators on {machine.name}, from {how}", *machine.assumed]
        for dtype in _product_types(table):
            note = peak_of(machine, dtype, tf32).note
            lines += [note] if note else []
        if not tf32 and "tf32" in machine.peaks and ((table.kind == "convolution") & (table.dtype == "fp32")).any():
            lines.append(
                "convolutions of fp32 computed without TF32, which PyTorch uses for them by default: ask for tf32"
            )
        if shares["other"] > 0.01:
            names = sorted({name for name, kind in zip(table.names, table.kind, strict=True) if kind == "other"})
            shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            lines.append(f"{100 * shares['other']:.0f} % of it in operators that nobody fitted: {shown}")
        if shares["host"] > 0.05:
            percent = f"{100 * shares['host']:.0f} %"
            speed = f": {host.text}" if host else ""
            lines.append(f"{percent} of it waiting for the host, which launches too many small operators{speed}")
        return tuple(lines)


def _slowed(step: StepOperators, table: OperatorTable, machine: GpuPeaks) -> Flags:
    """Which products are slow for their sizes: on tensor cores, where torch.compile does not pad them."""
    if step.compiled or not any(table.unaligned) or not peak_of(machine, "fp16", False).tensor:
        return np.zeros(len(table), dtype=bool)
    return np.array([bool(sizes) for sizes in table.unaligned])


def _phases(table: OperatorTable, kernels_s: Array, launching_s: Array) -> dict[str, float]:
    """The seconds of each phase: its kernels or their launches, whichever take longer."""
    found = {}
    for phase in PHASES:
        mine = table.phase == phase
        gpu_s, cpu_s = float(kernels_s[mine].sum()), float(launching_s[mine].sum())
        found[phase] = (gpu_s**_OVERLAP + cpu_s**_OVERLAP) ** (1 / _OVERLAP)
    return found


def _laid_out(table: OperatorTable, machine: GpuPeaks) -> Flags:
    """The operators whose speed depends on where channels lie: those in 16 bits of a step that has convolutions on
    tensor cores."""
    half = np.isin(table.dtype, _HALF)
    convolutions = (table.kind == "convolution") & half
    types = sorted(set(table.dtype[convolutions].tolist()))
    if not types or not all(peak_of(machine, dtype, False).tensor for dtype in types):
        return np.zeros(len(table), dtype=bool)
    result: Flags = convolutions | (half & np.isin(table.kind, LAID_OUT))
    return result


def tensor_rates(
    machine: GpuPeaks, peak: Peak, dtype: str, generation: Generation, bandwidth_b_s: float
) -> TensorRates:
    """The speeds of a GPU's tensor cores for products of a type."""
    assert machine.tensor is not None  # the peak is one of tensor cores
    speed = peak.flops_s / (machine.tensor.sms * machine.tensor.clock_hz * machine.tensor.width)
    element, energy = _TENSOR_BYTES.get(dtype, 2), generation.tensor_energy * peak.energy * speed
    cores = for_tf32(machine.tensor) if dtype == "fp32" else machine.tensor
    return TensorRates(cores, speed, element, bandwidth_b_s, machine.watts, generation.tensor, energy)


def _measured_factor(reached: Reached | None, dtype: str, tf32: bool, speeds: Speeds) -> float:
    """What a measured large product says of all products of its type: seconds expected over seconds measured."""
    name = "tf32" if tf32 and dtype == "fp32" and speeds.tensor else dtype
    measured = getattr(reached, f"{name}_tflops", None)
    if not measured:
        return 1.0
    side, element = np.array([8192.0]), {"fp64": 8, "fp32": 4, "fp8": 1}.get(dtype, 2)
    sizes = Sizes(np.ones(1), side, side, side, 3 * element * side * side)
    return 2 * 8192.0**3 / (float(measured) * 1e12) / float(speeds.products(sizes)[0])


def _spent(table: OperatorTable, kernels_s: Array, dispatch_s: Array) -> Spent:
    narrow = (
        (table.kind == "convolution")
        & (table.sizes[:, 2] <= _NARROW_CHANNELS)
        & ((table.sizes[:, 3] <= _NARROW_SUM) | (table.sizes[:, 2] <= _NARROW_CHANNELS / 2))
    )
    computing = np.isin(table.kind, COMPUTING) & ~narrow
    return Spent(float(kernels_s[computing].sum()), float(kernels_s[~computing].sum()), float(dispatch_s.sum()))


def _shares(table: OperatorTable, of_total: Array) -> dict[str, float]:
    known = {*COMPUTING, "normalization", "softmax", "elementwise", *_ASSUMED}
    assumed = np.isin(table.kind, _ASSUMED)
    other = ~np.isin(table.kind, tuple(known))
    return {
        "product": float(of_total[table.kind == "product"].sum()),
        "convolution": float(of_total[table.kind == "convolution"].sum()),
        "assumed": float(of_total[assumed].sum()),
        "other": float(of_total[other].sum()),
    }


def _probed(reached: Reached | None, table: OperatorTable, tf32: bool) -> bool:
    """Whether large products of every type in the step were measured on the GPU."""
    names = ["tf32" if tf32 and dtype == "fp32" else dtype for dtype in _product_types(table)]
    measured = [getattr(reached, f"{name}_tflops", None) or getattr(reached, "fp32_tflops", None) for name in names]
    return reached is not None and all(measured)


def _product_types(table: OperatorTable) -> list[str]:
    return sorted(set(table.dtype[np.isin(table.kind, COMPUTING)].tolist()))


def _tensor(machine: GpuPeaks, table: OperatorTable, tf32: bool) -> bool:
    return any(peak_of(machine, dtype, tf32).tensor for dtype in _product_types(table))


def _emulated(machine: GpuPeaks, table: OperatorTable) -> bool:
    return any(dtype not in ("fp32", "fp64") for dtype in _product_types(table)) and not _tensor(machine, table, False)
