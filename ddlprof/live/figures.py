"""What monitoring systems get of a snapshot, in one table: names, units, labels and values.

`ddlprof.live.metrics` serves the figures to Prometheus, `ddlprof.live.otlp` sends them by OpenTelemetry's protocol. The
names differ as their conventions do. What was not measured has no value. Ranks are labels, so there are no more values
than ranks and classes; a job of very many ranks has those of the slowest only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ddlprof.live import words
from ddlprof.live.snapshot import TRAINS, RankView, Snapshot
from ddlprof.model.classes import CLASSES, PARTS

MOST_RANKS = 256
"""Ranks with labels of their own."""
_MOST_CAUSES = 16
"""Ranks that are named as the cause of a hang."""
_CLASSES = (*CLASSES, *(name for parts in PARTS.values() for name in parts))

Point = tuple[tuple[str, ...], float]
"""The values of the labels, and the value of the figure."""


@dataclass(frozen=True)
class MetricKind:
    """One kind of value. A `prometheus` or `otel` name that is empty: it is not told there."""

    prometheus: str
    otel: str
    unit: str
    """As the Unified Code for Units of Measure has it, which OpenTelemetry asks for: `s`, `By`, `J`, `{step}`."""
    words: str
    points: Callable[[Snapshot], Iterable[Point]]
    labels: tuple[str, ...] = ()
    is_counter: bool = False
    """Whether it only grows, but for a new attempt."""


def _one(value: Callable[[Snapshot], float | None]) -> Callable[[Snapshot], list[Point]]:
    """A figure without labels."""

    def points(snapshot: Snapshot) -> list[Point]:
        found = value(snapshot)
        return [] if found is None else [((), found)]

    return points


def _of_each(ranks: Iterable[RankView], label: str, value: Callable[[RankView], float | None]) -> Iterator[Point]:
    """The values that ranks have, each under the rank's `label`."""
    for rank in ranks:
        found = value(rank)
        if found is not None:
            yield (str(getattr(rank, label)),), found


def _by_rank(value: Callable[[RankView], float | None]) -> Callable[[Snapshot], Iterator[Point]]:
    """A figure with a value for each rank."""
    return lambda snapshot: _of_each(_labelled(snapshot), "rank", value)


def _labelled(snapshot: Snapshot) -> list[RankView]:
    return words.slowest_first(snapshot)[:MOST_RANKS]


def _by_node(value: Callable[[RankView], float | None]) -> Callable[[Snapshot], Iterator[Point]]:
    """A figure with a value for each machine, which one of its ranks tells."""
    return lambda snapshot: _of_each([r for r in snapshot.ranks if r.tells_host][:MOST_RANKS], "node", value)


def _classes(snapshot: Snapshot) -> Iterator[Point]:
    for name in _CLASSES:
        seconds = snapshot.times_s.get(name)
        if seconds is not None:
            yield (name,), seconds


def _class_totals(snapshot: Snapshot) -> Iterator[Point]:
    for rank in _labelled(snapshot):
        for name in CLASSES:
            if name in rank.class_totals_s:
                yield (str(rank.rank), name), rank.class_totals_s[name]


def _class_means(snapshot: Snapshot) -> Iterator[Point]:
    for rank in _labelled(snapshot):
        for name in CLASSES:
            seconds = rank.means_s.get(name)
            if seconds is not None:
                yield (str(rank.rank), name), seconds


def _verdict(snapshot: Snapshot) -> list[Point]:
    return [((snapshot.verdict.name,), 1)] if snapshot.verdict is not None else []


def _late(snapshot: Snapshot) -> list[Point]:
    return [((str(snapshot.late_rank),), 1)] if snapshot.late_rank is not None else []


def _hang_causes(snapshot: Snapshot) -> list[Point]:
    found = snapshot.hang
    if found is None:
        return []
    op = found.collective.op if found.collective is not None else ""
    return [((str(rank), found.kind, op), 1) for rank in found.ranks[:_MOST_CAUSES]]


def _sick(snapshot: Snapshot) -> list[Point]:
    found = snapshot.sick
    return [((str(found.rank), found.counter.name), 1)] if found is not None else []


