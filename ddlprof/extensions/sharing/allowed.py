"""The shared form of a run's files: ranks' files, manifest and operators, made anew from the fields that may be shared.

Each field of a record says itself whether and how it is shared (`ddlprof.model.annotations.SharedAs`). A column or kind
of line that no field stands for is left out. Numbers are kept, so the analysis of the shared run gives the same result
as that of the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

from ddlprof.base.reading import parse_json
from ddlprof.extensions.sharing import names as words
from ddlprof.extensions.sharing.blocks import shared_blocks, shared_layouts, shared_names
from ddlprof.extensions.sharing.names import Pseudonyms
from ddlprof.model import codec
from ddlprof.model.annotations import SharedAs, annotated_with
from ddlprof.model.codec import KINDS, REST, SHAPES, Columns
from ddlprof.model.operators import OperatorsFile, StepOperators
from ddlprof.model.records import Aggregate, CollectiveShape, CollectiveTimes, RankHeader, Signature, StepRow
from ddlprof.store.flushes import undamaged_parts
from ddlprof.store.lines import MAX_DAMAGED_LINES, MAX_LINE_CHARACTERS, read_header, read_record
from ddlprof.store.numbers import DAMAGE

Fit = Callable[[Any], Any]
"""Makes a value fit for sharing. Raises ValueError if it is not of the kind that the field holds."""
_Record = TypeVar("_Record")

JOB = "job"
"""The name of every shared job."""
MODEL = "model"
_LEFT_OUT = "not told in a shared run"
_DAMAGED = "[]\n"
"""Written in place of a damaged line or part, so that readers treat what follows as they would in the original."""
_CHIP = re.compile(r"gfx[0-9a-f]{3,6}")
"""The architecture of one of AMD's devices."""
_HOST_NUMBERS = ("physical_cores", "logical_cores", "available_cores", "cpu_quota_cores", "memory_bytes")
_CALIBRATION_NUMBERS = ("ranks", "seconds")


class Origins:
    """Shifts all times of a run, which hides date and uptime and keeps differences."""

    def __init__(self, unix_ns: int, monotonic_ns: int, shown_unix_ns: int) -> None:
        self._monotonic_ns = monotonic_ns
        self._moved_ns = shown_unix_ns - unix_ns

    def unix(self, time_ns: int) -> int:
        """Shifts a unix time in ns."""
        return max(time_ns + self._moved_ns, 0)

    def monotonic(self, time_ns: int) -> int:
        """Shifts a time of a monotonic clock in ns."""
        return max(time_ns - self._monotonic_ns, 0)


class Fits:
    """Makes records of one run fit for sharing, each field as it says itself."""

    def __init__(self, names: Pseudonyms, origins: Origins) -> None:
        self._by_name: dict[str, Fit] = {
            "number": self._number,
            "word": lambda word: word,  # whoever read it has checked that it is one of ddlprof's
            "nothing": lambda _: 0,
            "reason": lambda _: _LEFT_OUT,
            "one reading": lambda _: "reading failed",
            "many readings": lambda _: "readings failed",
            "job": lambda _: JOB,
            "arguments": lambda _: [JOB],
            "job id": lambda job_id: names.job_id if job_id else "",
            "model": lambda name: MODEL if name else None,
            "host": names.host,
            "machine id": names.node,
            "group": names.group,
            "operation": names.operation,
            "port": names.port,
            "place": names.place,
            "unix time": origins.unix,
            "monotonic time": origins.monotonic,
            "work": words.WORK.kept,
            "source": words.SOURCE.kept,
            "dimension": words.DIMENSION.kept,
            "counter": words.COUNTER.kept,
            "span": words.SPAN.kept,
            "schedule": words.SCHEDULE.kept,
            "list": words.plain_list,
            "status": words.STATUS.kept,
            "device": words.device,
            "clock": words.CLOCK.kept,
            "versions": words.versions,
            "optimizer": words.OPTIMIZER.kept_if_told,
            "precision": words.precision,
            "known precision": words.PRECISION.kept,
            "strategy": words.strategy,
            "backend": words.backend,
            "communication hook": words.COMM_HOOK.kept_if_told,
            "operator": lambda name: words.operator(name, ""),
            "dtype": words.DTYPE.kept,
            "machine": _machine,
            "calibration": lambda found: _numbers_in(found, _CALIBRATION_NUMBERS) if found else None,
        }

    def of(self, kind: type[Any]) -> dict[str, Fit]:
        """The fields of a kind of record that are shared, each with the function that makes its values fit."""
        return {name: self._by_name[each.how] for name, each in annotated_with(kind, SharedAs).items()}

    def shared(self, record: _Record) -> _Record:
        """The record with what may be shared of it, and with the defaults of its other fields."""
        fits = self.of(type(record))
        return type(record)(**{name: fit(getattr(record, name)) for name, fit in fits.items()})

    def _number(self, value: Any) -> Any:
        """A number or null, several of them, or a record, whose fields say for themselves what is shared."""
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._number, value))
        if is_dataclass(value) and not isinstance(value, type):
            return self.shared(value)
        if value is not None and not isinstance(value, (int, float)):
            raise ValueError("not a number")
        return value


