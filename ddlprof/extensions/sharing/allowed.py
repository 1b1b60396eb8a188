"""The shared form of a run's files: ranks' files, manifest and operators, made anew from the allowed fields.

A column or kind of line that is not in `_allowed` is left out. Numbers are kept, so the analysis of the shared run
gives the same result as that of the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import cache
from typing import Any

from ddlprof.base.reading import parse_json
from ddlprof.extensions.sharing import names as words
from ddlprof.extensions.sharing.blocks import shared_blocks, shared_layouts, shared_names
from ddlprof.extensions.sharing.names import Names
from ddlprof.model import codec
from ddlprof.model.blocks import Layout
from ddlprof.model.codec import COLLECTIVES, REST, SHAPES, Columns
from ddlprof.model.manifest import LayoutFacts, Manifest, ModelFacts, TrainingFacts
from ddlprof.model.operators import OPERATORS_SCHEMA, Operator, StepMemory, StepOperators
from ddlprof.model.records import RankHeader
from ddlprof.store.flushes import undamaged_parts
from ddlprof.store.lines import MAX_DAMAGED_LINES, MAX_LINE_CHARACTERS, read_header, read_record
from ddlprof.store.numbers import DAMAGE
from ddlprof.store.schema2 import undamaged_times

Fit = Callable[[Any], Any]
"""Makes a value fit for sharing. Raises ValueError if it is not of the kind that the column holds."""

_LEFT_OUT = "not told in a shared run"
_DAMAGED = "[]\n"
"""Written in place of a damaged line or part, so that readers treat what follows as they would in the original."""
_CHIP = re.compile(r"gfx[0-9a-f]{3,6}")
"""The architecture of one of AMD's devices."""
_TIMES = ("ready_us", "end_us", "need_us", "exposed_us")
"""The columns of the times of collectives. There are all of them or none."""


def number(value: Any) -> Any:
    """A number, or null."""
    if value is not None and not isinstance(value, (int, float)):
        raise ValueError("not a number")
    return value


def _numbers(value: Any) -> list[Any]:
    return [number(each) for each in value]


def _all(columns: str) -> dict[str, Fit]:
    return dict.fromkeys(columns.split(), number)


def _allowed(names: Names) -> dict[str, dict[str, Fit]]:
    """The shared columns by the tag of the line, each with the function that makes its values fit."""
    return {
        "s": {
            **_all("step start_ns step_ns compute_ns compute_forward_ns compute_backward_ns compute_optimizer_ns"),
            **_all("data_ns data_fetch_ns data_prep_ns h2d_ns comm_ns other_ns rollout_ns microbatches"),
            **_all("samples peak_memory_bytes device_lag_ns flags signature"),
            "first_seqs": _numbers,
        },
        "a": _all(
            "first_step steps step_ns compute_ns data_ns data_fetch_ns data_prep_ns h2d_ns comm_ns other_ns"
            " microbatches samples flags"
        ),
        "i": _all("first_step stride"),
        "g": {"number": number, "shapes": lambda shapes: shapes},  # its columns are below
        SHAPES: {"group": names.group, "op": names.operation, **_all("bytes ranks root")},
        "l": {"number": number, "text": names.place, "what": words.what},
        "q": {"step": number, "counts": _numbers},
        "c": _all(
            "time_ns cpu_percent memory_used_bytes process_rss_bytes gpu_percent gpu_memory_bytes gpu_power_w"
            " process_peak_rss_bytes gpu_peak_allocated_bytes gpu_peak_reserved_bytes process_private_bytes"
            " gpu_clock_mhz gpu_temperature_c gpu_throttle_reasons gpu_power_limit_w process_queued_ns"
            " gpu_energy_j host_energy_j"
        ),
        "n": {"source": words.source, "message": lambda _: _LEFT_OUT},
        "k": _all("hook_ns hook_steps helper_cpu_ns wall_ns"),
        "d": _all("step samples cpu_ns asked_bytes storage_bytes blocked_ns"),
        "w": _all("first_update updates window_ns work_ns comm_only_ns kernels"),
        "b": {**_all("ranks bytes duration_ns"), "op": names.operation},
        "t": _all("rank least_ns greatest_ns"),
        "m": {"group": names.group, "dimension": words.dimension, "exchanges": words.dimension, "ranks": number},
        "y": {"counter": words.counter, "where": names.port, **_all("time_ns value")},
        "p": {"what": words.span, **_all("start_ns duration_ns")},
        "h": {
            "schedule": words.schedule,
            **_all("stages micro_batches"),
            **dict.fromkeys(("own", "ranks", "order"), words.plain_list),
        },
        "x": {"group": names.group, "rows": words.plain_list, **_all("step ranks")},
        "e": {"status": words.status, **_all("exit_code time_ns")},
        "u": {
            "source": words.source,
            "one": lambda _: "reading failed",
            "many": lambda _: "readings failed",
            "count": number,
            "reason": lambda _: _LEFT_OUT,
        },
    }


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