_OF_JOB = (
    MetricKind("ddlprof_world_size", "ddlprof.world_size", "{rank}", "Ranks of the job.", _one(lambda s: s.world_size)),
    MetricKind(
        "ddlprof_attempt", "ddlprof.attempt", "{attempt}", "How often the job was started again.",
        _one(lambda s: s.attempt),
    ),
    MetricKind(
        "ddlprof_ranks_training", "ddlprof.ranks.training", "{rank}", "Ranks that write and have not ended.",
        _one(lambda s: sum(rank.state == TRAINS for rank in s.ranks)),
    ),
    MetricKind(
        "ddlprof_class_seconds", "ddlprof.job.class.duration", "s",
        "Mean time of a class in the recent steps, over all ranks.", _classes, ("class",),
    ),
    MetricKind(
        "ddlprof_step_seconds", "ddlprof.job.step.duration", "s", "Mean time of the recent steps, over all ranks.",
        _one(lambda s: s.times_s.get("step")),
    ),
    MetricKind(
        "ddlprof_steps_per_second", "ddlprof.job.step.rate", "{step}/s", "Steps in a second, lately.",
        _one(lambda s: s.steps_per_s),
    ),
    MetricKind(
        "ddlprof_samples_per_second", "ddlprof.job.sample.rate", "{sample}/s",
        "Samples of all ranks in a second, lately.", _one(lambda s: s.samples_per_s),
    ),
    MetricKind(
        "ddlprof_remaining_seconds", "ddlprof.job.remaining", "s",
        "Time to the last step, where their number was given.", _one(lambda s: s.remaining_s),
    ),
    MetricKind(
        "ddlprof_goodput_ratio", "ddlprof.goodput", "1",
        "Useful steps by the time of a usual one, over the time of all machines in all attempts.",
        _one(lambda s: s.goodput),
    ),
    MetricKind(
        "ddlprof_late_rank", "ddlprof.late_rank", "1", "1 for the rank that the others wait for.", _late, ("rank",)
    ),
    MetricKind(
        "ddlprof_hang", "ddlprof.hang", "1", "1 while the job hangs, else 0.",
        _one(lambda s: int(s.hang is not None)),
    ),
    MetricKind(
        "ddlprof_hang_cause", "ddlprof.hang.cause", "1",
        "1 for a rank that is the cause of a hang, with what it does and the collective that the others wait in.",
        _hang_causes, ("rank", "kind", "collective"),
    ),
    MetricKind(
        "ddlprof_sick_machine", "ddlprof.sick_machine", "1",
        "1 for the rank whose machine or device counts errors or shortages while it is late.", _sick,
        ("rank", "counter"),
    ),
    MetricKind(
        "ddlprof_verdict", "ddlprof.verdict", "1", "1 for what bounds the recent steps.", _verdict, ("verdict",)
    ),
)  # fmt: skip

_OF_RANKS = (
    MetricKind(
        "ddlprof_steps", "ddlprof.steps", "{step}", "Steps since the start of the attempt.",
        _by_rank(lambda rank: rank.steps), ("rank",), True,
    ),
    MetricKind(
        "ddlprof_samples", "ddlprof.samples", "{sample}", "Samples since the start of the attempt.",
        _by_rank(lambda rank: rank.samples), ("rank",), True,
    ),
    MetricKind(
        "ddlprof_class_time_seconds", "ddlprof.step.time", "s", "Time of a class in all steps so far.",
        _class_totals, ("rank", "class"), True,
    ),
    MetricKind(
        "", "ddlprof.step.duration", "s",
        "Mean time of a class in a rank's recent steps; the classes add up to the step.", _class_means,
        ("rank", "class"),
    ),
    MetricKind(
        "ddlprof_rank_step_seconds", "", "s", "Mean time of a rank's recent steps.",
        _by_rank(lambda rank: rank.means_s.get("step")), ("rank",),
    ),
    MetricKind(
        "ddlprof_last_entry_age_seconds", "ddlprof.last_entry.age", "s", "Time since the rank wrote anything.",
        _by_rank(lambda rank: rank.age_s), ("rank",),
    ),
    MetricKind(
        "ddlprof_memory_bytes", "ddlprof.memory.usage", "By", "Memory of the rank.",
        _by_rank(lambda rank: rank.memory_bytes), ("rank",),
    ),
    MetricKind(
        "ddlprof_device_energy_joules", "ddlprof.device.energy", "J",
        "Energy of the rank's device since the first reading of the attempt.",
        _by_rank(lambda rank: rank.device_j), ("rank",), True,
    ),
    MetricKind(
        "ddlprof_device_power_watts", "ddlprof.device.power", "W", "Power of the rank's device, lately.",
        _by_rank(lambda rank: None if rank.ended else rank.device_w), ("rank",),
    ),
    MetricKind(
        "ddlprof_host_energy_joules", "ddlprof.host.energy", "J",
        "Energy of a machine's processors and memory since the first reading of the attempt.",
        _by_node(lambda rank: rank.host_j), ("node",), True,
    ),
    MetricKind(
        "ddlprof_host_power_watts", "ddlprof.host.power", "W", "Power of a machine's processors and memory, lately.",
        _by_node(lambda rank: None if rank.ended else rank.host_w), ("node",),
    ),
)  # fmt: skip

FIGURES = (*_OF_JOB, *_OF_RANKS)
"""All that is told of a snapshot."""
