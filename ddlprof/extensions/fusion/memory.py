"""How many models fit into memory at once: estimated from a step of one model, then tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch import Tensor

from ddlprof.extensions.fusion.hyperparameters import DEFAULTS
from ddlprof.extensions.fusion.optimizers import OPTIMIZERS

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

SAFE_SHARE = 0.8
"""The share of the free memory that may be used. The rest is for other processes and the allocator's reserves."""
_MATRICES = 3
"""Matrices of the size of the parameters: parameters, gradients, and gradients gathered for the update. States of the
optimizer are counted separately."""


def bytes_per_model(parameters: int, kept: int, optimizer: str, values: dict[str, Any]) -> int:
    """The bytes of each further model.

    `parameters`: the bytes of trained parameters. `kept`: the bytes that forward keeps for backward.
    """
    every = {name: [values.get(name, default)] for name, default in DEFAULTS[optimizer].items()}
    return parameters * (_MATRICES + OPTIMIZERS[optimizer].states(every)) + kept


def kept_by(step: Callable[[], object]) -> int:
    """The bytes of distinct tensors that a step keeps for backward."""
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step()
    return sum(sizes.values())


def free_bytes(device: torch.device) -> int:
    """The bytes that a training may still use on the device, or on the machine within the limits of this process."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch's, but no tensor's
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    free = int(psutil.virtual_memory().available)
    limit = _address_limit()
    return free if limit is None else max(0, min(free, limit - psutil.Process().memory_info().vms))


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes that tensors had on a CUDA device at once; None for others, whose tensors nobody counts."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else None


def most_that_fit(wanted: int, estimate: int, fits: Callable[[int], bool]) -> int:
    """The most models, up to `wanted`, that fit; 0 if not even one does.

    Tries `estimate` first and doubles it while that fits. Then halves the interval up to the first number that does not
    fit.
    """
    good, bad, attempt = 0, wanted + 1, min(max(1, estimate), wanted)
    while good + 1 < bad:
        if fits(attempt):
            good = attempt
            attempt = min(2 * good, wanted) if bad > wanted else (good + bad) // 2
        else:
            bad = attempt
            attempt = (good + bad) // 2
    return good


def fits_memory(device: torch.device, step: Callable[[], object]) -> bool:
    """Whether the step finds enough memory. On a CPU it must not use more than is free."""
    try:
        with _at_most_what_is_free(device):
            step()
    except (MemoryError, torch.OutOfMemoryError):
        fitted = False
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "not enough memory" not in str(error):
            raise
        fitted = False
    else:
        fitted = True
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return fitted


def _address_limit() -> int | None:
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


@contextmanager
def _at_most_what_is_free(device: torch.device) -> Iterator[None]:
    if resource is None or device.type != "cpu":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = psutil.Process().memory_info().vms + int(SAFE_SHARE * free_bytes(device))
    if before[1] != resource.RLIM_INFINITY:
        most = min(most, before[1])
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
