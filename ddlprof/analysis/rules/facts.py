"""Facts of a run that the rules and the words of a verdict need. None: not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ddlprof.analysis import sources as places
from ddlprof.analysis.ceilings import ceilings
from ddlprof.analysis.contention import is_starved, other_cores
from ddlprof.analysis.data_lines import DataLines, data_lines
from ddlprof.analysis.features import SampleCost, kernels_per_step, loader_cost
from ddlprof.analysis.health import Moved, moved_of
from ddlprof.analysis.issued import Issued, IssuedTraffic, issued_traffic
from ddlprof.analysis.job_time import JobTime
from ddlprof.analysis.pauses import BrokenGraphs, Pauses, broken_graphs, collector_pauses, recompilations
from ddlprof.analysis.rules.signals import (
    DataWaitBursts,
    MemoryGrowth,
    ThrottledDevice,
    UnevenWork,
    find_bursts,
    find_growths,
    find_throttled,
    find_uneven,
    find_worker_growths,
    free_bytes,
    lag_share,
    peak_rises,
    steps_by_rank,
)
from ddlprof.analysis.saves import AfterSaves, after_saves, lone_evaluator
from ddlprof.analysis.slowing import Slowing, find_slowing
from ddlprof.analysis.sources import Sources, StartSources
from ddlprof.analysis.stages import Stages, find_stages
from ddlprof.analysis.summary import Summary
from ddlprof.analysis.thresholds import (
    BOUND_SHARE,
    LAG_SHARE,
    LAUNCH_US,
    LAUNCHED_KERNELS,
    LINE_OF_STEP_SHARE,
    OTHER_CORES,
    SMALL_BUCKET_BYTES,
    THREAD_BUSY_SHARE,
    WARN_SHARE,
    WINDOW_STEPS,
)
from ddlprof.base.units import Scale, scale_for
from ddlprof.model.issuers import REDUCER
from ddlprof.model.manifest import ModelFacts, TrainingFacts
from ddlprof.model.operators import Operator, StepOperators
from ddlprof.model.records import MISSING, Note

if TYPE_CHECKING:
    from ddlprof.analysis.amounts import Amounts
    from ddlprof.analysis.experts import ExpertLoad
    from ddlprof.analysis.late_rank import LateRank
    from ddlprof.analysis.run import Attempt, RankAnalysis
    from ddlprof.analysis.traffic import CommTotals
    from ddlprof.model.manifest import Manifest


@dataclass(frozen=True)
class Reductions:
    """The reductions (such as all-reduces) of a step, as means over steady steps and ranks.

    Where it is known who issues collectives, those of DDP's reducer: gradients.
    """

    number: float
    small_bytes: float
    """The bytes in reductions below `SMALL_BUCKET_BYTES`."""
    largest_bytes: int
    duration_s: float
    exposed_s: float
    shortest_s: float | None
    """The mean transfer of the fastest kind of them, in seconds."""


@dataclass(frozen=True)
class ProfilerWindow:
    """The device's activity in profiler windows."""

    updates: int
    idle_share: float
    """The share of a mean step in which the device does nothing. Kernels take as long in a window as outside it; the
    host is slower there, so that the device is idle for more of a window than of a step."""
    kernels: float | None
    """The number of kernels and copies launched in a step, without those of communication."""
    kernel_s: float | None
    """The mean duration of one of them, in seconds."""


@dataclass(frozen=True)
class HostFacts:
    """The processors and the memory of the machines."""

    cores_per_rank: int | None = None
    busy_cores_per_rank: float | None = None
    """The mean number of busy cores for each rank during the training. Includes other processes of the machine."""
    cpu_percent: float | None = None
    """How busy the cores of a machine were, in per cent of all of them."""
    queued_share: float | None = None
    """The share of its time for which the main thread waited for a processor, on the rank with the largest share."""
    other_cores: float | None = None
    """The mean number of cores, of those of a rank, that are busy with other work than the job's."""
    free_bytes: int | None = None
    """The bytes free at the last reading, on the machine with the fewest."""
    copied_bytes: int | None = None
    """The most that the workers of a rank have copied of the memory that they share with its process."""
    worker_growths: list[MemoryGrowth] = field(default_factory=list)
    cpu_16bit: tuple[str, ...] | None = None
    """The 16-bit types that the processors compute in."""


