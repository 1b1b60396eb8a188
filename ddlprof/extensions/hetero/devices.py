"""The GPUs that a job could use, the links between them, and the file that describes both. GPUs need not be alike.

The smallest file is `machines: [{gpu: V100, network: 10 Gbit/s}, {gpu: T4, network: 10 Gbit/s}]`, as YAML or JSON;
docs/plan.md lists all fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from ddlprof.base.errors import UserError
from ddlprof.base.reading import MAX_DEPTH, Interval, Length, ReadingError, decode, parse_json, read_text
from ddlprof.base.units import count
from ddlprof.instance_catalog import CatalogError
from ddlprof.recommender import PredictionError, Target
from ddlprof.recommender.compute.memory_fit import usable_gib_of
from ddlprof.recommender.target import default_catalog, machine_of

LATENCY_S = 12e-6
"""The default seconds until the first byte of a transfer, which HeteroG's simulator adds to each (CoNEXT 2020)."""


@dataclass(frozen=True)
class GpuNode:
    """GPUs of one kind and the links that they share. Speeds are for one direction."""

    name: str
    gpus: int
    link_gb_s: float
    """GB/s between two of its GPUs."""
    network_gb_s: float | None = None
    """GB/s to all other machines together; None: there is no network."""
    gpu_model: str | None = None
    """The name of the GPU for a predictor, which knows it by this or by the instance type."""
    instance_type: str | None = None
    memory_gib: float | None = None
    """What a process gets of the memory of one GPU, in GiB; None: not known."""


@dataclass(frozen=True)
class Device:
    index: int
    machine: int
    name: str
    kind: str
    """The name of the kind. GPUs of one kind are equally fast."""


@dataclass(frozen=True)
class Devices:
    """All GPUs, in the order of their machines."""

    machines: tuple[GpuNode, ...]
    latency_s: float = LATENCY_S

    @cached_property
    def all(self) -> tuple[Device, ...]:
        """All GPUs; each one's place is its index."""
        found: list[Device] = []
        for number, machine in enumerate(self.machines):
            for gpu in range(machine.gpus):
                name = machine.name if machine.gpus == 1 else f"{machine.name}/{gpu}"
                found.append(Device(len(found), number, name, machine.gpu_model or machine.instance_type or name))
        return tuple(found)

    def __len__(self) -> int:
        return len(self.all)

    def shares(self, samples_of: Iterable[tuple[int, int]]) -> list[dict[str, Any]]:
        """The ranks of a plan for its file, of (device, samples) in their order."""
        return [
            {
                "device": self.all[index].name,
                "machine": self.machines[self.all[index].machine].name,
                "samples": samples,
            }
            for index, samples in samples_of
        ]

    def slowest_gb_s(self, used: tuple[int, ...]) -> float:
        """The GB/s of the slowest link in a ring through these devices.

        The ring enters and leaves each machine once, however many of its GPUs it contains.
        """
        machines = [self.all[index].machine for index in used]
        distinct = set(machines)
        speeds = [self.machines[number].link_gb_s for number in distinct if machines.count(number) > 1]
        if len(distinct) > 1:
            speeds += [self.machines[number].network_gb_s or 0.0 for number in distinct]
        return min(speeds)


_MAX_BYTES = 2**20
_MOST_DEVICES = 64
_SPEED = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(GB/s|Gbit/s|Gbps)", re.IGNORECASE)
_GBIT_PER_GB = 8.0
Name = Annotated[str, Length(1, 200)]
Count = Annotated[int, Interval(1, _MOST_DEVICES)]


@dataclass(frozen=True)
class _Machine:
    """One entry of `machines`. None: the catalogue's value."""

    gpu: Name | None = None
    instance: Name | None = None
    name: Name | None = None
    gpus: Count | None = None
    count: Count = 1
    link: Name | None = None
    network: Name | None = None


@dataclass(frozen=True)
class _File:
    machines: Annotated[tuple[_Machine, ...], Length(1, _MOST_DEVICES)]
    latency_us: Annotated[float, Interval(0, 1e6)] = LATENCY_S * 1e6


def read_devices(path: Path) -> Devices:
    """Reads the file of devices. Raises `UserError`, one line that names the file and the field."""
    try:
        found = decode(_File, _parsed(path, read_text(path, _MAX_BYTES)))
        return _devices(found)
    except (ReadingError, CatalogError, PredictionError) as error:
        raise UserError(f"{path}: {error}") from None


