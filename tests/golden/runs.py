"""Run directories made by hand, for golden files and for the tests of everything after the run.

`python -m tests.golden.runs` writes the golden run and what its reports must look like anew: look at the difference
before committing it. `recorded` has real runs: of two ranks on a CPU, one
with the operators of a step and one by a version that had fewer columns.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from ddlprof.model import blocks, codec
from ddlprof.model.manifest import Manifest, ModelFacts, TrainingFacts
from ddlprof.model.records import (
    Aggregate,
    CollectiveShape,
    CollectiveTimes,
    ContextRow,
    End,
    Flag,
    JobSpan,
    Overhead,
    RankHeader,
    StepRow,
)
from ddlprof.model.source_locations import SourceLocation
from ddlprof.writing.step_buffer import StepBuffer

Record: TypeAlias = codec.Record | Aggregate

HERE = Path(__file__).parent
GOLDEN_RUN = "two-ranks"
COMPARED = (GOLDEN_RUN, "recorded/operators")
ORIGIN_UNIX_NS = 1_767_261_600_000_000_000
NOW_UNIX_NS = ORIGIN_UNIX_NS + 300 * 10**9
MS = 1_000_000

SHAPES = (CollectiveShape("0", "allreduce", 400_000, 2), CollectiveShape("0", "allreduce", 100_000, 2))


def header(rank: int = 0, world_size: int = 1, attempt: int = 0, node: str = "a", device: str = "cpu") -> RankHeader:
    """The first line of a rank's file; ranks start a millisecond after each other."""
    late_ns = rank * MS
    return RankHeader(rank, world_size, rank, attempt, f"host-{node}", node, 100 + rank, device, "host",
                      5_000 + late_ns, ORIGIN_UNIX_NS + late_ns)  # fmt: skip


def step(
    number: int,
    compute_ms: float | None = 8,
    data_ms: float | None = 1,
    other_ms: float = 1,
    comm_ms: float | None = 0,
    flags: int = 0,
    start_ms: float | None = None,
    split: tuple[float, float] | None = None,
) -> StepRow:
    """A step whose classes add up; `split` is fetch and prep in milliseconds. By default it lasts 10 ms."""
    compute = None if compute_ms is None else round(compute_ms * MS)
    other = round(other_ms * MS)
    data = None if data_ms is None else round(data_ms * MS)
    comm = None if comm_ms is None else round(comm_ms * MS)
    total = (compute or 0) + other + (data or 0) + (comm or 0)
    start = number * total if start_ms is None else round(start_ms * MS)
    fetch, prep = (None, None) if split is None else (round(split[0] * MS), round(split[1] * MS))
    return StepRow(number, start, total, compute, data, fetch, prep, 0, comm, other, 1, 32, flags)


def with_collectives(row: StepRow, first_seqs: tuple[int, ...], signature: int = 0) -> StepRow:
    """The same step with a signature."""
    values = {name: getattr(row, name) for name in row.__slots__}
    return StepRow(**{**values, "signature": signature, "first_seqs": first_seqs})


def write_rank(
    directory: Path,
    head: RankHeader,
    rows: Sequence[StepRow],
    shapes: Sequence[CollectiveShape] = (),
    times: Sequence[CollectiveTimes] = (),
    records: Sequence[Record] = (),
    lines: Sequence[str] = (),
) -> Path:
    """Writes the files of one rank; returns the text file. Steps with a signature have a time for each shape."""
    folder = directory / f"attempt-{head.attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{head.rank}.jsonl"
    text = [codec.encode_header(head)]
    if shapes:
        text.append(codec.encode_signature(0, list(shapes)))
    buffer, left = StepBuffer(), list(times)
    for row in rows:
        count = 0 if row.signature < 0 else len(shapes)
        buffer.keep(row, left[:count])
        left = left[count:]
    steps = buffer.take()
    sums = [record for record in records if isinstance(record, Aggregate)]
    if sums:
        packed = b"".join(map(blocks.encode_sums, sums))
        steps += blocks.encode_block(blocks.SUMS, number_of_blocks(steps), (len(sums), 0, 0), packed)
    text += [codec.encode(record) for record in records if not isinstance(record, Aggregate)]
    path.write_text("".join([*text, *lines]), encoding="utf-8")
    path.with_suffix(".steps").write_bytes(steps)
    return path


def number_of_blocks(steps: bytes) -> int:
    """How many undamaged blocks a file of steps has."""
    return len(blocks.BlockStream(blocks.LAYOUTS).take(steps)[0])


def manifest(world_size: int = 1, workers: int | None = 0) -> Manifest:
    """A small image classifier."""
    return Manifest(
        name="train",
        argv=["train.py", "--epochs", "1"],
        job_id="job",
        created_unix_ns=ORIGIN_UNIX_NS,
        world_size=world_size,
        origin_unix_ns=ORIGIN_UNIX_NS,
        host={"available_cores": 8},
        model=ModelFacts("SmallNet", 4, 8, 125_000, 500_000, 1e6, 2e6, False),
        training=TrainingFacts("SGD", 32, 32 * world_size, 1, "fp32", "ddp" if world_size > 1 else "none", "gloo",
                               1797, workers),
    )  # fmt: skip


def simple_run(directory: Path, steps: int = 40, **kwargs: float | None) -> Path:
    """One rank that ended well; `kwargs` go to every step."""
    end = End("ok", 0, steps * 10 * MS)
    rows = [step(n, **kwargs) for n in range(steps)]  # type: ignore[arg-type]
    write_rank(directory, header(), rows, records=[Overhead(20_000 * steps, steps, 5 * MS, 1000 * MS), end])
    manifest().write(directory)
    return directory