@dataclass(frozen=True)
class DeviceFacts:
    """What the devices do, and their memory."""

    window: ProfilerWindow | None = None
    lag_share: float | None = None
    """How far the devices are behind their hosts at most, as a share of computing (`signals.lag_share`)."""
    may_open_windows: bool = True
    """Whether nothing is known against `--profiler-windows` on this device."""
    growths: list[MemoryGrowth] = field(default_factory=list)
    peak_rises: float | None = None
    """By how many bytes a step the most memory that a rank has held rises in its steady steps; None: by little."""
    throttled: list[ThrottledDevice] = field(default_factory=list)
    memory_bytes: int | None = None
    """The memory of one device, in bytes."""
    peak_bytes: int | None = None
    """The most bytes of it that torch's allocator held on any rank."""


@dataclass(frozen=True)
class Facts:
    """The facts of the attempt that the headline is about."""

    summary: Summary
    """The summary that the verdict is about."""
    device: str
    steady_steps: int = 0
    """The number of steady steps of each rank."""
    world_size: int = 1
    ranks_per_node: int = 1
    late_rank: LateRank | None = None
    comm: CommTotals | None = None
    overhead_s: float | None = None
    sources: Sources = field(default_factory=lambda: Sources(0, []))
    computing: Sources = field(default_factory=lambda: Sources(0, []))
    """The loops and lines of the script in which forwards and losses were."""
    updating: Sources = field(default_factory=lambda: Sources(0, []))
    """The loops of the script in which its own optimizers were."""
    after_backward: Sources = field(default_factory=lambda: Sources(0, []))
    """The loops and lines of the script between backward and update, and in optimizers."""
    collector: Pauses | None = None
    """The pauses of the garbage collector."""
    slowing: list[Slowing] = field(default_factory=list)
    """The ranks whose steps become slower all the time."""
    recompiled: Pauses | None = None
    """What torch.compile compiled after the warm-up."""
    broken_graphs: BrokenGraphs | None = None
    """Where torch.compile breaks the graphs of steady steps."""
    same_batches: bool = False
    """Whether all ranks got the same first batches."""
    training: TrainingFacts = field(default_factory=TrainingFacts)
    model: ModelFacts = field(default_factory=ModelFacts)
    operators: tuple[Operator, ...] = ()
    """The operators of a step; empty: not known."""
    host: HostFacts = field(default_factory=HostFacts)
    devices: DeviceFacts = field(default_factory=DeviceFacts)
    loader: SampleCost | None = None
    samples_per_step: float | None = None
    """The mean number of samples of one rank in a step."""
    bursts: DataWaitBursts | None = None
    reductions: Reductions | None = None
    issued: IssuedTraffic = field(default_factory=IssuedTraffic)
    """The collectives by who issues them."""
    imported: bool = False
    """Whether the run was made from traces. A device's idle time is then in `other`, even during a forward."""
    uneven: UnevenWork | None = None
    amounts: Amounts | None = None
    after_saves: AfterSaves | None = None
    lone_evaluator: int | None = None
    rank_steps: dict[int, int] = field(default_factory=dict)
    """The steps of each rank, where all ranks of the job have ended well."""
    rank_compute_s: dict[int, list[float]] = field(default_factory=dict)
    """The mean computing of each rank in seconds, by node; empty where ranks have different devices."""
    stages: Stages | None = None
    """The stages of the pipelines, where their schedule is known."""
    experts: ExpertLoad | None = None
    moved: list[Moved] = field(default_factory=list)
    """The counters of a sick machine that moved while the late rank was late."""
    job: JobTime | None = None
    data_lines: DataLines = field(default_factory=DataLines)
    """The lines at which batches are made."""
    starting: StartSources = field(default_factory=lambda: StartSources(0, []))
    """The lines that worked before the first step."""
    between: Sources = field(default_factory=lambda: Sources(0, []))
    """The lines that worked beside evaluations, checkpoints and begins of epochs and of later trainings."""
    evaluating: Sources = field(default_factory=lambda: Sources(0, []))
    """All places that worked in steps with an evaluation."""
    most_gained_s: dict[str, float] = field(default_factory=dict)
    """The largest possible gain in a step by class, in seconds; see `ddlprof.analysis.ceilings`."""

    @property
    def scale(self) -> Scale:
        """The scale of the times on the card."""
        return scale_for((self.summary.mean_ns("step") or 0.0) / 1e9)

    def mean_s(self, name: str) -> float | None:
        """The mean of a time in seconds; None: not measured."""
        mean = self.summary.mean_ns(name)
        return None if mean is None else mean / 1e9

    def mean(self, name: str) -> str:
        """The mean of a time, as text."""
        return self.scale.time(self.mean_s(name) or 0.0)

    @property
    def collector_s(self) -> float:
        """The seconds of a step for which the garbage collector pauses it; 0 where that does not last. A pause may be
        waiting for a processor, as any other time of the thread."""
        pauses, step, awake = self.collector, self.mean_s("step") or 0.0, 1 - (self.host.queued_share or 0.0)
        lasts = pauses is not None and awake * pauses.lasting_s >= LINE_OF_STEP_SHARE * step
        return min(awake * pauses.seconds, step) if pauses is not None and lasts else 0.0

    @property
    def starved(self) -> bool:
        """Whether the training waits for processors, so that anything that needs one more would not help."""
        return is_starved(self.host.queued_share)

    @property
    def idles(self) -> bool:
        """Whether what is called computing on processors is mostly waiting (a sleep, a file), as far as known.

        Who waits for a processor has work for it.
        """
        busy, share = self.host.busy_cores_per_rank, self.summary.share("compute") or 0.0
        own = None if busy is None else busy - (self.host.other_cores or 0.0) + (self.host.queued_share or 0.0)
        return self.device == "cpu" and own is not None and own < THREAD_BUSY_SHARE * share

    @property
    def shares_machine(self) -> bool:
        """Whether the training waits for processors that other work uses, as far as known. Its own is none."""
        others = self.host.other_cores
        return self.starved and not self.crowded and (others is None or others >= OTHER_CORES)

    @property
    def crowded(self) -> bool:
        """Whether each rank computes on processors with more threads than cores: they wait for one another."""
        threads, cores = self.training.cpu_threads, self.host.cores_per_rank
        return self.device == "cpu" and threads is not None and cores is not None and threads > cores

    @property
    def launch_bound(self) -> bool:
        """Whether the device waits for the host to launch kernels, as far as known. Windows say so better than the lag:
        a device that is busy with one part of the step is behind its host there, and may wait for the rest of it."""
        if (self.waiting_share or 0.0) >= BOUND_SHARE:
            return True
        busy = self.devices.window is not None and self.devices.window.idle_share < WARN_SHARE
        return self.devices.lag_share is not None and self.devices.lag_share < LAG_SHARE and not busy

    @property
    def waiting_share(self) -> float | None:
        """The share of a step in which the device waits for short kernels to be launched; None without windows of
        enough steps, or where something else than launching keeps the device waiting."""
        window = self.devices.window
        if window is None or window.kernels is None or window.kernel_s is None or window.updates < WINDOW_STEPS:
            return None
        if self.device == "cpu" or window.kernels < LAUNCHED_KERNELS or window.kernel_s > LAUNCH_US / 1e6:
            return None
        named = ("data",) if self.imported else ("data", "other")
        return max(0.0, window.idle_share - sum(self.summary.share(name) or 0.0 for name in named))

    @property
    def exchanges(self) -> float | None:
        """How often in a step all gradients are added up over the ranks."""
        if self.comm is None or not self.model.gradient_bytes or self.training.comm_hook:  # a hook may change the size
            return None
        exchanged = sum(each.bytes for each in self.issued.gradients)
        return (exchanged if self.issued else self.comm.reduced_bytes) / self.model.gradient_bytes

    @property
    def moving_s(self) -> float | None:
        """Seconds of exposed communication without waits for other ranks, as far as these are known."""
        comm, waits = self.mean_s("comm"), sum(self.mean_s(name) or 0.0 for name in ("straggler", "bubble"))
        return None if comm is None else max(comm - waits, 0.0)

    def moving_of(self, issued: Iterable[Issued]) -> float:
        """The part of `moving_s` that is of these collectives; 0 if issuers are not known."""
        total = sum(each.moving_s for each in self.issued.kinds)
        return (self.moving_s or 0.0) * sum(each.moving_s for each in issued) / total if total else 0.0