def shared_rank(text: bytes, steps: bytes, label: str, fits: Fits) -> tuple[bytes, bytes]:
    """The two files of a rank in shared form. Raises ValueError if not even the header can be read."""
    head = read_header(text, label)
    columns = head.columns
    undamaged = undamaged_parts(text, columns)
    allowed = {tag: fits.of(kind) for tag, kind in KINDS.items()} | {SHAPES: fits.of(CollectiveShape)}
    kept: Columns = {
        tag: names
        for tag, of_tag in allowed.items()
        if (names := tuple(name for name in columns.get(tag, ()) if name.removesuffix(REST) in of_tag))
    }
    of_shape = allowed[SHAPES]
    allowed[codec.TAGS[Signature]][SHAPES] = lambda rows: [_row(each, kept[SHAPES], of_shape) for each in rows]
    names_of = shared_names(*(set(fits.of(kind)) for kind in (StepRow, Aggregate, CollectiveTimes)))
    layouts = shared_layouts(head.layouts, names_of)
    shared = fits.shared(head.header)
    values = {name: getattr(shared, name) for name in RankHeader.__slots__}
    lines = [json.dumps({**values, "columns": kept, "blocks": layouts}, separators=(",", ":")) + "\n"]
    damaged = 0
    if undamaged.lost_parts:
        lines.append(_DAMAGED)
    for line in undamaged.lines:
        lines.append(_shared_line(line, columns, kept, allowed))
        damaged += lines[-1] is _DAMAGED
        if damaged > MAX_DAMAGED_LINES:  # readers stop here
            break
    return "".join(lines).encode(), shared_blocks(head.layouts, steps, names_of)


def _shared_line(line: str, columns: Columns, kept: Columns, allowed: Mapping[str, dict[str, Fit]]) -> str:
    try:
        if len(line) > MAX_LINE_CHARACTERS:
            return _DAMAGED
        tag, values = codec.named(line, columns, parse_json)
        if tag not in kept or tag == SHAPES:
            read_record(line, columns)  # readers trust less after damage, so damage must be seen here
            return ""
        return json.dumps([tag, *_row(values, kept[tag], allowed[tag])], separators=(",", ":")) + "\n"
    except (KeyError, *DAMAGE):
        return _DAMAGED


def _row(values: Mapping[str, Any], columns: tuple[str, ...], fits: Mapping[str, Fit]) -> list[Any]:
    """The values of the columns, up to the first column that the line lacks."""
    row: list[Any] = []
    for column in columns:
        name = column.removesuffix(REST)
        if name not in values:
            break
        value = fits[name](values[name])
        row += value if column.endswith(REST) else [value]
    return row


def shared_operators(step: StepOperators, fits: Fits) -> OperatorsFile:
    """The content of `operators.json` without names that are not torch's."""
    file = fits.shared(OperatorsFile(JOB, step))
    operators = tuple(replace(each, name=each.name or each.kind) for each in file.step.operators)
    return replace(file, step=replace(file.step, operators=operators))


def _numbers_in(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if isinstance(values.get(name), (int, float))}


def _machine(host: dict[str, Any]) -> dict[str, Any]:
    found = _numbers_in(host, _HOST_NUMBERS)
    if isinstance(gpus := host.get("gpus"), list):
        found["gpus"] = [words.device(each) for each in gpus if isinstance(each, str)]
    if isinstance(memory := host.get("gpu_memory_bytes"), list):
        found["gpu_memory_bytes"] = [each for each in memory if isinstance(each, int)]
    if isinstance(chips := host.get("gpu_architectures"), list):
        found["gpu_architectures"] = [each for each in chips if isinstance(each, str) and _CHIP.fullmatch(each)]
    if driver := words.version(host.get("gpu_driver")):
        found["gpu_driver"] = driver
    if host.get("instance_type") in _instance_types():
        found["instance_type"] = host["instance_type"]
    return found


@cache
def _instance_types() -> frozenset[str]:
    """The instance types of the catalogue that comes with ddlprof, which are public."""
    from ddlprof.instance_catalog import load

    return frozenset(machine.instance_type for machine in load(None).instances)
