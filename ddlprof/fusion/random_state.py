"""Random numbers that are drawn and put back."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


def draws_undone(device: torch.device) -> AbstractContextManager[None]:
    """A context after which random numbers of the CPU and of this device go on as before it.

    Torch's own default is all devices of the machine, on each of which it would open a context.
    """
    if device.type == "cpu":
        return torch.random.fork_rng(devices=[])
    index = torch.get_device_module(device).current_device() if device.index is None else device.index
    return torch.random.fork_rng(devices=[index], device_type=device.type)
