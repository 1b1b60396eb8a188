"""All layouts that `ddlprof recommend --layouts auto` tried, as rows for programs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ddlprof.recommender.plans.plan import cost_usd
from ddlprof.report.table import Column, Table, fields

if TYPE_CHECKING:
    from ddlprof.recommender.plans.layouts import TriedOn
    from ddlprof.report.plans.data import Answer

_TIMES = ("compute_s", "bubble_s", "interconnect_s", "network_s")


def table(answer: Answer) -> Table[TriedOn]:
    """The layouts, each on a number of machines.

    `reason` is the rule that left a layout out; it is empty for those that were predicted. Time and cost are of the
    whole job, at the price of the first way to pay.
    """
    return Table(
        *fields("cloud=instance.cloud", "region", "instance_type=instance.instance_type", "nodes", "gpus"),
        Column("layout", lambda one: one.tried.layout.text()),
        *fields(*(f"{name}=tried.layout.{name}" for name in ("tensor", "pipeline", "virtual", "context", "expert"))),
        Column("data", _data_ranks),
        *fields("shard=tried.layout.shard", "recompute=tried.layout.recompute", "micro_batch=tried.micro_batch"),
        Column("grad_accum", lambda one: one.tried.micro_batches or None),
        *fields("memory_gib_needed=tried.memory_gib", "step_s=tried.estimate.step_s"),
        *fields("step_low_s=tried.estimate.low_s", "step_high_s=tried.estimate.high_s"),
        *fields(*(f"{name}=tried.estimate.times.{name}" for name in _TIMES)),
        *fields("mfu=tried.estimate.mfu", "tokens_per_s=tried.estimate.tokens_per_s"),
        Column("time_h", lambda one: None if (time_s := time_and_cost(answer, one)[0]) is None else time_s / 3600),
        Column("cost_usd", lambda one: time_and_cost(answer, one)[1]),
        Column("reason", lambda one: one.tried.reason or None),
        *fields("other_s=tried.estimate.times.other_s"),
    )


def as_csv(answer: Answer) -> str:
    """One row for each layout on each number of machines; an unknown value is an empty field."""
    return table(answer).csv(answer.tried)


def time_and_cost(answer: Answer, one: TriedOn) -> tuple[float | None, float | None]:
    """Seconds and USD of the whole job with a layout that was tried; None: not known."""
    estimate, tried = one.tried.estimate, one.tried
    if estimate is None:
        return None, None
    batch = tried.layout.data_ranks(one.gpus) * tried.micro_batch * tried.micro_batches
    time_s = answer.startup_s + math.ceil(answer.samples / batch) * estimate.step_s
    if one.usd_per_hour is None:
        return time_s, None
    return time_s, cost_usd(one.usd_per_hour / one.nodes, one.nodes, time_s, one.instance.cloud)


def _data_ranks(one: TriedOn) -> int | None:
    ranks, rest = divmod(one.gpus, one.tried.layout.model_ranks)
    return None if rest else ranks
