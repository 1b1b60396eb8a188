"""Comparisons of runs made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ddlprof.analysis.run import analyse
from ddlprof.report.compare.data import ComparisonData, build
from ddlprof.report.run.formats import Analysed
from ddlprof.store import load_run
from tests.golden.runs import NOW_UNIX_NS, manifest, simple_run


def analysed(folder: Path | str) -> Analysed:
    """A run as the command reads it."""
    run = load_run(folder)
    return Analysed(run, analyse(run), NOW_UNIX_NS)


def compared(folder: Path, name: str) -> ComparisonData:
    """A run against one in which everything that has a name has this one."""
    a, b = (simple_run(folder / letter, steps=100) for letter in "ab")
    described = manifest()
    replace(
        described,
        name=name,
        argv=["train.py", name],
        host={"cpu_model": f"cpu {name}", f"key {name}": "known"},
        versions={"torch": f"2 {name}"},
        model=replace(described.model, name=f"model {name}"),
        training=replace(described.training, optimizer=f"optimizer {name}"),
    ).write(b)
    return replace_runs(build([analysed(a)], [analysed(b)], []), name)


def replace_runs(data: ComparisonData, name: str) -> ComparisonData:
    """The same with a path of this name, and a rank that did not end."""
    runs = [replace(run, run=f"runs/{name}", complete_ranks=0) for run in data.b.runs]
    return replace(data, b=replace(data.b, runs=runs * 2))