def shared_header(header: RankHeader, names: Names, origins: Origins) -> RankHeader:
    """The header of a rank's file without names of users, hosts and places."""
    return RankHeader(
        rank=header.rank,
        world_size=header.world_size,
        local_rank=header.local_rank,
        attempt=header.attempt,
        host=names.host(header.host),
        node_id=names.node(header.node_id),
        pid=0,
        device=words.device(header.device),
        clock=words.clock(header.clock),
        origin_ns=origins.monotonic(header.origin_ns),
        origin_unix_ns=origins.unix(header.origin_unix_ns),
        job_id=names.job_id if header.job_id else "",
        launcher="",
        age_ns=header.age_ns,
        spans=header.spans,
        schema=header.schema,
    )


def shared_rank(text: bytes, steps: bytes, label: str, names: Names, origins: Origins) -> tuple[bytes, bytes]:
    """The two files of a rank in shared form. Raises ValueError if not even the header can be read."""
    head = read_header(text[: text.index(b"\n")].decode(errors="replace"), label)
    columns = head.columns
    undamaged = undamaged_parts(text, columns)
    allowed = _allowed(names)
    kept: Columns = {
        tag: tuple(name for name in columns[tag] if name.removesuffix(REST) in fits)
        for tag, fits in allowed.items()
        if tag in columns
    }
    layouts: dict[str, Layout] = {}
    if head.layouts:
        of_steps = {name.removesuffix(REST) for name in allowed["s"]}
        names_of = shared_names(of_steps, set(allowed["a"]), set(_TIMES))
        layouts = shared_layouts(head.layouts, names_of)
        shared_steps = shared_blocks(head.layouts, steps, names_of)
    elif columns.get(COLLECTIVES) == _TIMES:
        kept[COLLECTIVES] = _TIMES
        shared_steps, _ = undamaged_times(steps, undamaged.flushes)
    else:
        shared_steps = b""
    shared = shared_header(head.header, names, origins)
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
    return "".join(lines).encode(), shared_steps


def _shared_line(line: str, columns: Columns, kept: Columns, allowed: Mapping[str, dict[str, Fit]]) -> str:
    try:
        if len(line) > MAX_LINE_CHARACTERS:
            return _DAMAGED
        tag, values = codec.named(line, columns, parse_json)
        if tag not in kept or tag in (SHAPES, COLLECTIVES):
            read_record(line, columns)  # readers trust less after damage, so damage must be seen here
            return ""
        if SHAPES in values:
            values[SHAPES] = [_row(shape, kept[SHAPES], allowed[SHAPES]) for shape in values[SHAPES]]
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


