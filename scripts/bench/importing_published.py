"""Published traces by the definitions of the tools that were made for them, beside the classes of an import.

Both are computed here, over the whole trace, from the definitions that their authors publish:

- HTA (`facebookresearch/HolisticTraceAnalysis`): a kernel whose name has `ncclKernel` is communication, one with Memcpy
  or Memset memory, any other computation. From the first to the last kernel, idle is when none runs, compute when a
  computation runs, the rest is non-compute; overlap is the share of communication under which computation runs.
- TraceLens (`AMD-AGI/TraceLens`): kernels with `nccl` in their names are communication, copies memcpy, all others and
  memset computation. Exposed communication is not under computation, exposed memcpy under neither.

The import is made to see the same window: the marks and updates of the trace are left out, so that it is one step.
"""

from __future__ import annotations

import gzip
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

import ddlprof
from ddlprof.importing import import_traces
from scripts.bench.jobs import Limits, print_table

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
OTHERS = "multimem_all_reduce"
"""All-reduces over symmetric memory, which TraceLens' definition takes for computing, as it takes copies inside a
device for copies. `alike` is its formula with both as the import has them."""
LIMIT = 0.005
"""Of the window: times of some traces are whole microseconds, which two ways of joining them round differently."""


def compare(paths: list[Path]) -> int:
    """Prints a row for each trace with a device in it."""
    rows, limits = [], Limits()
    for path in paths:
        opened = gzip.open if path.name.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8") as file:
            trace: dict[str, Any] = json.load(file)
        kernels = pd.DataFrame([e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") in ON_DEVICE])
        if kernels.empty:
            continue
        kernels["end"] = kernels["ts"] + kernels["dur"]
        begin, end = float(kernels["ts"].min()), float(kernels["end"].max())
        theirs, lens = hta(kernels), tracelens(kernels)
        ours = imported(trace, begin, end)
        total = ours["step"]
        shares = {name: value / total for name, value in ours.items()}
        off = abs(shares["comm"] - lens["alike"])
        limits.at_most(f"{path.name}: exposed communication by the same kernels", off, LIMIT)
        limits.at_most(f"{path.name}: idle", abs(shares["idle"] - lens["idle"]), LIMIT)
        rows.append([
            path.name.partition(".")[0], f"{total / 1e3:.1f}",
            *(share_text(theirs[name]) for name in ("idle", "compute", "other", "overlap")),
            *(share_text(lens[name]) for name in ("idle", "compute", "exposed", "memcpy", "alike")),
            *(share_text(shares[name]) for name in ("idle", "compute", "comm", "h2d", "data", "other")),
        ])  # fmt: skip
    print_table(
        ["trace", "window ms", "HTA idle", "compute", "non-compute", "overlap", "TraceLens idle", "compute",
         "exposed comm", "exposed memcpy", "exposed comm, same kernels", "import idle", "compute", "comm", "h2d",
         "data", "other"],
        rows,
    )  # fmt: skip
    return limits.exit_code()


def share_text(share: float) -> str:
    """A dash for what there is none of to take a share of, or what was not measured."""
    return "-" if math.isnan(share) else f"{share:.1%}"


def joined(spans: pd.DataFrame) -> pd.DataFrame:
    """The union of the spans."""
    ordered = spans.sort_values("ts")
    group = (ordered["ts"] > ordered["end"].shift().cummax()).cumsum()
    found: pd.DataFrame = ordered.groupby(group).agg(ts=("ts", "min"), end=("end", "max"))
    return found


def length(*parts: pd.DataFrame) -> float:
    """The length of the union of all parts."""
    spans = joined(pd.concat(parts))
    return float((spans["end"] - spans["ts"]).sum())


def of_kind(kernels: pd.DataFrame, wanted: Callable[[str], bool]) -> pd.DataFrame:
    """Those whose names are wanted."""
    found: pd.DataFrame = kernels[kernels["name"].map(wanted).astype(bool)]
    return found


def hta(kernels: pd.DataFrame) -> dict[str, float]:
    """Shares by the definitions of HTA."""
    comm = of_kind(kernels, lambda name: "ncclKernel" in name)
    compute = of_kind(kernels, lambda name: not any(word in name for word in ("ncclKernel", "Memcpy", "Memset")))
    window = kernels["end"].max() - kernels["ts"].min()
    busy, computing = length(kernels), length(compute)
    overlap = length(comm) + computing - length(comm, compute)
    return {
        "idle": 1 - busy / window,
        "compute": computing / window,
        "other": (busy - computing) / window,
        "overlap": overlap / length(comm) if len(comm) else float("nan"),
    }


def tracelens(kernels: pd.DataFrame) -> dict[str, float]:
    """Shares by the definitions of TraceLens."""
    others = kernels[kernels["cat"] != "gpu_memcpy"]
    comm = of_kind(others, lambda name: "nccl" in name)
    compute = of_kind(others, lambda name: "nccl" not in name)
    window = kernels["end"].max() - kernels["ts"].min()
    inside = pd.concat([kernels[kernels["name"].str.contains("DtoD")], compute])
    other_comm = of_kind(inside, lambda name: OTHERS in name)
    inside = of_kind(inside, lambda name: OTHERS not in name)
    return {
        "idle": 1 - length(kernels) / window,
        "compute": length(compute) / window,
        "alike": (length(comm, other_comm, inside) - length(inside)) / window,
        "exposed": (length(comm, compute) - length(compute)) / window,
        "memcpy": (length(kernels) - length(comm, compute)) / window,
    }


def imported(trace: dict[str, Any], begin: float, end: float) -> dict[str, float]:
    """The classes of an import of the window as one step, in microseconds; `idle` is the device's."""
    kept = [e for e in trace["traceEvents"] if e.get("cat") in ON_DEVICE or _is_loading(e)]
    mark = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "pid": 0, "tid": 0, "ts": begin}
    loading = {(e["pid"], e["tid"]) for e in kept if _is_loading(e)}
    if loading:
        mark["pid"], mark["tid"] = min(loading, key=str)
    content = {"traceEvents": [*kept, {**mark, "dur": end - begin}]}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "window.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        import_traces([path], Path(name) / "run")
        run = ddlprof.load(Path(name) / "run")
        row = run.steps.iloc[0]
        window = run._data.ranks[0].windows[0]
    classes = {each: 1e6 * float(row[f"{each}_s"]) for each in ("step", "compute", "comm", "h2d", "other")}
    classes["data"] = 1e6 * float(row["data_s"]) if pd.notna(row["data_s"]) else math.nan
    return {**classes, "idle": (window.window_ns - window.work_ns) / 1e3}


def _is_loading(event: dict[str, Any]) -> bool:
    return str(event.get("name")).startswith("enumerate(DataLoader)#")
