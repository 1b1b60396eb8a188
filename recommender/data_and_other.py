"""The seconds of a step that are neither computation nor communication: input, copies to the device and other time.

The wait for input follows DS-Analyzer (Mohan et al., VLDB 2021): input is prefetched, so a step waits as long as its
loading takes longer than the rest of the step. Loading takes as long as the slower of preparing samples (on the CPUs)
and fetching them. A worker is blocked for each sample as long as in the measured run; on other storage, reading at its
bandwidth is added. Without workers nothing is prefetched, so the training loop itself is blocked.

No model predicts copies and other time: they are carried over from a measured run. The time that this run waited for a
processor is left out of the mean, as other work on its machine is not on the target; it stays in the upper end of the
interval, as only the wait of the main thread as a whole is known.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from ddlprof.base.units import count, significant
from ddlprof.recommender.estimate import CARRIED, Range
from ddlprof.recommender.target import Machine
from ddlprof.recommender.workload import JobFacts, Measurement, Workload

CARRIED_FACTOR = 2.0
"""The 80 % interval of carried-over time reaches from half to twice the mean. A judgement, not a fit."""
_WAITS = 0.02
"""A job that waited for input for a smaller share of its step was not limited by its loader."""


def undisturbed_share(measured: Measurement | JobFacts) -> float:
    """The share of its time in which the job did not wait for a processor."""
    return 1.0 - (measured.queued_share or 0.0)


def carried_range(seconds: float, facts: JobFacts) -> Range:
    """The 80 % interval on another machine of an activity that took `seconds` in the measured job."""
    expected = seconds * undisturbed_share(facts)
    return Range(expected, expected / CARRIED_FACTOR, seconds * CARRIED_FACTOR)


class Carried(NamedTuple):
    """The classes of a step that are carried over from a measured run."""

    seconds: dict[str, Any]
    waited_s: Any
    """The seconds left out of them, in which the measured run waited for a processor."""


def carried_over(nearest: Measurement | None, samples: Any, basis: list[str]) -> Carried:
    """The carried-over classes for a step of `samples` samples, scaled where `CARRIED` says so. Adds to `basis`.

    `samples` may be an array, here and in `data_wait_s`: the seconds are then arrays, too.
    """
    if nearest is None:
        return Carried(dict.fromkeys(CARRIED, 0.0), 0.0)
    measured = nearest.carried_s
    if any(measured.values()):
        basis.append("copies to the device and other time: carried over from a measured run")
    growth = samples / (nearest.batch_per_gpu * nearest.grad_accum)
    with_waits = {name: seconds * (growth if CARRIED[name] else 1.0) for name, seconds in measured.items()}
    undisturbed = {name: seconds * undisturbed_share(nearest) for name, seconds in with_waits.items()}
    return Carried(undisturbed, sum(with_waits.values()) - sum(undisturbed.values()))


class DataEstimate(NamedTuple):
    """The seconds of a step spent waiting for input, and the sentences on what they rest on."""

    seconds: Any
    basis: tuple[str, ...]


def data_wait_s(
    workload: Workload,
    machine: Machine,
    gpus_on_node: int,
    samples: Any,
    rest_s: Any,
    nearest: Measurement | None,
    *,
    is_measured: bool = False,
) -> DataEstimate:
    """The wait for input in one GPU's step of `samples` samples whose other classes take `rest_s`.

    It follows from the loader's cost per sample where that is known; else it is carried over from the nearest
    measurement. `is_measured`: that measurement is of this very step.
    """
    if is_measured and nearest is not None and nearest.data_s is not None:
        return DataEstimate(nearest.data_s * undisturbed_share(nearest), ("input: as measured there",))
    same_storage = nearest is not None and nearest.instance_type == machine.name
    prepared_s, read_s, basis = _loading_s(workload, machine, gpus_on_node, samples, same_storage)
    if basis:
        blocked_s, workers = (workload.loader_blocked_s_per_sample or 0.0) * samples, workload.loader_workers
        if not workers:
            return DataEstimate(_longest(prepared_s - rest_s, read_s - rest_s) + blocked_s, basis)
        return DataEstimate(_longest(prepared_s - rest_s, read_s + blocked_s / workers - rest_s), basis)
    if nearest is None or nearest.data_s is None:
        return DataEstimate(0.0, ("input: not known, assumed to be ready in time",))
    scale = undisturbed_share(nearest) * samples / (nearest.batch_per_gpu * nearest.grad_accum)
    if nearest.data_s <= _WAITS * nearest.step_s:
        return DataEstimate(nearest.data_s * scale, ("input: carried over from a measured run",))
    limited_s = nearest.step_s * scale
    return DataEstimate(
        _longest(limited_s - rest_s), ("input: a measured run waited for its loader, the same rate per GPU is assumed",)
    )


def _longest(*seconds: Any) -> Any:
    """The longest of these times, none of which is below 0; number by number for arrays."""
    if any(isinstance(each, np.ndarray) for each in seconds):
        return reduce(np.maximum, seconds, np.float64(0.0))
    return max(0.0, *seconds)


def _loading_s(
    workload: Workload, machine: Machine, gpus_on_node: int, samples: Any, same_storage: bool
) -> tuple[Any, Any, tuple[str, ...]]:
    """The seconds to prepare and to read the samples of one GPU's step, with all GPUs of the node fed alike, and their
    basis, which is empty where nothing is known of the loader.

    `same_storage`: the storage is the measured one.
    """
    prepared_s: Any = 0.0
    read_s: Any = 0.0
    basis: list[str] = []
    blocked_s = workload.loader_blocked_s_per_sample
    if workload.loader_cpu_s_per_sample is not None and machine.vcpus:
        prepared_s = workload.loader_cpu_s_per_sample * samples * gpus_on_node / machine.vcpus
        basis.append(f"input: prepared by all {machine.vcpus} vCPUs")
    if blocked_s:
        workers = workload.loader_workers
        by = f"over {count(workers, 'worker')}" if workers else "in the training loop"
        basis.append(f"input: blocked for {significant(1e3 * blocked_s)} ms a sample as in the run, {by}")
    if (
        workload.loader_bytes_per_sample is not None
        and machine.storage_gb_s
        and not (same_storage and blocked_s is not None)
    ):
        read_s = workload.loader_bytes_per_sample * samples * gpus_on_node / (machine.storage_gb_s * 1e9)
        basis.append(f"input: read from network storage at {significant(machine.storage_gb_s)} GB/s")
    return prepared_s, read_s, tuple(basis)
