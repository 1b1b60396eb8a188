"""Writes ranks as ddlprof did until November 2026 (schema 2)."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path

from ddlprof.model import codec
from ddlprof.model.codec import COLUMNS
from ddlprof.model.records import Aggregate, CollectiveShape, CollectiveTimes, RankHeader, StepRow
from tests.golden.runs import Record


def step_line(row: StepRow) -> str:
    """The line of a step."""
    values = [getattr(row, f.name) for f in fields(StepRow)[:-1]]
    return json.dumps(["s", *values, *row.first_seqs], separators=(",", ":")) + "\n"


def write_old_rank(
    directory: Path,
    head: RankHeader,
    rows: Sequence[StepRow],
    shapes: Sequence[CollectiveShape] = (),
    times: Sequence[CollectiveTimes] = (),
    records: Sequence[Record] = (),
    lines: Sequence[str] = (),
) -> Path:
    """Writes the files of one rank; returns the text file."""
    path = directory / f"attempt-{head.attempt}" / f"rank-{head.rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = [json.dumps({**asdict(replace(head, schema=2)), "columns": COLUMNS}, separators=(",", ":")) + "\n"]
    if shapes:
        text.append(codec.encode_signature(0, list(shapes)))
    text += map(step_line, rows)
    text += [_sums_line(each) if isinstance(each, Aggregate) else codec.encode(each) for each in records]
    path.write_text("".join([*text, *lines]), encoding="utf-8")
    packed = [struct.pack("<4I", t.ready_us, t.end_us, t.need_us, t.exposed_us) for t in times]
    path.with_suffix(".collectives").write_bytes(b"".join(packed))
    return path


def _sums_line(sums: Aggregate) -> str:
    return json.dumps(["a", *(getattr(sums, f.name) for f in fields(Aggregate)[:-1])], separators=(",", ":")) + "\n"
