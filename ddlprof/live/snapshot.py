"""The state of a run at one moment, as plain data: seconds, counts and shares. None means not measured."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import numpy as np

from ddlprof.analysis.context import context_line, overhead_line
from ddlprof.analysis.energy import is_device_shared
from ddlprof.analysis.hang_facts import Hang
from ddlprof.analysis.phases import LATEST
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.analysis.sources import other_sources
from ddlprof.analysis.verdict import VerdictLine, judge_run
from ddlprof.base.units import seconds_of
from ddlprof.live.follower import Followed, RunFollower
from ddlprof.live.goodput import goodput_share
from ddlprof.live.machines import SickView, device_power, hang_now, sick_machine, tellers
from ddlprof.model.classes import CLASSES, TIMES
from ddlprof.model.manifest import Manifest
from ddlprof.store import RunData

TRAINS, SILENT, GONE = "trains", "silent", "gone"
"""The state of a rank that has not said how it ended; the others are the statuses of `End`."""
SILENT_S = 60.0
"""A rank is called silent after so many seconds without an entry, and three times its longest recent gap."""
GONE_S = 3.0
"""Only after so long without an entry is a process called gone, as its file may be a moment late."""


@dataclass(frozen=True)
class RankView:
    """One rank. Times are means over its recent steps."""

    rank: int
    node: int
    host: str
    state: str
    steps: int
    last_step: int | None
    means_s: dict[str, float | None]
    age_s: float
    """The time since the last entry in its file."""
    memory_bytes: int | None
    """The memory of its process, or of its tensors on the device."""
    class_totals_s: dict[str, float]
    """The time of each class in all steps in which it was measured."""
    samples: int | None
    unusual: dict[str, int]
    """Steps by the name of their flag."""
    device_j: float | None = None
    """The energy of its device since the first reading of the attempt; None where other processes share the device."""
    device_w: float | None = None
    """The power of its device, lately."""
    tells_host: bool = False
    """Whether the next two are this rank's to tell: the first rank on a machine that reads them does."""
    host_j: float | None = None
    """The energy of the processors and the memory of its machine."""
    host_w: float | None = None

    @property
    def ended(self) -> bool:
        """Whether the rank has ended or is gone, so that nothing more will come."""
        return self.state not in (TRAINS, SILENT)


