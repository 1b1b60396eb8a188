"""Facts of jobs that nobody ran."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ddlprof.analysis.rules.facts import DeviceFacts, Facts, HostFacts, ProfilerWindow, Reductions
from ddlprof.analysis.summary import Spread, Summary
from ddlprof.model.classes import TIMES
from ddlprof.model.manifest import ModelFacts, TrainingFacts
from tests.golden.runs import MS

PARTS = ("compute", "data", "h2d", "comm", "other")


def summary(means_ms: dict[str, float | None], standard_error_ms: float = 0.0) -> Summary:
    """Means in milliseconds; classes not named are a measured zero, parts not named are not known."""
    named: dict[str, Any] = dict.fromkeys(PARTS, 0.0) | means_ms
    named["step"] = sum(named[name] or 0 for name in PARTS)
    spreads = {
        name: Spread(None if (mean := named.get(name)) is None else mean * MS, None, None, standard_error_ms * MS)
        for name in TIMES
    }
    return Summary(spreads, 100, 0)


def facts(means_ms: dict[str, float | None] | None = None, **known: Any) -> Facts:
    """A healthy job of 100 steps of 100 ms on one H100, with these means and facts."""
    values: dict[str, Any] = {
        "summary": summary(means_ms or {"compute": 97, "data": 1, "other": 2}),
        "device": "NVIDIA H100 80GB HBM3",
        "steady_steps": 100,
        "loader_workers": 4,
        "prefetch_factor": 2,
        "pin_memory": True,
        "cores_per_rank": 8,
        "cpu_percent": 40.0,
        "cpu_threads": 1,
        "precision": "amp-bf16",
        "compiled": True,
        "strategy": "none",
        "micro_batches": 1,
        "comm_hook": "",
        "gradient_bytes": 100_000_000,
        "memory_bytes": 80 * 2**30,
        "peak_bytes": 70 * 2**30,
        "samples_per_step": 32.0,
    }
    return facts_of(**(values | known))


def facts_of(**known: Any) -> Facts:
    """Facts with these fields, of their parts too."""
    kinds = {"training": TrainingFacts, "model": ModelFacts, "host": HostFacts, "devices": DeviceFacts}
    parts = {
        part: kind(**{each.name: known.pop(each.name) for each in fields(kind) if each.name in known})
        for part, kind in kinds.items()
    }
    return Facts(**parts, **known)


def ddp(moving_ms: float, straggler_ms: float = 0.0, **known: Any) -> Facts:
    """Two ranks under DDP that exchange 100 MB in four messages."""
    parts = {"comm": moving_ms + straggler_ms, "straggler": straggler_ms, "network": 0.0, "interconnect": moving_ms}
    means: dict[str, float | None] = {
        "compute": 98 - moving_ms - straggler_ms,
        "compute_backward": 40.0,
        "other": 2.0,
        **parts,
    }
    reductions = Reductions(4, 0, 26_214_400, 0.03, moving_ms / 1000, 0.005)
    values: dict[str, Any] = {"world_size": 2, "strategy": "ddp", "reductions": reductions}
    return facts(means, **(values | known))


WINDOW = ProfilerWindow(updates=6, idle_share=0.35, kernels=900.0, kernel_s=8e-6)
