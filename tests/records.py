"""What is in the files of a rank, record by record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ddlprof.model import blocks, codec
from ddlprof.store.lines import read_header
from ddlprof.store.step_blocks import as_aggregates, step_arrays, sums_of
from ddlprof.store.tables import StepTable


def records_in(text: Path) -> list[tuple[str, Any]]:
    """The tag and the record of each step (`s`) and sum of steps (`a`), then of each line of a rank's text file."""
    _, *lines = text.read_text(encoding="utf-8").split("\n")
    layouts = read_header(text.read_bytes(), text.name).layouts
    found, _ = blocks.BlockStream(layouts).take(text.with_suffix(".steps").read_bytes())
    arrays = step_arrays(found, layouts)
    rows, seqs, at = [], arrays.seqs.tolist(), 0
    for row, count in zip(StepTable(arrays.steps).rows(), arrays.seq_counts.tolist(), strict=True):
        rows.append(("s", replace(row, first_seqs=tuple(seqs[at : at + count]))))
        at += count
    sums = [("a", each) for each in as_aggregates(sums_of(found, layouts))]
    return [*rows, *sums, *map(codec.decode, lines[:-1])]
