"""The memory that a training step takes, measured: what torch's CPU allocator gave out, and the resident set."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from scripts.bench.memory_cases import Case, cases

_WARM_STEPS = 1
STEP_NAME = "the measured step"
"""What a profile calls the step whose peak is asked for."""


def measured(case: Case) -> dict[str, float]:
    """The peak of a steady step in bytes: `peak` by the allocator, `resident` by the growth of the resident set."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        model = case.build()
        optimizer = case.make_optimizer(model)
        batch = case.batch_of(case.batch)
        for _ in range(_WARM_STEPS):
            _step(case, model, optimizer, batch)
        gc.collect()
        with torch.profiler.record_function(STEP_NAME):
            _step(case, model, optimizer, batch)
    resident = _resident_growth(case, model, optimizer, batch)
    kept = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in _kept(model, optimizer)
    }
    return {"peak": peak_of(profile), "resident": resident + sum(kept.values())}


def _step(case: Case, model: torch.nn.Module, optimizer: Any, batch: dict[str, torch.Tensor]) -> None:
    for _ in range(case.grad_accum):
        with case.autocast():
            result = model(**batch)
        (result.loss / case.grad_accum).backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    else:
        model.zero_grad()


def _kept(model: torch.nn.Module, optimizer: Any) -> list[torch.Tensor]:
    states = [] if optimizer is None else optimizer.state.values()
    tensors = [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
    return [*model.parameters(), *model.buffers(), *tensors]


def peak_of(profile: Any) -> float:
    """The most that was allocated at once during the measured step, from what was given and taken since the start."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    step = next(e for e in events if e.get("name") == STEP_NAME and "dur" in e)
    changes = sorted(
        ((float(e["ts"]), e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]"), key=lambda c: c[0]
    )
    alive, highest = 0, 0
    for when, change in changes:
        alive += change
        if step["ts"] <= when <= step["ts"] + step["dur"]:
            highest = max(highest, alive)
    return float(highest)


def _resident_growth(case: Case, model: torch.nn.Module, optimizer: Any, batch: dict[str, torch.Tensor]) -> float:
    """How much the resident set grows in one step, once what is free was given back."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    _step(case, model, optimizer, batch)
    return _status("VmHWM") - before


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


if __name__ == "__main__":
    print(json.dumps(measured(next(case for case in cases() if case.name == sys.argv[1]))))
