"""The columns of the blocks of steps, which are the fields of `StepRow`."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

from ddlprof.model.blocks import COLLECTIVES, FIRST_SEQS, LAYOUTS, STEP, STEP_FIELDS, encode_row
from ddlprof.model.records import StepRow
from tests.golden.runs import step


def test_all_fields_but_the_sequence_numbers_are_columns() -> None:
    names = [name for name, _ in LAYOUTS[STEP.decode()]]
    assert names == [f.name for f in fields(StepRow) if f.name != FIRST_SEQS] + [FIRST_SEQS, COLLECTIVES]
    assert all(len({name for name, _ in columns}) == len(columns) for columns in LAYOUTS.values())


def test_each_is_an_integer() -> None:
    types = get_type_hints(StepRow)
    assert {kind for name in STEP_FIELDS for kind in get_args(types[name]) or [types[name]]} == {int, type(None)}


def test_a_step_without_collectives_is_as_short_as_any() -> None:
    kind, _ = encode_row(step(0, compute_ms=1), 0)
    assert kind == STEP
