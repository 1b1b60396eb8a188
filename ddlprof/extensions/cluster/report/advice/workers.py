"""The pods of a job on machines that give it unequal numbers of GPUs: a group for each number, with its command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ddlprof.emit import kubernetes, pods
from ddlprof.emit.start import NOW, file_name, torchrun
from ddlprof.extensions.cluster.report.advice.data import JobAdvice
from ddlprof.model.naming import RUNS_FOLDER


class Workers(NamedTuple):
    """Pods with equal numbers of GPUs."""

    name: str
    number: int
    gpus: int
    """The GPUs of each."""
    command: list[str]
    """The lines of bash that each runs."""


def workers_of(job: JobAdvice, index: str, address_of: Callable[[str], str]) -> Iterator[Workers]:
    """The groups, that with most GPUs first. `index`: the variable that has the number of a pod in its group.
    `address_of` makes the address of the first pod of a group from the group's name."""
    closest = job.advice.closest
    numbers = sorted(set(closest), reverse=True)
    address = address_of(f"{kubernetes.WORKERS}-{numbers[0]}")
    out = f'"{pods.SHARED}/{RUNS_FOLDER}/{file_name(job.advice.name)}-{NOW}"'
    first = 0
    for gpus in numbers:
        rank = f"$(({first} + {index}))" if first else f'"${index}"'
        command = torchrun(job.command, len(closest), gpus, out, rank, address)
        yield Workers(f"{kubernetes.WORKERS}-{gpus}", closest.count(gpus), gpus, command)
        first += closest.count(gpus)