def ddp_step(rank: int, number: int) -> tuple[StepRow, list[CollectiveTimes]]:
    """A step of two ranks of which rank 1 waits 20 ms longer for its data, so that rank 0 waits for rank 1.

    Two all-reduces, of 6 and 4 ms; the first hides behind backward on rank 1. In milliseconds since the step's start:
    rank 0 issues them at 45 and 65, rank 1 at 65 and 85, they end at 71 and 89 for both.
    """
    data = 5 + 20 * rank
    more = (number * 7) % 5 / 10  # steps differ a little
    flags = Flag(0)
    other = 5.0
    if number == 0:
        flags, other = Flag.EPOCH_START, 900.0
    if number == 15 and rank == 0:
        flags, other = Flag.CHECKPOINT, 55.0
    backward_end = data + 60 + more
    ready = (data + 40 + more, backward_end)
    end = (71 + more, 89 + more)
    exposed = (max(0.0, end[0] - backward_end), end[1] - max(backward_end, end[0]))
    comm = sum(exposed)
    row = step(number, 61 + more, data, other, comm, int(flags), 1000 + number * 100, (data * 0.9, data * 0.05))
    if number != 7:  # of which the parts of computing could not be told
        forward, backward = 20 * MS, 35 * MS
        row = replace(
            row,
            compute_forward_ns=forward,
            compute_backward_ns=backward,
            compute_optimizer_ns=(row.compute_ns or 0) - forward - backward,
        )
    row = replace(row, peak_memory_bytes=(410 + rank + min(number, 3)) << 20)
    times = [
        CollectiveTimes(round(r * 1000), round(e * 1000), round(backward_end * 1000), round(x * 1000))
        for r, e, x in zip(ready, end, exposed, strict=True)
    ]
    return with_collectives(row, (2 * number,)), times


def write_golden_run(directory: Path) -> None:
    """Two ranks under DDP, 30 steps; rank 1 was killed while it wrote its 26th step."""
    for rank, steps in ((0, 30), (1, 26)):
        head = replace(header(rank, 2), age_ns=500 * MS, spans=True)
        made = [ddp_step(rank, number) for number in range(steps)]
        records: list[Record] = [
            ContextRow(1000 * MS, 55.0 + rank, 8 << 30, (400 + rank) << 20, None, None, None, (413 + rank) << 20),
            Overhead(30 * 31_000, 30, 12 * MS, 4200 * MS),
        ]
        if rank == 0:
            # From the end of step 14 on, and 50 ms long.
            records.append(JobSpan("checkpoint", 2500 * MS, 50 * MS))
            records.append(End("exception", 1, 4300 * MS))
        places = [
            codec.encode_location(n, SourceLocation(text))
            for n, text in enumerate(("train.py:41 log", "train.py:52 save"))
        ]
        samples = [*places, codec.encode_samples(10, {0: 9, 1: 3})]
        notes = [codec.encode_note("h2d", "not measured: an example")] if rank == 0 else []
        path = write_rank(
            directory,
            head,
            [row for row, _ in made],
            SHAPES,
            [t for _, times in made for t in times],
            records,
            [*samples, *notes],
        )
        if rank == 1:
            buffer = StepBuffer()
            for row, times in made[:-1]:
                buffer.keep(row, times)
            written = buffer.take()
            buffer.keep(*made[-1])
            path.with_suffix(".steps").write_bytes(written + buffer.take()[:80])
    manifest(2, workers=2).write(directory)


def golden_outputs(name: str = GOLDEN_RUN) -> dict[str, str]:
    """Every report of a run, by file name. They show its path, so be in its folder."""
    import tempfile

    from ddlprof.analysis.run import analyse
    from ddlprof.report.run import csv, trace
    from ddlprof.report.run import text as card
    from ddlprof.report.run.data import build_report
    from ddlprof.report.run.formats import as_json
    from ddlprof.store import load_run

    run = load_run(name)
    attempts = analyse(run)
    report = build_report(run, attempts, NOW_UNIX_NS)
    outputs = {"card.txt": card.render(report), "report.json": as_json(report)}
    outputs["trace.json"] = "".join(trace.render(run, attempts))
    with tempfile.TemporaryDirectory() as folder:
        for path in csv.export(run, attempts, Path(folder)):
            outputs[path.name] = path.read_text(encoding="utf-8")
    return outputs


def golden_comparison(a: str, b: str) -> dict[str, str]:
    """A comparison of two runs in every format but the page, by file name. They show paths, so be in their folder."""
    from ddlprof.analysis.compare import parse_gates
    from ddlprof.analysis.run import analyse
    from ddlprof.report.compare.data import build
    from ddlprof.report.compare.formats import FORMATS
    from ddlprof.report.run.formats import Analysed
    from ddlprof.store import load_run

    sides = [[Analysed(run, analyse(run), NOW_UNIX_NS)] for run in map(load_run, (a, b))]
    data = build(sides[0], sides[1], parse_gates("step=5%,data=1ms"))
    return {f"{name}.txt": render(data) for name, render in FORMATS.items() if name != "html"}


def main() -> None:
    """Writes the golden run, its outputs, and a comparison with it."""
    os.chdir(HERE)
    write_golden_run(HERE / GOLDEN_RUN)
    write_expected(HERE / f"{GOLDEN_RUN}-expected", golden_outputs())
    write_expected(HERE / "compared-expected", golden_comparison(*COMPARED))


def write_expected(folder: Path, outputs: Mapping[str, str]) -> None:
    """One file for each output."""
    folder.mkdir(exist_ok=True)
    for file, text in outputs.items():
        (folder / file).write_text(text, encoding="utf-8")
    sys.stdout.write(f"wrote {folder}\n")


if __name__ == "__main__":
    main()