@dataclass(frozen=True)
class EpochView:
    """The progress of the present epoch; share and time are None where the length of an epoch is not known."""

    number: int
    """Counted from 1."""
    share: float | None
    remaining_s: float | None


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment. Figures of steps are means over the recent steps; `whole_s` covers all of them."""

    name: str
    model: str | None = None
    strategy: str | None = None
    device: str = ""
    world_size: int = 0
    nodes: int = 0
    attempt: int = 0
    read_share: float = 1.0
    """The part of the files that has been read."""
    steps: int = 0
    """The number of steps of the rank that has made the most."""
    recent_steps: int = 0
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    total_steps: int | None = None
    remaining_s: float | None = None
    epoch: EpochView | None = None
    times_s: dict[str, float | None] = field(default_factory=dict)
    whole_s: dict[str, float | None] = field(default_factory=dict)
    """Mean seconds over all steps so far, including the unusual ones."""
    verdict: VerdictLine | None = None
    late_rank: int | None = None
    late_cause: str | None = None
    late_queued_share: float | None = None
    """The share of its time that the late rank waits for a processor, where that explains most of its delay."""
    sick: SickView | None = None
    hang: Hang | None = None
    """Why no step ends; None also where ranks wait for one that is at work."""
    goodput: float | None = None
    """The share of the time of all machines, over all attempts, in which the job made progress."""
    job_id: str = ""
    """The same for all processes and restarts of the job."""
    ranks: list[RankView] = field(default_factory=list)
    damaged: int = 0
    unreadable: int = 0
    """The number of files that cannot be read."""
    notes: list[str] = field(default_factory=list)

    @property
    def started(self) -> bool:
        """Whether any rank has made a step."""
        return self.steps > 0

    @property
    def ended(self) -> bool:
        """Whether each rank that left a file has ended or is gone."""
        return bool(self.ranks) and all(rank.ended for rank in self.ranks)

    @property
    def silent_s(self) -> float | None:
        """The seconds since any rank last wrote something; None where no rank has a file."""
        return min((rank.age_s for rank in self.ranks), default=None)

    @property
    def states(self) -> dict[str, list[int]]:
        """The ranks in each state."""
        found: dict[str, list[int]] = {}
        for rank in self.ranks:
            found.setdefault(rank.state, []).append(rank.rank)
        return found

    def share(self, name: str) -> float | None:
        """A time as a share of the recent mean step."""
        mean, step = self.times_s.get(name), self.times_s.get("step")
        return mean / step if mean is not None and step else None


class Observer:
    """Makes snapshots of a growing run. `total_steps`: the steps that the training will make, if known."""

    def __init__(self, follower: RunFollower, total_steps: int | None = None) -> None:
        self.follower = follower
        self._total_steps = total_steps
        self._followed: list[Followed] = []
        self._last: Snapshot | None = None
        self.own_note: Callable[[], str] = lambda: ""
        """What the watching process has to say of itself; empty: nothing."""

    def look(self, now_unix_ns: int) -> Snapshot:
        """Reads what was added to the files, analyses the recent steps if there was any, and returns a snapshot."""
        if self.follower.advance() or self._last is None:
            self._followed = self.follower.recent()
            self._last = _snapshot(self.follower, self._followed, self._total_steps)
        views = [_at(view, each, now_unix_ns) for view, each in zip(self._last.ranks, self._followed, strict=True)]
        own = list(filter(None, [self.own_note()]))
        return replace(self._last, ranks=views, notes=own + self._last.notes)


def _snapshot(follower: RunFollower, followed: Sequence[Followed], total_steps: int | None) -> Snapshot:
    ranks = [each.recent for each in followed]
    data = RunData((str(follower.path),), follower.manifest, ranks, standing=follower.standing)
    described = _described(follower, followed, data)
    if not followed:
        return Snapshot(**described)
    headline = analyse(data, LATEST)[-1]
    summary = headline.summary
    telling = tellers(followed)
    views = [_rank_view(each, headline, each.recent.rank in telling) for each in followed]
    steps = max(view.steps for view in views)
    rate = _steps_per_s(followed)
    samples = _samples_per_step(followed, follower.manifest)
    late = headline.late_rank
    return Snapshot(
        **described,
        ranks=views,
        steps=steps,
        recent_steps=headline.steady_steps,
        steps_per_s=rate,
        samples_per_s=None if rate is None or samples is None else rate * samples,
        total_steps=total_steps,
        remaining_s=max(0, total_steps - steps) / rate if total_steps is not None and rate else None,
        epoch=_epoch(followed, follower.manifest, rate, samples),
        times_s={name: seconds_of(summary.mean_ns(name)) for name in TIMES},
        whole_s=_whole(followed),
        verdict=_verdict(headline.manifest(follower.manifest), headline) if headline.steady_steps else None,
        late_rank=late.rank if late else None,
        late_cause=late.cause if late else None,
        late_queued_share=late.queued_share if late else None,
        sick=sick_machine(headline),
        hang=hang_now(data),
        goodput=goodput_share(follower.ranks_by_attempt),
    )


def _described(follower: RunFollower, followed: Sequence[Followed], data: RunData) -> dict[str, Any]:
    manifest, ranks = follower.manifest, data.ranks
    devices = Counter(rank.header.device for rank in ranks)
    size = follower.size_bytes
    notes = [f"{note.source}: {note.message}" for note in follower.notes]
    return {
        "name": data.name,
        "model": manifest.model.name if manifest else None,
        "job_id": ranks[0].header.job_id if ranks else manifest.job_id if manifest else "",
        "strategy": manifest.training.strategy if manifest else None,
        "device": devices.most_common(1)[0][0] if devices else "",
        "world_size": ranks[0].header.world_size if ranks else manifest.world_size if manifest else 0,
        "nodes": len({rank.node for rank in ranks}),
        "attempt": max(follower.attempts, default=0),
        "read_share": 1 - follower.behind_bytes / size if size else 1.0,
        "damaged": sum(each.growing.damaged for each in followed),
        "unreadable": follower.unreadable_files,
        "notes": notes,
    }


# -- ranks ------------------------------------------------------------------------------------------------------------


def _rank_view(followed: Followed, headline: Attempt, tells_host: bool) -> RankView:
    growing, data = followed.growing, followed.recent
    device, host = growing.device_energy, growing.host_energy
    is_shared = is_device_shared(data.notes)
    analysed = next(rank for rank in headline.ranks if rank.data is data)
    sums = growing.sums
    return RankView(
        rank=data.rank,
        node=data.node,
        host=data.header.host,
        state=TRAINS,
        steps=sums.steps,
        last_step=sums.last_step,
        means_s={name: seconds_of(analysed.summary.mean_ns(name)) for name in TIMES},
        age_s=0.0,
        memory_bytes=_memory(growing.counters),
        class_totals_s={name: value / 1e9 for name, value in sums.measured_ns().items()},
        samples=sums.samples,
        unusual=dict(sums.unusual),
        device_j=None if is_shared else device.joules,
        device_w=None if is_shared else device_power(growing),
        tells_host=tells_host,
        host_j=host.joules if tells_host else None,
        host_w=host.watts if tells_host else None,
    )


def _at(view: RankView, followed: Followed, now_unix_ns: int) -> RankView:
    """The same rank at this moment."""
    growing = followed.growing
    if growing.grew_at is not None:  # no clock of another machine is asked
        age_s = monotonic() - growing.grew_at
    else:
        age_s = max(0.0, (now_unix_ns - growing.last_entry_unix_ns) / 1e9)
    return replace(view, age_s=age_s, state=_state(followed, age_s))


def _state(followed: Followed, age_s: float) -> str:
    end, data = followed.growing.end, followed.recent
    if end is not None:
        return end.status
    if age_s > GONE_S and _is_gone(data.header.host, data.header.pid):
        return GONE
    times = [data.steps["step_ns"], np.diff(data.context["time_ns"]), np.zeros(1)]
    longest_s = max(float(each.max()) for each in times if len(each)) / 1e9
    return SILENT if age_s > max(SILENT_S, 3 * longest_s) else TRAINS


def _is_gone(host: str, pid: int) -> bool:
    """Whether it is known that the process has ended: one of this machine, which no longer has it."""
    if host != socket.gethostname() or pid <= 0 or os.name == "nt":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # the process belongs to another user
        pass
    return False


def _memory(counters: dict[str, float]) -> int | None:
    for name in ("gpu_peak_reserved_bytes", "process_rss_bytes"):
        value = counters.get(name, float("nan"))
        if not np.isnan(value):
            return int(value)
    return None


# -- the job ----------------------------------------------------------------------------------------------------------


def _whole(followed: Sequence[Followed]) -> dict[str, float | None]:
    """The means of the ranks' means, by steps; a class that was not measured on one of them is not known."""
    means = [(each.growing.sums.means_ns(), each.growing.sums.steps) for each in followed]
    steps = sum(count for _, count in means)
    found: dict[str, float | None] = {}
    for name in ("step", *CLASSES):
        values = [(mean[name], count) for mean, count in means if count]
        known = [value * count for value, count in values if value is not None]
        found[name] = sum(known) / steps / 1e9 if values and len(known) == len(values) else None
    return found


