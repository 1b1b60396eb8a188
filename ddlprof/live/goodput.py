"""The goodput of a job that is watched, by the sums kept of each attempt, as `ddlprof report --goodput` has it.

What an attempt did beside steps is not told apart here; the share does not need it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddlprof.analysis.goodput import goodput
from ddlprof.analysis.trials import reads_of, saves_of
from ddlprof.live.growing import GrowingRank
from ddlprof.model.records import RankHeader
from ddlprof.model.trial import IDLE, STEPS, AttemptFacts


def goodput_share(attempts: Iterable[Sequence[GrowingRank]]) -> float | None:
    """The share of the time of all machines in which the job made progress; None before the first usual step."""
    trials = [trial for ranks in attempts if (trial := _trial(ranks)) is not None]
    found = goodput(trials)
    return found.share if found is not None and found.useful_s > 0 else None


def _trial(ranks: Sequence[GrowingRank]) -> AttemptFacts | None:
    known: list[tuple[RankHeader, GrowingRank]] = [(each.header, each) for each in ranks if each.header is not None]
    if not known:
        return None
    header, first = min(known, key=lambda each: each[0].rank)
    begin_ns = min(head.origin_unix_ns - (head.age_ns or 0) for head, _ in known)
    end_ns = max(each.last_entry_unix_ns for _, each in known)
    wall_s = max(0.0, (end_ns - begin_ns) / 1e9)
    steps_s = min(first.sums.measured_ns().get("step", 0) / 1e9, wall_s)
    files = [file for _, each in known for file in each.checkpoint_files]
    return AttemptFacts(
        begin_unix_s=begin_ns / 1e9,
        end_unix_s=begin_ns / 1e9 + wall_s,
        ranks=header.world_size,
        machines=len({head.node_id for head, _ in known}),
        steps=max(each.sums.steps for _, each in known),
        step_s=first.sums.usual_s,
        parts_s={STEPS: steps_s, IDLE: wall_s - steps_s},
        status=first.end.status if first.end is not None else "torn",
        device=header.device,
        saves=saves_of(files),
        reads=reads_of(files),
    )
