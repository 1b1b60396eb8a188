"""Words for a verdict: why, and what to do next, one line each. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.analysis.diagnosis import LateRank, Verdict, stall_means
from ddlprof.analysis.summary import Summary
from ddlprof.analysis.traffic import CommTotals
from ddlprof.report.units import Scale, percent, scale_for

NAMES = {"h2d": "host-to-device copies", "data": "waiting for data", "comm": "communication"}
"""How a class is called in a sentence, where its name will not do."""

BUSY_CPU_PERCENT = 85.0  # above, processes of one machine take turns


@dataclass(frozen=True)
class Facts:
    """What the words need to know besides the verdict. None: not known."""

    summary: Summary
    late_rank: LateRank | None
    comm: CommTotals | None
    looking_s: float | None
    other_lines: list[tuple[str, float]]
    loader_workers: int | None
    cores_per_rank: int | None
    precision: str | None
    device: str
    cpu_percent: float | None
    """Of all cores of the machine, mean over the run."""

    @property
    def scale(self) -> Scale:
        """The unit of the card."""
        return scale_for((self.summary.mean_ns("step") or 0.0) / 1e9)

    def mean(self, name: str) -> str:
        """The mean of a time as text."""
        return self.scale.time((self.summary.mean_ns(name) or 0.0) / 1e9)


def advise(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    """`(why, next)`."""
    if verdict.name == "UNDECIDED":
        return _undecided(verdict, facts)
    if verdict.stall is None:
        return _compute(facts)
    rules = {"data": _data, "h2d": _h2d, "straggler": _straggler, "other": _other}
    rule = rules.get(verdict.stall)
    return rule(verdict, facts) if rule else _communication(verdict, facts)


def _undecided(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    if verdict.reason == "few_steps":
        return "too few steady steps for a verdict", "let it train for at least 30 steps"
    if verdict.reason == "comm":
        return "communication was not measured, and may be anything up to all of the step", "see the note on comm"
    stall = NAMES.get(verdict.stall or "", verdict.stall)
    share = percent(verdict.share or 0.0)
    if verdict.reason == "looking":
        cost = percent(1e9 * (facts.looking_s or 0.0) / (facts.summary.mean_ns("step") or 1.0))
        return f"{stall} is {share} of the step, but looking costs {cost}", "use larger batches, to make steps longer"
    return f"{stall} is {share} of the step, but varies too much to be sure", "let it train for more steps"


def _compute(facts: Facts) -> tuple[str, str]:
    stalls = stall_means(facts.summary)
    largest = max(stalls, key=lambda name: stalls[name], default=None)
    why = f"computing takes {percent(facts.summary.share('compute') or 0.0)} of the step"
    if largest is not None and stalls[largest] > 0:
        step = facts.summary.mean_ns("step") or 1.0
        why += f", the largest stall is {NAMES.get(largest, largest)} with {percent(stalls[largest] / step)}"
    if facts.device == "cpu":
        return why, "a faster machine, or an accelerator"
    faster = "mixed precision (torch.autocast), " if facts.precision in ("fp32", None) else ""
    return why, f"{faster}torch.compile, or a faster device"


def _data(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    why = f"the loop waits {facts.mean('data')} a step for its batches"
    fetch, prep = facts.summary.mean_ns("data_fetch"), facts.summary.mean_ns("data_prep")
    if verdict.cause == "fetch":
        why += f", {facts.mean('data_fetch')} of it blocked on storage or network"
    elif verdict.cause == "prep":
        why += f", {facts.mean('data_prep')} of it preparing samples (decode, transform, collate)"
    elif fetch is not None and prep is not None:
        why += f" ({facts.mean('data_fetch')} fetching, {facts.mean('data_prep')} preparing)"
    return why, _more_data(verdict.cause, facts.loader_workers, facts.cores_per_rank)


def _more_data(cause: str | None, workers: int | None, cores: int | None) -> str:
    if workers is None:
        return "load the next batch in a worker while the step computes: torch.utils.data.DataLoader(num_workers=...)"
    if workers == 0:
        return f"load in the background: DataLoader(num_workers={max(cores or 2, 1)})"
    if cause == "fetch":
        return f"more than {workers} loader workers (they wait, so they need no core each), or a copy on a faster disk"
    if cores is not None and workers >= cores:
        return (
            f"{workers} workers already fill {cores} cores a rank: cheaper transforms, or prepare the data beforehand"
        )
    return f"more than {workers} loader workers" + (f" ({cores} cores a rank)" if cores else "")


def _h2d(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    why = f"computing waits {facts.mean('h2d')} a step for copies to the device"
    return why, "DataLoader(pin_memory=True) and .to(device, non_blocking=True)"


def _straggler(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    why = f"ranks wait {facts.mean('straggler')} a step for a later rank"
    late = facts.late_rank
    if late is None:
        why += ", not always the same"
        if facts.device == "cpu" and (facts.cpu_percent or 0.0) >= BUSY_CPU_PERCENT:
            busy = f"the ranks compete for the cores ({facts.cpu_percent:.0f} % busy)"
            return why, f"{busy}: fewer ranks, threads (OMP_NUM_THREADS) or loader workers on this machine"
        return why, "give all ranks equal work: samples of one length, equal numbers of them"
    why += f", mostly for rank {late.rank}"
    if late.cause is None:
        return why, f"compare rank {late.rank} with the others: device clocks, neighbours on its machine, its samples"
    cause = NAMES.get(late.cause, late.cause)
    causes = {
        "data": f"give rank {late.rank} the same storage and loader workers as the others",
        "compute": f"look at rank {late.rank}'s device (clocks, temperature, other jobs) and the size of its batches",
        "h2d": f"look at rank {late.rank}'s copies: pinned memory, its slot on the bus",
        "other": f"move what only rank {late.rank} does (logging, checkpoints) out of the step",
    }
    return f"{why}: it spends more on {cause}", causes[late.cause]


def _communication(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    stall = verdict.stall or "comm"
    seconds = (verdict.share or 0.0) * (facts.summary.mean_ns("step") or 0.0) / 1e9
    where = {"interconnect": " inside the machine", "network": " between machines"}.get(stall, "")
    why = f"communication{where}: {facts.scale.time(seconds)} of a step is not hidden behind computing"
    comm = facts.comm
    if comm is not None:
        why += f", of {facts.scale.time(comm.duration_ns / 1e9)} in {' and '.join(comm.ops[:2])}"
        why += f", {comm.bus_gb_s:.2g} GB/s bus bandwidth" if comm.bus_gb_s else ""
    return why, "larger batches, gradient accumulation with no_sync(), or compressed gradients (bf16_compress_hook)"


def _other(verdict: Verdict, facts: Facts) -> tuple[str, str]:
    why = f"{facts.mean('other')} of a step is outside computing, data and communication"
    if not facts.other_lines:
        return why, "look at what the loop does between the batch and the forward pass, and after the update"
    place, share = facts.other_lines[0]
    return f"{why}, {percent(share)} of it at {place}", "do it less often, or in another thread or process"
