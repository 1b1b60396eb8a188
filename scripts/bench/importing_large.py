"""An import of a trace as large as asked for, made by repeating a real one: time and memory of the whole command."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from scripts.bench.machine import describe

_IDS = ("correlation", "External id")
_APART = 1_000_000_000
"""Copies of one trace have other ids and other times."""


def measure(trace: Path, size: int) -> int:
    """Makes the trace in the working directory, imports it, prints what that took, and removes it."""
    print(describe())
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        large = Path(name) / "large.json"
        # In a process of its own: a child is born with the memory of this one, which would be taken for its peak.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            copies = pool.submit(write_large, trace, large, size).result()
        began = time.monotonic()
        command = [sys.executable, "-m", "ddlprof", "import", str(large), "--out", str(Path(name) / "run")]
        _, status, used = os.wait4(subprocess.Popen(command).pid, 0)  # of this child alone
        wall_s = time.monotonic() - began
        if status:
            return 1
        print(
            f"{trace.name} x {copies}, {large.stat().st_size / 1e9:.2f} GB: {wall_s:.0f} s, "
            f"{used.ru_utime + used.ru_stime:.0f} s of processor time, peak {used.ru_maxrss / 1024:.0f} MiB resident"
        )
    return 0


def write_large(trace: Path, large: Path, size: int) -> int:
    """Repeats a trace until the copy has `size` bytes; returns how often."""
    opened = gzip.open if trace.name.endswith(".gz") else open
    with opened(trace, "rt", encoding="utf-8") as file:
        whole: dict[str, Any] = json.load(file)
    events = [event for event in whole["traceEvents"] if "ts" in event]
    span = max(e["ts"] + e.get("dur", 0) for e in events) - min(e["ts"] for e in events) + 1000
    copies = 0
    with large.open("w", encoding="utf-8") as out:
        out.write('{"schemaVersion": 1, "traceEvents": [')
        while out.tell() < size:
            out.write(",\n".join(json.dumps(each) for each in _copy(events, copies, span)) + ",\n")
            copies += 1
        beside = {key: value for key, value in whole.items() if key in ("distributedInfo", "deviceProperties")}
        out.write('{"ph": "i", "name": "end", "ts": 0}], ' + json.dumps(beside)[1:])
    return copies


def _copy(events: list[dict[str, Any]], number: int, span: float) -> Iterator[dict[str, Any]]:
    for event in events:
        args = event.get("args")
        if isinstance(args, dict):
            args = {key: value + number * _APART if key in _IDS and value else value for key, value in args.items()}
            event = {**event, "args": args}
        name = event["name"]
        if name.startswith("ProfilerStep#"):
            name = f"ProfilerStep#{int(name.partition('#')[2]) + 1000 * number}"
        yield {**event, "name": name, "ts": event["ts"] + number * span}