def _parsed(path: Path, text: str) -> Any:
    value = parse_json(text) if path.suffix == ".json" else _yaml(text)
    if not isinstance(value, dict):
        raise ReadingError("`machines:` with a list is expected; see docs/plan.md")
    known = {"machines", "latency_us"}
    of_machines = value.get("machines")
    for name in value:
        _require_known(str(name), known, "")
    for number, each in enumerate(of_machines if isinstance(of_machines, list) else ()):
        for name in each if isinstance(each, dict) else ():
            _require_known(str(name), set(_Machine.__dataclass_fields__), f"machines[{number}]: ")
    return value


def _require_known(name: str, known: set[str], where: str) -> None:
    """Raises `ReadingError` for an unknown field.

    If a misspelt field were ignored, the plan would be for other devices.
    """
    if name not in known:
        raise ReadingError(f"{where}{name!r} is not a field; there are {', '.join(sorted(known))}")


def _yaml(text: str) -> Any:
    import yaml

    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):  # a few lines of aliases can expand to a billion entries
                raise ReadingError("references (*NAME) are not read")
            if depth > MAX_DEPTH:  # PyYAML takes minutes for a depth of a thousand
                raise ReadingError(f"nested more than {MAX_DEPTH} deep")
        return parse_json(json.dumps(yaml.safe_load(text)))
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        if isinstance(error, ReadingError):
            raise
        raise ReadingError(f"not YAML of plain values: {' '.join(str(error).split())[:200]}") from None


def _devices(file: _File) -> Devices:
    machines: list[GpuNode] = []
    several = len(file.machines) > 1 or file.machines[0].count > 1
    for number, entry in enumerate(file.machines):
        where = f"machines[{number}]"
        machine = _machine(entry, where)
        if several and not machine.network_gb_s:
            raise ReadingError(f"{where}: with several machines each needs its network, such as network: 25 Gbit/s")
        for copy in range(entry.count):
            name = machine.name if entry.count == 1 else f"{machine.name}-{copy + 1}"
            machines.append(replace(machine, name=name))
    names = [machine.name for machine in machines]
    unique = [
        name if names.count(name) == 1 else f"{name}#{names[:index].count(name) + 1}"
        for index, name in enumerate(names)
    ]
    devices = Devices(
        tuple(replace(machine, name=name) for machine, name in zip(machines, unique, strict=True)),
        file.latency_us / 1e6,
    )
    if len(devices) > _MOST_DEVICES:
        raise ReadingError(f"{len(devices)} GPUs; a plan is made for {_MOST_DEVICES} at most")
    return devices


def _machine(entry: _Machine, where: str) -> GpuNode:
    """The machine of one entry; the catalogue supplies missing fields."""
    if (entry.gpu is None) == (entry.instance is None):
        raise ReadingError(f"{where}: either gpu or instance is expected")
    try:
        found = machine_of(Target(entry.instance, gpu_model=entry.gpu), default_catalog())
    except (CatalogError, PredictionError) as error:
        raise ReadingError(f"{where}: {error}") from None
    gpus = entry.gpus or (found.gpus if entry.instance and found.gpus else 1)
    if found.gpu is None:
        raise ReadingError(f"{where}: {entry.instance} has no GPU")
    if found.gpus is not None and gpus > found.gpus:
        raise ReadingError(f"{where}: a {found.name} has {count(found.gpus, 'GPU')}, not {gpus}")
    network = _speed(entry.network, f"{where}.network") if entry.network else None
    flows = [speed for speed in (found.network_gbps, found.flow_gbps) if speed is not None]
    if network is None and flows:
        network = min(flows) / _GBIT_PER_GB
    return GpuNode(
        name=entry.name or entry.instance or found.gpu.gpu_model,
        gpus=gpus,
        link_gb_s=_speed(entry.link, f"{where}.link") if entry.link else (found.link_gb_s or 1.0),
        network_gb_s=network,
        gpu_model=None if entry.instance else found.gpu.gpu_model,
        instance_type=entry.instance,
        memory_gib=usable_gib_of(found.gpu),
    )


def _speed(text: str, where: str) -> float:
    """The GB/s of `12 GB/s`, `100 Gbit/s`, or the name of a link such as pcie4 or nvlink3."""
    if match := _SPEED.fullmatch(text.strip()):
        speed = float(match[1]) / (1.0 if match[2].lower() == "gb/s" else _GBIT_PER_GB)
        if 1e-3 <= speed <= 1e5:
            return speed
    elif where.endswith("link"):
        found = machine_of(Target(interconnect=text), default_catalog()).link_gb_s
        if found is not None:
            return found
    named = " or a link such as pcie4 or nvlink3" if where.endswith("link") else ""
    raise ReadingError(f"{where}: a speed such as 12 GB/s or 100 Gbit/s{named} is expected, not {text!r}")
