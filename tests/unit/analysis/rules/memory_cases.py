"""Facts about memory of which the rules speak, and those about which they must not say a word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.signals import MemoryGrowth
from tests.unit.analysis.rules.made_up import facts

GIB = 2**30
WORKERS = MemoryGrowth(0, "workers", 2.0**20, 1.0 * GIB, 50)
LEAKING: dict[str, Any] = {"worker_growths": [WORKERS], "free_bytes": 50 * GIB}
ANEW: dict[str, Any] = {"persistent_workers": False, "dataset_samples": 64_000_000, "global_batch": 64}
"""Workers that start anew after a million steps; free memory is used up after 50,000."""

SPEAKS: dict[str, list[Facts]] = {
    "retained_graphs": [facts(retained_graphs=True)],
    "copied_objects": [facts(copied_bytes=GIB), facts(copied_bytes=GIB, free_bytes=4 * GIB)],
    "worker_memory": [
        facts(**LEAKING),
        facts(**LEAKING | {"free_bytes": 2000 * GIB}),
        facts(worker_growths=[WORKERS]),
        facts(**LEAKING, **ANEW),
        facts(**LEAKING, **ANEW | {"persistent_workers": True, "dataset_samples": 64}),
    ],
}

SILENT: dict[str, list[Facts]] = {
    "retained_graphs": [facts(), facts(retained_graphs=False)],
    "copied_objects": [facts(), facts(copied_bytes=40 * 2**20), facts(copied_bytes=GIB, loader_workers=0)],
    "worker_memory": [
        facts(),
        facts(**LEAKING, loader_workers=0),
        facts(**LEAKING | {"worker_growths": [replace(WORKERS, bytes_per_step=100.0)]}),
        facts(**LEAKING | {"worker_growths": [replace(WORKERS, readings=11)]}),
        facts(**LEAKING, **ANEW | {"dataset_samples": 64 * 40_000}),
    ],
}
