"""Facts about memory and sick machines of which the rules speak, and those about which they must not say a word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddlprof.analysis.health import Moved
from ddlprof.analysis.late_rank import LateRank
from ddlprof.analysis.pauses import Pauses
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.signals import MemoryGrowth
from ddlprof.analysis.slowing import Slowing
from ddlprof.model.health import COUNTERS
from tests.unit.analysis.rules.made_up import ddp, facts

GIB = 2**30
GROWTH = MemoryGrowth(0, "device", 2.0**20, 70.0 * GIB, 50)
SLOWING = Slowing(0, 0.08, 0.12, "compute", 100)
COMPILED = Pauses(0.3, 0.03, 0.2, steps=100)
WORKERS = MemoryGrowth(0, "workers", 2.0**20, 1.0 * GIB, 50)
LEAKING: dict[str, Any] = {"worker_growths": [WORKERS], "free_bytes": 50 * GIB}
ANEW: dict[str, Any] = {"persistent_workers": False, "dataset_samples": 64_000_000, "global_batch": 64}
"""Workers that start anew after a million steps; free memory is used up after 50,000."""
SWAPS = Moved(COUNTERS["swap_pages"], "", 1240.0, 0.92, True, 40)
XID = Moved(COUNTERS["gpu_xid"], "74", 0.2, 0.95, False, 40)

SPEAKS: dict[str, list[Facts]] = {
    "memory_creep": [
        facts(growths=[GROWTH]),
        facts(growths=[MemoryGrowth(0, "process", 2.0**22, 2.0 * GIB, 50)], free_bytes=50 * GIB),
    ],
    "slowing_steps": [
        facts(growths=[GROWTH], slowing=[SLOWING]),
        facts(slowing=[replace(SLOWING, first_s=0.05, beside=True)]),
        facts(slowing=[replace(SLOWING, first_s=0.05, beside=True)], queued_share=0.3, loader_workers=2),
        facts(slowing=[replace(SLOWING, first_s=0.05, beside=True, about="data")], queued_share=0.3, loader_workers=0),
    ],
    "kept_graphs": [facts(kept_graphs=4), facts(kept_graphs=3, peak_rises=2.0**23)],
    "retained_graphs": [facts(retained_graphs=True)],
    "copied_objects": [facts(copied_bytes=GIB), facts(copied_bytes=GIB, free_bytes=4 * GIB)],
    "worker_memory": [
        facts(**LEAKING),
        facts(**LEAKING | {"free_bytes": 2000 * GIB}),
        facts(worker_growths=[WORKERS]),
        facts(**LEAKING, **ANEW),
        facts(**LEAKING, **ANEW | {"persistent_workers": True, "dataset_samples": 64}),
    ],
    "sick_machine": [
        ddp(2, 30, late_rank=LateRank(1, 0.9), moved=[SWAPS]),
        ddp(2, 30, late_rank=LateRank(1, 0.9), moved=[XID, SWAPS]),
    ],
}

SILENT: dict[str, list[Facts]] = {
    "memory_creep": [
        facts(),
        facts(growths=[GROWTH], slowing=[SLOWING]),
        facts(growths=[GROWTH], recompiled=COMPILED),
        facts(growths=[MemoryGrowth(0, "device", 10.0, 1.0 * GIB, 50)]),
    ],
    "slowing_steps": [
        facts(growths=[GROWTH]),
        facts(slowing=[SLOWING]),
        facts(growths=[GROWTH], slowing=[replace(SLOWING, rank=1)]),
        facts(growths=[GROWTH], slowing=[SLOWING], recompiled=COMPILED),
        facts(
            growths=[GROWTH],
            slowing=[SLOWING],
            device="cpu",
            subnormal_of="parameters",
            subnormal_share=0.2,
            subnormal_times=9.0,
        ),
        facts(growths=[GROWTH], slowing=[replace(SLOWING, first_s=0.099)]),
        facts(slowing=[replace(SLOWING, first_s=0.05, beside=True, about="data")], queued_share=0.3, loader_workers=2),
    ],
    "kept_graphs": [
        facts(),
        facts(kept_graphs=0),
        facts(kept_graphs=2, peak_rises=2.0**23),
        facts(kept_graphs=4, growths=[GROWTH]),
        facts(kept_graphs=4, growths=[GROWTH], slowing=[SLOWING]),
    ],
    "retained_graphs": [facts(), facts(retained_graphs=False)],
    "copied_objects": [facts(), facts(copied_bytes=66 * 2**20), facts(copied_bytes=GIB, loader_workers=0)],
    "worker_memory": [
        facts(),
        facts(**LEAKING, loader_workers=0),
        facts(**LEAKING | {"worker_growths": [replace(WORKERS, bytes_per_step=100.0)]}),
        facts(**LEAKING | {"worker_growths": [replace(WORKERS, readings=11)]}),
        facts(**LEAKING, **ANEW | {"dataset_samples": 64 * 40_000}),
    ],
    "sick_machine": [
        facts(),
        ddp(2, 30, late_rank=LateRank(1, 0.9)),
        facts(moved=[SWAPS]),
        ddp(2, 30, late_rank=LateRank(1, 0.9), moved=[replace(SWAPS, steps=9)]),
    ],
}