JOB = "job"
"""The name of every shared job."""
MODEL = "model"
_MODEL_NUMBERS = (
    "layers", "parameter_tensors", "parameters", "gradient_bytes", "forward_flops_per_sample",
    "backward_flops_per_sample", "recomputed_flops_per_sample", "compiled",
)  # fmt: skip
_LAYOUT_NUMBERS = ("tensor", "pipeline", "context", "expert", "data_shard", "data_replicate")
_TRAINING_NUMBERS = (
    "batch_per_rank", "global_batch", "micro_batches", "dataset_samples", "loader_workers", "pin_memory",
    "persistent_workers", "prefetch_factor", "peak_device_memory_bytes", "peak_process_memory_bytes", "zero_stage",
    "data_parallel_ranks", "cpu_threads", "tokens_per_sample", "padding_share",
)  # fmt: skip
_HOST_NUMBERS = ("physical_cores", "logical_cores", "available_cores", "cpu_quota_cores", "memory_bytes")
_CALIBRATION_NUMBERS = ("ranks", "seconds")
_MEMORY_NUMBERS = (
    "parameter_bytes", "trained_bytes", "saved_bytes", "saved_fixed_bytes", "saved_cast_bytes", "temporary_bytes",
    "layer_bytes", "kept_bytes", "input_bytes", "points", "largest_tensor_bytes", "largest_block_bytes",
)  # fmt: skip
_OPERATOR_NUMBERS = (
    "shape", "flops", "bytes", "launches", "count", "grows", "fixed_bytes", "fused_bytes", "fused_launches",
)  # fmt: skip


def shared_manifest(manifest: Manifest, origins: Origins, job_id: str) -> Manifest:
    """The manifest without names, paths, arguments and dates."""
    training = manifest.training
    return Manifest(
        name=JOB,
        argv=[JOB],
        job_id=job_id,
        created_unix_ns=origins.unix(manifest.created_unix_ns),
        world_size=manifest.world_size,
        origin_unix_ns=origins.unix(manifest.origin_unix_ns),
        versions=words.versions(manifest.versions),
        host=_host(manifest.host),
        model=ModelFacts(MODEL if manifest.model.name else None, **_of(manifest.model, _MODEL_NUMBERS)),
        training=TrainingFacts(
            optimizer=words.optimizer(training.optimizer),
            precision=words.precision(training.precision),
            strategy=words.strategy(training.strategy),
            backend=words.backend(training.backend),
            comm_hook=words.comm_hook(training.comm_hook),
            **_of(training, _TRAINING_NUMBERS),
        ),
        layout=LayoutFacts(**_of(manifest.layout, _LAYOUT_NUMBERS)) if manifest.layout else None,
        calibration=_numbers_in(manifest.calibration, _CALIBRATION_NUMBERS) if manifest.calibration else None,
    )


def _of(facts: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in names}


def _numbers_in(values: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if isinstance(values.get(name), (int, float))}


def _host(host: dict[str, Any]) -> dict[str, Any]:
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


def manifest_text(manifest: Manifest) -> str:
    """The content of `manifest.json`."""
    return json.dumps(asdict(manifest), indent=1) + "\n"


def shared_operators(step: StepOperators, job_id: str) -> dict[str, Any]:
    """The content of `operators.json` without names that are not torch's."""
    operators = [_operator(each) for each in step.operators]
    memory = StepMemory(**_of(step.memory, _MEMORY_NUMBERS)) if step.memory else None
    shared = StepOperators(
        batch=step.batch,
        precision=words.precision(step.precision) or "other",
        operators=(),
        optimizer=words.optimizer(step.optimizer),
        training=step.training,
        checkpointing=step.checkpointing,
        compiled=step.compiled,
        channels_last=step.channels_last,
        memory=memory,
    )
    described = {f.name: getattr(shared, f.name) for f in fields(shared) if f.name not in ("operators", "memory")}
    described["memory"] = asdict(memory) if memory else None
    return {"job_id": job_id, "step": described, "schema": OPERATORS_SCHEMA, "operators": operators}


def _operator(each: Operator) -> dict[str, Any]:
    """One operator. Its kind and phase are checked to be ddlprof's words."""
    return {
        "kind": each.kind,
        "phase": each.phase,
        "name": words.operator(each.name, each.kind),
        "dtype": words.dtype(each.dtype),
        **_of(each, _OPERATOR_NUMBERS),
    }
