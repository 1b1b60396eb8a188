"""The seconds of a step that are neither computation nor communication: input, copies to the device and other time.

The wait for input on a target is by DS-Analyzer's rule (Mohan et al., VLDB 2021).

Input is prefetched, so what a step waits for is what its loading takes longer than the rest of the step. Loading is as
slow as the slower of preparing samples (on the CPUs) and fetching them: for each sample a worker is blocked as long as
where it was measured, and where the storage is another one, its bandwidth comes on top. Without workers nothing is
fetched ahead, so that the training loop is blocked itself.

Copies and other time, which no model predicts, are taken from where they were measured (carried over), without the time
spent waiting for a processor there: other work on the machine of a run is not on the next one. What it took is left out
of what is expected and kept in the upper end, as only the wait of the main thread in all is known.
"""

from __future__ import annotations

from typing import NamedTuple

from ddlprof.base.units import count, significant
from recommender.estimate import CARRIED, Range
from recommender.target import Machine
from recommender.workload import JobFacts, Measurement, Workload

CARRIED_FACTOR = 2.0
"""The 80 % interval of what is carried over reaches from half of it to twice as much. A judgement, not a fit."""
_WAITS = 0.02
"""A job that waited for a smaller share of its step than this was not limited by its loader."""


def undisturbed_share(measured: Measurement | JobFacts) -> float:
    """The share of its time that the job did not wait for a processor."""
    return 1.0 - (measured.queued_share or 0.0)


def carried_range(seconds: float, facts: JobFacts) -> Range:
    """What so many seconds of a measured job are taken to be on another machine."""
    expected = seconds * undisturbed_share(facts)
    return Range(expected, expected / CARRIED_FACTOR, seconds * CARRIED_FACTOR)


class Carried(NamedTuple):
    """The classes of a step that are taken from a measured run."""

    seconds: dict[str, float]
    waited_s: float
    """What was left out: the time spent waiting for a processor."""


def carried_over(nearest: Measurement | None, samples: int, basis: list[str]) -> Carried:
    """The classes for a step of so many samples, with which some of them grow."""
    if nearest is None:
        return Carried(dict.fromkeys(CARRIED, 0.0), 0.0)
    measured = nearest.carried_s
    if any(measured.values()):
        basis.append("copies to the device and other time: carried over from a measured run")
    grown = samples / (nearest.batch_per_gpu * nearest.grad_accum)
    there = {name: seconds * (grown if CARRIED[name] else 1.0) for name, seconds in measured.items()}
    here = {name: seconds * undisturbed_share(nearest) for name, seconds in there.items()}
    return Carried(here, sum(there.values()) - sum(here.values()))


class DataEstimate(NamedTuple):
    """The seconds of a step spent waiting for input, and what that figure rests on."""

    seconds: float
    basis: tuple[str, ...]


def data_wait_s(
    workload: Workload, machine: Machine, gpus_on_node: int, samples: int, rest_s: float, nearest: Measurement | None
) -> DataEstimate:
    """The wait in one GPU's step of `samples` samples whose other classes take `rest_s`.

    From the loader's cost per sample where it is known, else carried over from the nearest measurement.
    """
    same = nearest is not None and nearest.instance_type == machine.name
    prepared_s, read_s, basis = _loading_s(workload, machine, gpus_on_node, samples, same)
    if basis:
        blocked_s, workers = (workload.loader_blocked_s_per_sample or 0.0) * samples, workload.loader_workers
        if not workers:
            return DataEstimate(max(0.0, prepared_s - rest_s, read_s - rest_s) + blocked_s, basis)
        return DataEstimate(max(0.0, prepared_s - rest_s, read_s + blocked_s / workers - rest_s), basis)
    if nearest is None or nearest.data_s is None:
        return DataEstimate(0.0, ("input: not known, assumed to be ready in time",))
    alike = undisturbed_share(nearest) * samples / (nearest.batch_per_gpu * nearest.grad_accum)
    if nearest.data_s <= _WAITS * nearest.step_s:
        return DataEstimate(nearest.data_s * alike, ("input: carried over from a measured run",))
    limited_s = nearest.step_s * alike
    return DataEstimate(
        max(0.0, limited_s - rest_s), ("input: a measured run waited for its loader, the same rate per GPU is assumed",)
    )


def _loading_s(
    workload: Workload, machine: Machine, gpus_on_node: int, samples: int, same: bool
) -> tuple[float, float, tuple[str, ...]]:
    """Seconds in which the machine prepares and reads one step of one GPU, with all GPUs of the node fed alike.

    With what they rest on: nothing, where nothing is known of the loader. `same`: the storage is the measured one.
    """
    prepared_s = read_s = 0.0
    basis: list[str] = []
    blocked_s = workload.loader_blocked_s_per_sample
    if workload.loader_cpu_s_per_sample is not None and machine.vcpus:
        prepared_s = workload.loader_cpu_s_per_sample * samples * gpus_on_node / machine.vcpus
        basis.append(f"input: prepared by all {machine.vcpus} vCPUs")
    if blocked_s:
        workers = workload.loader_workers
        by = f"over {count(workers, 'worker')}" if workers else "in the training loop"
        basis.append(f"input: blocked for {significant(1e3 * blocked_s)} ms a sample as in the run, {by}")
    if workload.loader_bytes_per_sample is not None and machine.storage_gb_s and not (same and blocked_s is not None):
        read_s = workload.loader_bytes_per_sample * samples * gpus_on_node / (machine.storage_gb_s * 1e9)
        basis.append(f"input: read from network storage at {significant(machine.storage_gb_s)} GB/s")
    return prepared_s, read_s, tuple(basis)
