"""The least seconds that the operators of a step can take on a GPU, whatever software runs them.

Operations over the dense peak of the data sheet, and bytes over its bandwidth where they have to come from memory: the
roofline of Williams, Waterman and Patterson (Roofline, CACM 2009), as a bound. Intervals of predicted steps end there.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.instance_catalog import Gpu
from ddlprof.model.operators import Operator, StepOperators
from ddlprof.recommender.compute.gpu_peaks import peak_of, peak_tflops, peaks_of

_L2_BYTES = 6e6
"""The cache of GPUs without tensor cores, at most."""
_WINOGRAD = 4.0
"""F(4x4, 3x3) needs so many times fewer multiplications than a convolution (Lavin and Gray 2016), in fp32 on CUDA
cores, where libraries use it."""


@dataclass(frozen=True)
class LeastTime:
    """The least seconds of the computation on one GPU."""

    pass_s: float = 0.0
    """Of forward and backward of one micro-batch."""
    update_s: float = 0.0
    """Of one update of all parameters."""

    def step_s(self, passes: float = 1.0, update_share: float = 1.0) -> float:
        """Of a step of `passes` micro-batches, and of one update of which the rank does `update_share`."""
        return passes * self.pass_s + update_share * self.update_s


NO_TIME = LeastTime()
"""Where neither operators nor FLOPs are known."""


def least_time(step: StepOperators, gpu: Gpu, tf32: bool = False) -> LeastTime:
    """The least seconds of a step: the FLOPs of forward and backward over the peaks of their types, and the bytes of
    the update over the bandwidth, as far as the cache cannot hold them from one kernel to the next.

    `tf32`: products of fp32 use TF32 if the GPU has it; convolutions may do so in any case, as PyTorch's default lets
    them, and fused attention does. Raises `PredictionError` if the GPU lacks a type or the catalogue its peak.
    """
    machine = peaks_of(gpu)
    cache_bytes = machine.tensor.l2_bytes if machine.tensor else _L2_BYTES
    pass_s = update_s = 0.0
    for operator in step.operators:
        if operator.phase == "optimizer":
            update_s += max(operator.bytes - cache_bytes, 0.0) * operator.count / machine.bandwidth_b_s
        elif operator.flops:
            peak = peak_of(machine, operator.dtype, tf32 or operator.kind in ("convolution", "attention"))
            pass_s += operator.flops * operator.count / peak.flops_s / (1.0 if peak.tensor else _fewer(operator))
    return LeastTime(pass_s, update_s)


def least_of_flops(flops: float, gpu: Gpu, kind: str) -> LeastTime:
    """The least seconds of so many FLOPs of a class of precision. Of which operators they are is not known: all may be
    convolutions, as 67 of 852 published steps show that are faster than FLOPs over the peak (`scripts.fit.compute`)."""
    peak = peak_tflops(gpu, kind) or 0.0
    if kind == "fp32":
        peak = max(_WINOGRAD * peak, gpu.tf32_tflops or 0.0)
    elif kind == "half" and not (gpu.fp16_tensor_tflops or gpu.bf16_tflops):
        peak *= _WINOGRAD
    return LeastTime(flops / (peak * 1e12)) if peak else NO_TIME


def _fewer(operator: Operator) -> float:
    """How many times fewer operations than its FLOPs the operator may need on CUDA cores."""
    is_winograd = operator.kind == "convolution" and operator.shape[4] == 1 and operator.shape[5] == 9
    return _WINOGRAD if is_winograd else 1.0