def gather_facts(
    manifest: Manifest | None,
    headline: Attempt,
    sources: Sources,
    overhead_s: float | None = None,
    cpu_percent: float | None = None,
    job: JobTime | None = None,
    step: StepOperators | None = None,
) -> Facts:
    """Gathers the facts of the attempt of the headline. `cpu_percent`: how busy the machine's processors were."""
    training, host = (manifest.training, manifest.host) if manifest else (TrainingFacts(), {})
    ranks, nodes = len(headline.ranks), len({rank.data.node for rank in headline.ranks})
    ranks_first = {rank.data.first_batches for rank in headline.ranks}
    issued, passes = _issued(headline.ranks), places.compute_sources(headline.ranks)
    return Facts(
        summary=headline.decisive,
        device=Counter(rank.data.header.device for rank in headline.ranks).most_common(1)[0][0],
        steady_steps=headline.steady_steps,
        world_size=headline.ranks[0].data.header.world_size,
        ranks_per_node=-(-ranks // nodes),
        late_rank=headline.late_rank,
        comm=headline.comm,
        overhead_s=overhead_s,
        sources=sources,
        computing=passes,
        updating=places.compute_sources(headline.ranks, places.UPDATES),
        after_backward=places.compute_sources(headline.ranks, places.AFTER_BACKWARD),
        collector=collector_pauses(headline.ranks),
        recompiled=recompilations(headline),
        broken_graphs=broken_graphs(headline.ranks, passes),
        same_batches=len(ranks_first) == 1 < ranks and None not in ranks_first,
        slowing=find_slowing(headline.ranks),
        training=training,
        model=manifest.model if manifest else ModelFacts(),
        operators=step.operators if step else (),
        host=_host_facts(host, headline, nodes, cpu_percent),
        devices=_device_facts(host, headline),
        loader=loader_cost(headline),
        samples_per_step=_samples_per_step(headline.ranks),
        bursts=_bursts(headline.ranks, training),
        reductions=_of_reducer(issued) if issued else _reductions(headline.ranks),
        issued=issued,
        imported=bool(manifest and manifest.is_imported),
        uneven=find_uneven(headline.ranks, headline.amounts),
        amounts=headline.amounts,
        after_saves=after_saves(headline.ranks),
        lone_evaluator=lone_evaluator(headline.ranks),
        rank_steps=steps_by_rank(headline.ranks),
        rank_compute_s=_rank_compute(headline.ranks),
        stages=stages_of(headline),
        experts=headline.experts,
        moved=moved_of(headline),
        job=job,
        data_lines=data_lines(headline.ranks),
        starting=places.start_sources(headline.ranks),
        between=places.between_sources(headline.ranks, headline.later_phases),
        evaluating=places.evaluation_sources(headline.ranks),
        most_gained_s=_most_gained(headline),
    )


def _host_facts(host: dict[str, Any], headline: Attempt, nodes: int, cpu_percent: float | None) -> HostFacts:
    cores, all_cores = _usable_cores(host), host.get("logical_cores")
    ranks = len(headline.ranks)
    whole = all_cores * nodes / ranks if isinstance(all_cores, int) else None
    busy = whole * cpu_percent / 100 if whole is not None and cpu_percent is not None else None
    return HostFacts(
        cores_per_rank=max(1, cores * nodes // ranks) if cores is not None else None,
        busy_cores_per_rank=busy,
        cpu_percent=cpu_percent,
        queued_share=headline.queued_share,
        other_cores=other_cores([rank.data for rank in headline.ranks], busy),
        free_bytes=free_bytes(host, headline.ranks),
        copied_bytes=_most(headline.ranks, "workers_copied_bytes"),
        worker_growths=find_worker_growths(headline.ranks),
        cpu_16bit=tuple(host["cpu_16bit"]) if "cpu_16bit" in host else None,
    )


def _device_facts(host: dict[str, Any], headline: Attempt) -> DeviceFacts:
    return DeviceFacts(
        window=_window(headline),
        lag_share=lag_share(headline.ranks),
        may_open_windows=not any(_rules_windows_out(note) for rank in headline.ranks for note in rank.data.notes),
        growths=find_growths(headline.ranks),
        peak_rises=peak_rises(headline.ranks),
        throttled=find_throttled(headline.ranks),
        memory_bytes=_device_bytes(host),
        peak_bytes=_most(headline.ranks, "gpu_peak_reserved_bytes"),
    )


def _rules_windows_out(note: Note) -> bool:
    """Whether a note of a rank says that torch's profiler does not record its device."""
    return note.source == "device" and "--profiler-windows" in note.message


def stages_of(attempt: Attempt) -> Stages | None:
    """The stages of the pipelines of an attempt."""
    return find_stages(attempt.pipelines, {rank.data.rank: rank.summary for rank in attempt.ranks})


def _most_gained(headline: Attempt) -> dict[str, float]:
    step_s = (headline.summary.mean_ns("step") or 0.0) / 1e9
    return {each.name: each.gain_s for each in ceilings([rank.times for rank in headline.ranks], step_s)}


def _usable_cores(host: dict[str, Any]) -> int | None:
    """The cores of one machine that its ranks may use, limited by the quota of a control group."""
    cores, quota = host.get("available_cores"), host.get("cpu_quota_cores")
    if not isinstance(cores, int):
        return None
    return max(1, min(cores, int(quota))) if isinstance(quota, (int, float)) else cores


def _samples_per_step(ranks: Sequence[RankAnalysis]) -> float | None:
    samples = np.concatenate([rank.data.steps["samples"][rank.times.steady] for rank in ranks])
    known = samples[samples != MISSING]
    return float(known.mean()) if len(known) else None


def _bursts(ranks: Sequence[RankAnalysis], training: TrainingFacts) -> DataWaitBursts | None:
    """The bursts of the rank that waits longest for data; None if no workers hold batches ready."""
    workers, factor, batches = training.loader_workers, training.prefetch_factor, training.micro_batches or 1
    if not workers or not factor:
        return None
    waits = {index: rank.summary.mean_ns("data") or 0.0 for index, rank in enumerate(ranks)}
    times = ranks[max(waits, key=lambda index: waits[index])].times
    return find_bursts(np.maximum(times.times["data"][times.steady], 0), max(1, workers * factor // batches))


def _reductions(ranks: Sequence[RankAnalysis]) -> Reductions | None:
    steps = sum(int(np.count_nonzero(rank.times.steady)) for rank in ranks)
    traffic = [rank.traffic for rank in ranks]
    sizes = sum((each.sizes for each in traffic), Counter[int]())
    if not steps or not sizes:
        return None
    return Reductions(
        number=sizes.total() / steps,
        small_bytes=sum(size * number for size, number in sizes.items() if size < SMALL_BUCKET_BYTES) / steps,
        largest_bytes=max(sizes),
        duration_s=sum(each.reductions_us for each in traffic) / steps / 1e6,
        exposed_s=sum(each.reductions_exposed_us for each in traffic) / steps / 1e6,
        shortest_s=min((t.shortest_us / 1e6 for t in traffic if t.shortest_us is not None), default=None),
    )


def _issued(ranks: Sequence[RankAnalysis]) -> IssuedTraffic:
    return issued_traffic([rank.issued for rank in ranks], [int(rank.times.steady.sum()) for rank in ranks])


def _of_reducer(issued: IssuedTraffic) -> Reductions | None:
    """The reductions that DDP's reducer issues; None if it issues none."""
    sent = issued.of(REDUCER)
    if not sent:
        return None
    return Reductions(
        number=sum(each.number for each in sent),
        small_bytes=sum(each.small_bytes for each in sent),
        largest_bytes=max(each.largest_bytes for each in sent),
        duration_s=sum(each.duration_s for each in sent),
        exposed_s=sum(each.exposed_s for each in sent),
        shortest_s=min((each.fastest_s for each in sent if each.fastest_s is not None), default=None),
    )


def _window(attempt: Attempt) -> ProfilerWindow | None:
    windows = [window for rank in attempt.ranks for window in rank.data.windows]
    updates, kernels = sum(window.updates for window in windows), kernels_per_step(attempt)
    step_ns = attempt.summary.mean_ns("step")
    if not updates or not step_ns:
        return None
    idle = max(0.0, 1 - sum(window.work_ns for window in windows) / updates / step_ns)
    work_ns = sum(window.work_ns - window.comm_only_ns for window in windows if window.kernels is not None)
    counted = sum(window.kernels or 0 for window in windows)
    return ProfilerWindow(updates, idle, kernels, work_ns / counted / 1e9 if counted else None)


def _rank_compute(ranks: Sequence[RankAnalysis]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    alike = len({rank.data.header.device for rank in ranks}) == 1
    for rank in ranks:
        if alike and (mean := rank.summary.mean_ns("compute")) is not None:
            found.setdefault(rank.data.node, []).append(mean / 1e9)
    return found


def _device_bytes(host: dict[str, Any]) -> int | None:
    """The bytes of memory of one device; None if devices differ."""
    sizes = host.get("gpu_memory_bytes")
    if not isinstance(sizes, list) or not sizes or not all(isinstance(size, int) for size in sizes):
        return None
    return sizes[0] if len(set(sizes)) == 1 else None


def _most(ranks: Sequence[RankAnalysis], name: str) -> int | None:
    values = np.concatenate([rank.data.context[name] for rank in ranks])
    known = values[~np.isnan(values)]
    return int(known.max()) if len(known) else None
