"""The memory of a device, copies between it and the host, and the cost of launching small operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ddlprof.base.units import significant
from ddlprof.model.probed import Figure
from ddlprof.probe.device import Device
from ddlprof.probe.sustained import sustained

_MEMORY_BYTES = {True: 2**30, False: 2**27}
"""The bytes of one array on a GPU and on a processor: far more than caches hold."""
_COPY_BYTES = 2**28
_FLOAT_BYTES = 4
_ROWS, _WIDTH, _LAYERS = 4, 16, 8
"""The small layers: samples, features, and how many of each kind."""


def memory(device: Device, seconds: float) -> Iterator[Figure]:
    """Reading and writing: a sum of two arrays, which is what elementwise operators do, and a copy."""
    torch = device.torch
    size = min(_MEMORY_BYTES[device.is_gpu], device.free_bytes() // 8) // _FLOAT_BYTES
    a, b, c = (torch.ones(size, device=device.place) for _ in range(3))
    gb = size * _FLOAT_BYTES / 1e9
    rate = sustained(lambda: torch.add(a, b, alpha=3.0, out=c), device.finish, seconds / 2)
    what = f"sum of two arrays of {significant(gb, 2)} GB"
    yield Figure("memory", "memory_gb_s", what, 3 * gb * rate.per_s, "GB/s")
    rate = sustained(lambda: c.copy_(a), device.finish, seconds / 2)
    yield Figure("memory", "memory_copy_gb_s", f"copy of {significant(gb, 2)} GB", 2 * gb * rate.per_s, "GB/s")


def copies(device: Device, seconds: float) -> Iterator[Figure]:
    """Between host and GPU, from pinned memory, back, and from pageable memory; nothing on a processor."""
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


def launches(device: Device, seconds: float) -> Iterator[Figure]:
    """What the host needs for an operator: in the forward pass of small layers, which training consists of, and bare;
    and on a GPU from an operator to its result on the host."""
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
    """Layers of one operator each, all so small that only their launches count."""
    nn = torch.nn
    kinds = (lambda: nn.Linear(_WIDTH, _WIDTH), nn.GELU, lambda: nn.LayerNorm(_WIDTH))
    return nn.Sequential(*(make() for _ in range(_LAYERS) for make in kinds))
