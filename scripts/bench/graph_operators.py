"""Operators that a run reads off the autograd graph beside those that `ddlprof features` lists of the same model.

`python -m scripts.bench.graph_operators` (two minutes; needs transformers) runs forward of small versions of known
models on the CPU, reads the graph as a run does, and prints a table: what the run has over what the trace has, and what
reading a node takes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

import torch

from ddlprof.model.operators import Operator, StepOperators
from ddlprof.operators.graph_operators import Step, step_of
from ddlprof.operators.graph_reader import GraphReader, storages, storages_of
from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step
from scripts.bench.memory_cases import Case, cases

_BATCH = 2
_COLUMNS = ("FLOPs", "bytes forward", "bytes backward", "launches forward", "launches backward", "kept", "peak")


def main() -> int:
    """Prints the table, as Markdown."""
    only = sys.argv[1:]
    print(f"| model | nodes | µs a node | ms to work out | {' | '.join(_COLUMNS)} |\n|---|{'---:|' * 10}")
    for case in cases():
        if (only and case.name not in only) or case.frozen or case.grad_accum > 1 or "foreach" in case.optimizer:
            continue
        torch.manual_seed(0)
        reader, read_s, found, work_s = _read(case)
        ratios = _ratios(found, _traced(case))
        nodes = sum(len(graph.nodes) for graph in reader.graphs)
        cells = [f"{ratio:.3f}" if ratio is not None else "" for ratio in ratios]
        print(f"| {case.name} | {nodes} | {read_s / nodes * 1e6:.1f} | {work_s * 1e3:.0f} | {' | '.join(cells)} |")
    return 0


def _read(case: Case) -> tuple[GraphReader, float, Step, float]:
    model, batch = case.build(), case.batch_of(_BATCH)
    with case.autocast():
        loss = model(**batch).loss
    owned = storages([model]) | storages_of(batch.values())
    reader = GraphReader()
    begin = time.thread_time()
    reader.read(loss)
    between = time.thread_time()
    found = step_of(reader, _BATCH, owned)
    if found is None:
        raise SystemExit(f"{case.name}: the graph was given up")
    return reader, between - begin, found, time.thread_time() - between


def _traced(case: Case) -> StepOperators:
    settings = StepSettings(_BATCH, case.precision, "none", checkpointing=case.checkpointing)
    return trace_step(case.build(), lambda size: Inputs([], case.batch_of(size)), settings)


def _ratios(found: Step, traced: StepOperators) -> list[float | None]:
    def sums(operators: Iterable[Operator], phase: str, field: str) -> float:
        return float(sum(each.count * getattr(each, field) for each in operators if phase in ("", each.phase)))

    ratios: list[float | None] = []
    for phase, field in (
        ("", "flops"), ("forward", "bytes"), ("backward", "bytes"), ("forward", "launches"), ("backward", "launches"),
    ):  # fmt: skip
        ratios.append(sums(found.operators, phase, field) / sums(traced.operators, phase, field))
    memory = traced.memory
    if found.saved_bytes is None or memory is None or not memory.saved_bytes or not memory.points:
        return [*ratios, None, None]
    peaks = [max(map(sum, points)) for points in (found.points, memory.points)]
    return [*ratios, found.saved_bytes / memory.saved_bytes, peaks[0] / peaks[1]]


if __name__ == "__main__":
    sys.exit(main())
