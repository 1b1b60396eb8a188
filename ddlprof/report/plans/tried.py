"""All layouts that `ddlprof recommend --layouts auto` tried, as rows for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ddlprof.recommender.plans.plan import cost_usd
from ddlprof.report.json_csv import csv_text

if TYPE_CHECKING:
    from ddlprof.recommender.plans.layouts import TriedOn
    from ddlprof.report.plans.data import Answer

COLUMNS = (
    "cloud", "region", "instance_type", "nodes", "gpus", "layout", "tensor", "pipeline", "virtual", "context",
    "expert", "data", "shard", "recompute", "micro_batch", "grad_accum", "memory_gib_needed", "step_s", "step_low_s",
    "step_high_s", "compute_s", "bubble_s", "interconnect_s", "network_s", "mfu", "tokens_per_s", "time_h", "cost_usd",
    "reason", "other_s",
)  # fmt: skip


def as_csv(answer: Answer) -> str:
    """One row for each layout on each number of machines, with `COLUMNS`; an unknown value is an empty field.

    `reason` is the rule that left a layout out; it is empty for those that were predicted. Time and cost are of the
    whole job, at the price of the first way to pay.
    """
    return csv_text(COLUMNS, _rows(answer))


def time_and_cost(answer: Answer, one: TriedOn) -> tuple[float | None, float | None]:
    """Seconds and USD of the whole job with a layout that was tried; None: not known."""
    estimate, tried = one.tried.estimate, one.tried
    if estimate is None:
        return None, None
    gpus = one.nodes * one.instance.gpus
    batch = tried.layout.data_ranks(gpus) * tried.micro_batch * tried.micro_batches
    time_s = answer.startup_s + math.ceil(answer.samples / batch) * estimate.step_s
    if one.usd_per_hour is None:
        return time_s, None
    return time_s, cost_usd(one.usd_per_hour / one.nodes, one.nodes, time_s, one.instance.cloud)


def _rows(answer: Answer) -> Iterator[dict[str, Any]]:
    for one in answer.tried:
        tried, layout = one.tried, one.tried.layout
        gpus = one.nodes * one.instance.gpus
        time_s, usd = time_and_cost(answer, one)
        yield dict(
            zip(
                COLUMNS,
                (
                    one.instance.cloud, one.region, one.instance.instance_type, one.nodes, gpus, layout.text(),
                    layout.tensor, layout.pipeline, layout.virtual, layout.context, layout.expert,
                    None if gpus % layout.model_ranks else gpus // layout.model_ranks,
                    layout.shard, layout.recompute, tried.micro_batch, tried.micro_batches or None, tried.memory_gib,
                    *_figures(one), None if time_s is None else time_s / 3600, usd, tried.reason or None,
                    tried.estimate and tried.estimate.times.other_s,
                ),
                strict=True,
            )
        )  # fmt: skip


def _figures(one: TriedOn) -> Sequence[float | None]:
    """Step with its interval, its classes but `other`, MFU, and tokens a second."""
    estimate = one.tried.estimate
    if estimate is None:
        return (None,) * 9
    times = estimate.times
    return (
        estimate.step_s, estimate.low_s, estimate.high_s, times.compute_s, times.bubble_s, times.interconnect_s,
        times.network_s, estimate.mfu, estimate.tokens_per_s,
    )  # fmt: skip
