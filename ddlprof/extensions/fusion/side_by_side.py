"""Trainings in separate processes side by side, with which fusing is compared.

`python -m ddlprof.extensions.fusion.side_by_side` is one of these processes. It writes a line when it is ready, waits
for a line, trains, and writes the seconds that it took.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, Any

from ddlprof.base.errors import DdlprofError, UserError
from ddlprof.base.worker_processes import WorkerFailed, WorkerProcesses
from ddlprof.extensions.fusion.hyperparameters import Values
from ddlprof.extensions.fusion.task import TaskSpec

_WARM_UP = 3


def time_beside(
    names: TaskSpec, trials: Sequence[Values], threads: int, steps: int, of_steps: int | None = None
) -> tuple[float, float]:
    """Trains each trial in its own process, all at once. Returns seconds a step, and seconds until all were ready.

    `of_steps`: all steps of a training, if a schedule needs to know.

    The seconds of a step are those of the slowest process. They are processor time if each process has one thread of a
    CPU, which leaves out other work on the machine; else wall time. Raises UserError if a process fails.
    """
    begin = time.perf_counter()
    environment = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    common = {"names": asdict(names), "threads": threads, "steps": steps, "of_steps": of_steps}
    specs = [{**common, "values": values} for values in trials]
    try:
        with WorkerProcesses(
            "ddlprof.extensions.fusion.side_by_side", [[json.dumps(spec)] for spec in specs], environment
        ) as workers:
            workers.read_lines()
            start_s = time.perf_counter() - begin
            workers.write_line(b"go")
            return max(map(float, workers.read_lines())) / steps, start_s
    except WorkerFailed:
        raise UserError("a process that was to train side by side ended early") from None


def _work(spec: dict[str, Any], stdin: IO[bytes], stdout: IO[bytes]) -> None:
    import torch

    from ddlprof.extensions.fusion.training import Alone

    torch.set_num_threads(spec["threads"])
    task = TaskSpec(**spec["names"]).load()
    training = Alone(task, spec["values"], spec["of_steps"])
    epochs = itertools.chain.from_iterable(task.batches(spec["values"]) for _ in itertools.count())

    def train(steps: int) -> None:
        for _ in range(steps):
            training.step(*(batch for batch, _ in itertools.islice(epochs, task.grad_accum)))

    train(_WARM_UP)
    stdout.write(b"ready\n")
    stdout.flush()
    stdin.readline()
    clock = time.process_time if task.device.type == "cpu" and spec["threads"] == 1 else time.perf_counter
    begin = clock()
    train(spec["steps"])
    if task.device.type == "cuda":
        torch.cuda.synchronize()
    stdout.write(b"%.9f\n" % (clock() - begin))
    stdout.flush()


def main() -> int:
    """Runs one process. Output of the user's code is discarded, as stdout is used for the lines."""
    signs = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        _work(json.loads(sys.argv[1]), sys.stdin.buffer, signs)
    except DdlprofError:
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
