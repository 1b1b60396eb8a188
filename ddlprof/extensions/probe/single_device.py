"""What one device reaches: matrix products in each precision, memory, copies to and from the host, and launches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ddlprof.base.units import significant
from ddlprof.extensions.probe.device import ProbeDevice
from ddlprof.extensions.probe.model import Figure

_CAPABILITY: Mapping[str, tuple[int, int]] = {
    "fp32": (0, 0), "tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3), "fp8": (8, 9),
}  # fmt: skip
"""The compute capability of CUDA from which on devices have hardware for a precision."""
_ON_CPU = ("fp32", "bf16", "fp16")
_LEAST_SIDE, _MOST_SIDE = 256, 8192
_LONG_S = 0.05
"""Seconds of one product from which on larger ones are not tried."""
_SHARES = {"square": 0.6, "quarter": 0.2, "flat": 0.2}
"""The shapes measured, with their shares of a precision's time: a large square, one of a quarter of its side, and one
like a layer, with an eighth of the side in between. The first gives the figure."""


def precisions(device: ProbeDevice) -> list[str]:
    """The precisions that the device has in hardware."""
    if not device.is_gpu:
        return list(_ON_CPU)
    if device.torch.version.hip:
        return ["fp32", "bf16", "fp16"]
    return [name for name, needed in _CAPABILITY.items() if device.capability >= needed]


def products(device: ProbeDevice, precision: str, seconds: float) -> Iterator[Figure]:
    """The figures of one precision, that of the large square product first. Raises the errors of torch."""
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


def _side(device: ProbeDevice, precision: str) -> int:
    """The side of the large square, doubled until a product takes `_LONG_S` or the side reaches `_MOST_SIDE`."""
    side = _LEAST_SIDE
    while side < _MOST_SIDE and 8 * 3 * (2 * side) ** 2 < device.free_bytes():
        run = _product(device, precision, side, side, side)
        if 8 * min(_once_s(device, run) for _ in range(3)) > _LONG_S * (5 if device.is_gpu else 1):
            break
        side *= 2
    return side


def _once_s(device: ProbeDevice, run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    device.finish()
    return time.perf_counter() - begin


def _product(device: ProbeDevice, precision: str, m: int, n: int, k: int) -> Callable[[], object]:
    """A function that multiplies m x k by k x n once."""
    torch = device.torch
    if precision == "fp8":
        return _fp8(device, m, n, k)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    a, b = (torch.randn(shape, device=device.place).to(dtype) for shape in ((m, k), (k, n)))
    out = torch.empty((m, n), dtype=dtype, device=device.place)
    return lambda: torch.mm(a, b, out=out)


def _fp8(device: ProbeDevice, m: int, n: int, k: int) -> Callable[[], object]:
    """A product in fp8 with one scale for each matrix.

    Raises AttributeError if torch has no public function (before 2.10).
    """
    torch = device.torch
    functional = torch.nn.functional
    a = torch.randn((m, k), device=device.place).to(torch.float8_e4m3fn)
    b = torch.randn((n, k), device=device.place).to(torch.float8_e4m3fn).t()
    one, scaling = torch.ones((), device=device.place), functional.ScalingType.TensorWise
    return lambda: functional.scaled_mm(a, b, one, scaling, one, scaling, output_dtype=torch.bfloat16)


@contextmanager
def _tf32(torch: Any, allowed: bool) -> Iterator[None]:
    """Allows or forbids TF32 for products of fp32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


_ROUND_S = 0.02
"""Seconds between waits for the device: long enough to cost little, short enough to see clocks fall."""
_SETTLED = 1 / 3
"""The share of the time after which a device is assumed to run at a clock that it can keep."""
_MOST_CALLS = 100_000


class CallRate(NamedTuple):
    """Calls a second."""

    per_s: float
    """The rate after the first third of the time."""
    first_per_s: float
    """The rate in the beginning, before clocks fall."""


def sustained(run: Callable[[], object], finish: Callable[[], object], seconds: float) -> CallRate:
    """Calls `run` for some time, at least three times. `finish` waits until the device has done everything."""
    run()  # allocates, chooses kernels, compiles
    finish()
    calls = _calls_of_a_round(run, finish)
    rounds: list[tuple[float, float]] = []  # seconds since the beginning, seconds of the round
    begin = last = time.perf_counter()
    while len(rounds) < 2 or last - begin < seconds:
        for _ in range(calls):
            run()
        finish()
        now = time.perf_counter()
        rounds.append((now - begin, now - last))
        last = now
    settled_s = [length for end, length in rounds if end - length >= _SETTLED * (last - begin)] or [rounds[-1][1]]
    return CallRate(calls * len(settled_s) / sum(settled_s), calls / rounds[0][1])


