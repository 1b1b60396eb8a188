"""Products of matrices in every precision that a device has in hardware, in 1e12 operations a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ddlprof.base.units import significant
from ddlprof.model.probed import Figure
from ddlprof.probe.device import Device
from ddlprof.probe.sustained import sustained

_CAPABILITY: Mapping[str, tuple[int, int]] = {
    "fp32": (0, 0), "tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3), "fp8": (8, 9),
}  # fmt: skip
"""The compute capability of CUDA from which a precision is in hardware."""
_ON_CPU = ("fp32", "bf16", "fp16")
_LEAST_SIDE, _MOST_SIDE = 256, 8192
_LONG_S = 0.05
"""Products become no larger once one takes as long."""
_SHARES = {"square": 0.6, "quarter": 0.2, "flat": 0.2}
"""The shapes measured and their shares of a precision's time: a large square, a quarter of its side, and a layer's,
with an eighth of the side in between. The first is the one that counts."""


def precisions(device: Device) -> list[str]:
    """The precisions that the device has in hardware."""
    if not device.is_gpu:
        return list(_ON_CPU)
    if device.torch.version.hip:
        return ["fp32", "bf16", "fp16"]
    return [name for name, needed in _CAPABILITY.items() if device.capability >= needed]


def products(device: Device, precision: str, seconds: float) -> Iterator[Figure]:
    """The figures of one precision; the first is of a large square product. Raises what torch raises."""
    with _tf32(device.torch, allowed=precision == "tf32"):
        side = _side(device, precision)
        shapes = {"square": (side, side, side), "quarter": (side // 4,) * 3, "flat": (side, side, side // 8)}
        for name, (m, n, k) in shapes.items():
            rate = sustained(_product(device, precision, m, n, k), device.finish, _SHARES[name] * seconds)
            scale = 2 * m * n * k / 1e12
            key = f"{precision}_tflops" if name == "square" else f"{precision}_{name}_tflops"
            notes = f"{significant(scale * rate.first_per_s)} at first" if name == "square" else ""
            yield Figure("products", key, f"{precision} {m} x {k} by {k} x {n}", scale * rate.per_s, "TFLOP/s", notes)
            device.forget()


def _side(device: Device, precision: str) -> int:
    """The side of the large square: doubled until one product takes long, or is as large as is usual."""
    side = _LEAST_SIDE
    while side < _MOST_SIDE and 8 * 3 * (2 * side) ** 2 < device.free_bytes():
        run = _product(device, precision, side, side, side)
        if 8 * min(_once_s(device, run) for _ in range(3)) > _LONG_S * (5 if device.is_gpu else 1):
            break
        side *= 2
    return side


def _once_s(device: Device, run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    device.finish()
    return time.perf_counter() - begin


def _product(device: Device, precision: str, m: int, n: int, k: int) -> Callable[[], object]:
    """A function that computes m x k by k x n once."""
    torch = device.torch
    if precision == "fp8":
        return _fp8(device, m, n, k)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    a, b = (torch.randn(shape, device=device.place).to(dtype) for shape in ((m, k), (k, n)))
    out = torch.empty((m, n), dtype=dtype, device=device.place)
    return lambda: torch.mm(a, b, out=out)


def _fp8(device: Device, m: int, n: int, k: int) -> Callable[[], object]:
    """With one scale for each matrix. Raises AttributeError where torch has no public function for it (before 2.10)."""
    torch = device.torch
    functional = torch.nn.functional
    a = torch.randn((m, k), device=device.place).to(torch.float8_e4m3fn)
    b = torch.randn((n, k), device=device.place).to(torch.float8_e4m3fn).t()
    one, scaling = torch.ones((), device=device.place), functional.ScalingType.TensorWise
    return lambda: functional.scaled_mm(a, b, one, scaling, one, scaling, output_dtype=torch.bfloat16)


@contextmanager
def _tf32(torch: Any, allowed: bool) -> Iterator[None]:
    """Products of fp32 use TF32, or do not."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