def _steps_per_s(followed: Sequence[Followed]) -> float | None:
    rates = []
    for each in followed:
        steps = each.recent.steps
        if len(steps) > 1:
            first, last = int(steps["start_ns"][0]), int(steps["start_ns"][-1] + steps["step_ns"][-1])
            number = int(steps["step"][-1] - steps["step"][0]) + 1  # rows of a long run leave steps out
            rates.append(number / (last - first) * 1e9)
    return float(np.median(rates)) if rates else None


def _samples_per_step(followed: Sequence[Followed], manifest: Manifest | None) -> float | None:
    """The samples of a step on all ranks that have samples of their own."""
    means = []
    for each in followed:
        samples = each.recent.steps["samples"]
        known = samples[samples >= 0]
        if len(known):
            means.append(float(known.mean()))
    if not means:
        return None
    ranks = (manifest.training.data_parallel_ranks if manifest else None) or followed[0].recent.header.world_size
    return float(np.mean(means)) * ranks


def _epoch(
    followed: Sequence[Followed], manifest: Manifest | None, rate: float | None, samples: float | None
) -> EpochView | None:
    """The present epoch, by its first batches; its length by the one before, or by the data set."""
    sums = followed[0].growing.sums
    if not sums.epochs or sums.last_step is None or sums.epoch_step is None:
        return None
    dataset = manifest.training.dataset_samples if manifest else None
    length = float(sums.epoch_steps or 0) or (dataset / samples if dataset and samples else 0.0)
    if length < 1:
        return EpochView(sums.epochs, None, None)
    done = sums.last_step - sums.epoch_step + 1
    if done > length * 1.05 + 1:  # the data set does not tell: each rank may go through all of it
        return EpochView(sums.epochs, None, None)
    share = min(1.0, done / length)
    return EpochView(sums.epochs, share, (1 - share) * length / rate if rate else None)


def _verdict(manifest: Manifest | None, headline: Attempt) -> VerdictLine:
    ranks = [rank.data for rank in headline.ranks]
    overhead, context = overhead_line(ranks, headline.summary, None), context_line(ranks, headline.queued_share)
    sources = other_sources(headline.ranks)
    return judge_run(manifest, headline, sources, overhead.hooks_s_per_step, context.cpu_percent).verdict
