"""Random numbers that are drawn and put back, and those of trainings that take turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


def draws_undone(device: torch.device) -> AbstractContextManager[None]:
    """A context after which random numbers of the CPU and of this device go on as before it.

    Torch's own default is all devices of the machine, on each of which it would open a context.
    """
    if device.type == "cpu":
        return torch.random.fork_rng(devices=[])
    index = torch.get_device_module(device).current_device() if device.index is None else device.index
    return torch.random.fork_rng(devices=[index], device_type=device.type)


class OwnDraws:
    """The random numbers of one of several trainings that take turns: each goes on where it was."""

    def __init__(self, device: torch.device) -> None:
        """Begins with the present state."""
        self._device = device
        self._states = self._present()

    @contextmanager
    def continued(self) -> Iterator[None]:
        """A context in which random numbers go on from where this context last ended."""
        torch.set_rng_state(self._states[0])
        for state in self._states[1:]:
            torch.get_device_module(self._device).set_rng_state(state, self._device)
        try:
            yield
        finally:
            self._states = self._present()

    def _present(self) -> list[torch.Tensor]:
        if self._device.type == "cpu":
            return [torch.get_rng_state()]
        return [torch.get_rng_state(), torch.get_device_module(self._device).get_rng_state(self._device)]
