"""Random numbers of torch, Python and NumPy that are drawn and put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

Draws = tuple[list[torch.Tensor], Any, Any]
"""The states of torch's random numbers (of the CPU, then of a device), of Python's, and of NumPy's."""


@contextmanager
def draws_undone(device: torch.device) -> Iterator[None]:
    """A context after which random numbers of the CPU and of this device go on as before it."""
    before = present_draws(device)
    try:
        yield
    finally:
        set_draws(before, device)


def present_draws(device: torch.device) -> Draws:
    """The states as they are now. NumPy's is None where nobody has imported NumPy."""
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states, *draws_of_python()


def draws_of_python() -> tuple[Any, Any]:
    """The states of the random numbers of Python and of NumPy, which can be compared."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return random.getstate(), None
    kind, words, *rest = numpy.random.get_state()
    return random.getstate(), (kind, tuple(words.tolist()), *rest)


def set_draws(draws: Draws, device: torch.device) -> None:
    """Makes random numbers go on from these states."""
    (of_cpu, *of_device), of_python, of_numpy = draws
    torch.set_rng_state(of_cpu)
    for state in of_device:
        torch.get_device_module(device).set_rng_state(state, device)
    random.setstate(of_python)
    if of_numpy is not None:
        sys.modules["numpy"].random.set_state(of_numpy)


def draw_others() -> None:
    """Makes random numbers go on from other states than they would."""
    torch.manual_seed(1)
    random.seed(1)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(1)
