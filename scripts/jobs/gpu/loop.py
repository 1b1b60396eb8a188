"""A loop whose kernels sleep, so that its times are known: with a slow loader, copies, a slow start, or a profiler."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common
import torch
from torch.utils.data import DataLoader, Dataset

WIDTH = 64
COPIES = ("none", "pageable", "pinned", "prefetched", "side")
PROFILER_WARMUP = 3


class Batches(Dataset[torch.Tensor]):
    """The same batch again and again, after a sleep."""

    def __init__(self, batch: torch.Tensor, sleep_s: float, length: int) -> None:
        self.batch, self.sleep_s, self.length = batch, sleep_s, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return self.batch


def copied(kind: str, batches: Iterator[torch.Tensor], device: torch.device) -> Iterator[Callable[[], torch.Tensor]]:
    """What brings each batch to the device in one of the ways; None of them waits for the host's clock."""
    stream = torch.cuda.Stream(device) if kind in ("prefetched", "side") else None
    if kind == "prefetched":
        yield from _prefetched(batches, device, stream)
        return

    def bring(batch: torch.Tensor) -> torch.Tensor:
        if stream is None:
            return batch.to(device, non_blocking=kind == "pinned")
        stream.wait_stream(torch.cuda.current_stream())  # else it is hidden behind the step before
        with torch.cuda.stream(stream):
            there = batch.to(device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)
        there.record_stream(torch.cuda.current_stream())
        return there

    for batch in batches:
        yield lambda batch=batch: bring(batch)  # type: ignore[misc]


def _prefetched(batches: Iterator[torch.Tensor], device: torch.device, stream: Any) -> Any:
    """One ahead, on a stream of its own, handed over by an event."""

    def launch(batch: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            return batch.to(device, non_blocking=True), stream.record_event()

    ahead: list[Any] = []

    def take() -> torch.Tensor:
        there, event = ahead.pop()
        current = torch.cuda.current_stream()
        current.wait_event(event)
        there.record_stream(current)
        return there  # type: ignore[no-any-return]

    for batch in batches:
        if not ahead:
            ahead.append(launch(batch))
        yield take
        ahead.append(launch(batch))


def main() -> None:
    """Trains, and writes the seconds of each step."""
    parser = common.parser(__doc__)
    parser.add_argument("--device-ms", type=float, default=10)
    parser.add_argument("--sleep-ms", type=float, default=0)
    parser.add_argument("--copy", choices=COPIES, default="none")
    parser.add_argument("--mb", type=float, default=64)
    parser.add_argument("--first-s", type=float, default=0)
    parser.add_argument("--profile", type=Path, help="torch's profiler looks at some steps and writes here")
    parser.add_argument("--chrome", type=Path, help="with --profile: the whole trace goes here")
    parser.add_argument("--first-profiled", type=int, default=40)
    parser.add_argument("--profiled-steps", type=int, default=20)
    args = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device())
    rows = round(args.mb * 2**20 / (4 * WIDTH)) if args.copy != "none" else 64
    batch = torch.randn(rows, WIDTH)
    batch = batch if args.copy == "pageable" else batch.pin_memory()
    batch = batch.to(device) if args.copy == "none" else batch
    sleeper = common.Sleeper()
    model = common.Busy(sleeper, args.device_ms, WIDTH).to(device)
    model.first_s = args.first_s
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(Batches(batch, args.sleep_ms / 1000, args.steps), batch_size=None, num_workers=0)
    profiler = _profiler(args) if args.profile else None
    torch.cuda.synchronize()
    steps = common.Steps()
    for bring in copied(args.copy, iter(loader), device):
        steps.mark("data")
        x = bring()
        steps.mark("h2d")
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        steps.mark("end")
        if profiler is not None:
            profiler.step()
    table = steps.table()
    if profiler is not None:
        profiler.stop()
    common.write(args.truth, {"steps": table})


def _profiler(args: Any) -> Any:
    """The user's own, as the tutorials have it; the events of its window are written as begin and end by name."""
    from torch.profiler import ProfilerActivity, profile, schedule

    def keep(profiler: Any) -> None:
        events = [
            (e.name, str(e.device_type).rpartition(".")[2], e.time_range.start / 1e6, e.time_range.end / 1e6)
            for e in profiler.events()
        ]
        if common.REHEARSAL:
            events += _simulated()
        args.profile.write_text(json.dumps(events), encoding="utf-8")
        if args.chrome:
            profiler.export_chrome_trace(str(args.chrome))

    wait = args.first_profiled - PROFILER_WARMUP
    plan = schedule(wait=wait, warmup=PROFILER_WARMUP, active=args.profiled_steps, repeat=1)
    activities = [ProfilerActivity.CPU] + ([] if common.REHEARSAL else [ProfilerActivity.CUDA])
    profiler = profile(activities=activities, schedule=plan, on_trace_ready=keep)
    profiler.start()
    return profiler


def _simulated() -> list[tuple[str, str, float, float]]:
    """What the simulated device has been given so far, as torch's profiler would have it."""
    from scripts.lab.simulated_cuda.classes import StreamBase

    return [(a.name, "CUDA", a.begin_ns / 1e9, a.end_ns / 1e9) for a in StreamBase.machine.activities]


if __name__ == "__main__":
    main()
