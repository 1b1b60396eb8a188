"""How far the memory that `recommender` expects of a training step is off from what torch's CPU allocator gives out.

Each job of `memory_cases` trains in a process of its own; what is expected is counted on fake tensors at another batch
and scaled. Limits: 10 % of the measured peak, and at most 5 % under it. Needs transformers.

    python -m scripts.bench.memory_model [NAME...]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

from ddlprof.model.operators import StepOperators
from ddlprof.operators.trace_step import Inputs, StepSettings, trace_step
from ddlprof.recommender import Measurement, Workload
from ddlprof.recommender.compute.memory import JobMemory
from scripts.bench.jobs import Limits, print_table, progress
from scripts.bench.memory_cases import Case, cases

MIB = 2**20
LIMIT, LIMIT_UNDER = 0.10, 0.05


def counted(case: Case, batch: int) -> StepOperators:
    """The step of the job at that batch, as `ddlprof features` counts it: on tensors without data, as CUDA runs it."""
    model = replace(case, checkpointing=False).build()
    # One tensor after the other is what torch's optimizers do on the CPU.
    optimizer = case.optimizer if case.optimizer.endswith(("-fused", "-foreach")) else f"{case.optimizer}-single"
    settings = StepSettings(batch, case.precision, optimizer, checkpointing=case.checkpointing)
    return trace_step(model, lambda size: Inputs([], case.batch_of(size)), settings)


def expected(case: Case, step: StepOperators) -> float:
    """The bytes that torch is expected to give out at the peak of the job's step."""
    run = Measurement(placement=(1,), batch_per_gpu=case.batch, step_s=1.0, precision=case.precision)
    need = JobMemory(Workload(case.name, step=step, measurements=[run])).need(case.batch, 1, case.grad_accum)
    assert need is not None
    return replace(need, context=0.0, workspace=0.0).bytes


def measured(case: Case) -> dict[str, float]:
    """The measured peaks of `memory_truth`, in a new process."""
    command = [sys.executable, "-m", "scripts.bench.memory_truth", case.name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="the jobs; all if none is named")
    names = parser.parse_args(arguments).names
    limits, rows = Limits(), []
    for case in cases():
        if names and case.name not in names:
            continue
        progress(case.name)
        found, guess = measured(case), expected(case, counted(case, case.batch // 2))
        error = guess / found["peak"] - 1
        limits.at_least(f"{case.name}: error", error, -LIMIT_UNDER)
        limits.at_most(f"{case.name}: error", error, LIMIT)
        numbers = [f"{size / MIB:.0f}" for size in (guess, found["peak"], found["resident"])]
        rows.append([case.name, case.precision, case.optimizer, case.batch, *numbers[:2], f"{error:+.1%}", numbers[2]])
    heads = ["job", "precision", "optimizer", "batch", "expected MiB", "allocated MiB", "error", "resident MiB"]
    print_table(heads, rows)
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