def _calls_of_a_round(run: Callable[[], object], finish: Callable[[], object]) -> int:
    """How many calls fill `_ROUND_S`."""
    calls = 1
    while True:
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        finish()
        took_s = time.perf_counter() - begin
        if took_s > _ROUND_S / 2 or calls >= _MOST_CALLS:
            return max(1, round(calls * _ROUND_S / max(took_s, 1e-9))) if took_s < _ROUND_S else calls
        calls *= 4


_MEMORY_BYTES = {True: 2**30, False: 2**27}
"""The bytes of one array on a GPU (True) and on a processor; much larger than caches."""
_COPY_BYTES = 2**28
_FLOAT_BYTES = 4
_ROWS, _WIDTH, _LAYERS = 4, 16, 8
"""The small layers: samples, features, and the number of layers of each kind."""


def memory(device: ProbeDevice, seconds: float) -> Iterator[Figure]:
    """Rates of memory: the sum of two arrays, as elementwise operators do it, and a copy."""
    torch = device.torch
    size = min(_MEMORY_BYTES[device.is_gpu], device.free_bytes() // 8) // _FLOAT_BYTES
    a, b, c = (torch.ones(size, device=device.place) for _ in range(3))
    gb = size * _FLOAT_BYTES / 1e9
    rate = sustained(lambda: torch.add(a, b, alpha=3.0, out=c), device.finish, seconds / 2)
    what = f"sum of two arrays of {significant(gb, 2)} GB"
    yield Figure("memory", "memory_gb_s", what, 3 * gb * rate.per_s, "GB/s")
    rate = sustained(lambda: c.copy_(a), device.finish, seconds / 2)
    yield Figure("memory", "memory_copy_gb_s", f"copy of {significant(gb, 2)} GB", 2 * gb * rate.per_s, "GB/s")


def copies(device: ProbeDevice, seconds: float) -> Iterator[Figure]:
    """Rates of copies between host and GPU: from pinned memory, back, and from pageable memory. None on a processor."""
    if not device.is_gpu:
        return
    torch = device.torch
    size = min(_COPY_BYTES, device.free_bytes() // 8) // _FLOAT_BYTES
    there = torch.ones(size, device=device.place)
    pageable = torch.ones(size)
    pinned = pageable.pin_memory()
    gb = size * _FLOAT_BYTES / 1e9
    for key, what, run in (
        ("host_to_device_gb_s", "host to device, pinned", lambda: there.copy_(pinned, non_blocking=True)),
        ("device_to_host_gb_s", "device to host, pinned", lambda: pinned.copy_(there, non_blocking=True)),
        ("host_to_device_pageable_gb_s", "host to device, pageable", lambda: there.copy_(pageable)),
    ):
        rate = sustained(run, device.finish, seconds / 3)
        yield Figure("copies", key, f"{what}, {significant(gb, 2)} GB", gb * rate.per_s, "GB/s")


def launches(device: ProbeDevice, seconds: float) -> Iterator[Figure]:
    """Times that the host needs for one operator: in the forward of small layers, and alone.

    On a GPU also the time from an operator to its result on the host.
    """
    torch = device.torch
    layers = _small_layers(torch).to(device.place)
    rows, one = torch.ones((_ROWS, _WIDTH), device=device.place), torch.zeros(1, device=device.place)
    rate = sustained(lambda: layers(rows), device.finish, seconds / 3)
    yield Figure("launches", "launch_us", "operator of a small layer, forward", 1e6 / rate.per_s / len(layers), "us")
    rate = sustained(lambda: one.add_(1.0), device.finish, seconds / 3)
    yield Figure("launches", "bare_launch_us", "small operator by itself", 1e6 / rate.per_s, "us")
    if device.is_gpu:
        rate = sustained(lambda: one.add_(1.0).item(), device.finish, seconds / 3)
        yield Figure("launches", "round_trip_us", "small operator and its result", 1e6 / rate.per_s, "us")


def _small_layers(torch: Any) -> Any:
    """Layers of one operator each, so small that only their launches take time."""
    nn = torch.nn
    kinds = (lambda: nn.Linear(_WIDTH, _WIDTH), nn.GELU, lambda: nn.LayerNorm(_WIDTH))
    return nn.Sequential(*(make() for _ in range(_LAYERS) for make in kinds))
