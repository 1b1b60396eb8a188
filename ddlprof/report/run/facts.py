"""What the words of a verdict may refer to: facts about the job, gathered from the run. None: not known."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ddlprof.analysis.sources import Sources
from ddlprof.analysis.summary import Summary
from ddlprof.report.units import Scale, scale_for

if TYPE_CHECKING:
    from ddlprof.analysis.late_rank import LateRank
    from ddlprof.analysis.run import Attempt
    from ddlprof.analysis.traffic import CommTotals
    from ddlprof.model.manifest import Manifest


@dataclass(frozen=True)
class Facts:
    """The facts that the words need besides the verdict."""

    summary: Summary
    """The summary that the verdict is about."""
    device: str
    late_rank: LateRank | None = None
    comm: CommTotals | None = None
    looking_s: float | None = None
    sources: Sources = field(default_factory=lambda: Sources(0, []))
    loader_workers: int | None = None
    pin_memory: bool | None = None
    cores_per_rank: int | None = None
    busy_cores_per_rank: float | None = None
    """The mean number of busy cores during the training, other processes of the machine included."""
    cpu_percent: float | None = None
    """The same in per cent of all cores of the machine."""
    precision: str | None = None
    compiled: bool | None = None
    strategy: str | None = None
    micro_batches: int | None = None
    comm_hook: str | None = None
    """The hook's name; empty where DDP has none."""
    gradient_bytes: int | None = None

    @property
    def scale(self) -> Scale:
        """The scale of the times on the card."""
        return scale_for((self.summary.mean_ns("step") or 0.0) / 1e9)

    def mean(self, name: str) -> str:
        """The mean of a time, as text."""
        return self.scale.time((self.summary.mean_ns(name) or 0.0) / 1e9)

    @property
    def exchanges(self) -> float | None:
        """How often all gradients are added up over the ranks in a step."""
        if self.comm is None or not self.gradient_bytes or self.comm_hook:  # a hook may change their size
            return None
        return self.comm.reduced_bytes / self.gradient_bytes


def gather_facts(
    manifest: Manifest | None, headline: Attempt, sources: Sources, looking_s: float | None, cpu_percent: float | None
) -> Facts:
    """Gathers the facts of the attempt that the headline is about."""
    training = manifest.training if manifest else None
    host = manifest.host if manifest else {}
    ranks, nodes = len(headline.ranks), len({rank.data.node for rank in headline.ranks})
    cores, all_cores = _usable_cores(host), host.get("logical_cores")
    busy = None
    if cpu_percent is not None and isinstance(all_cores, int):
        busy = cpu_percent / 100 * all_cores * nodes / ranks
    return Facts(
        summary=headline.decisive,
        device=Counter(rank.data.header.device for rank in headline.ranks).most_common(1)[0][0],
        late_rank=headline.late_rank,
        comm=headline.comm,
        looking_s=looking_s,
        sources=sources,
        loader_workers=training.loader_workers if training else None,
        pin_memory=training.pin_memory if training else None,
        cores_per_rank=max(1, cores * nodes // ranks) if cores is not None else None,
        busy_cores_per_rank=busy,
        cpu_percent=cpu_percent,
        precision=training.precision if training else None,
        compiled=manifest.model.compiled if manifest else None,
        strategy=training.strategy if training else None,
        micro_batches=training.micro_batches if training else None,
        comm_hook=training.comm_hook if training else None,
        gradient_bytes=manifest.model.gradient_bytes if manifest else None,
    )


def _usable_cores(host: dict[str, Any]) -> int | None:
    """The cores of one machine that its ranks may run on, and no more than a control group gives them time for."""
    cores, quota = host.get("available_cores"), host.get("cpu_quota_cores")
    if not isinstance(cores, int):
        return None
    return max(1, min(cores, int(quota))) if isinstance(quota, (int, float)) else cores
