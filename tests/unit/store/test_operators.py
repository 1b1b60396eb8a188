"""The operators of a step in a run's files: read back as written, and left out with a word where they cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ddlprof
from ddlprof.model.manifest import OPERATORS_NAME
from ddlprof.model.operators import OPERATORS_SCHEMA, Operator, OperatorsFile, StepMemory, StepOperators
from ddlprof.model.records import Note
from ddlprof.store import load_run
from ddlprof.store.operators import MAX_BYTES
from tests.golden.runs import simple_run

PRODUCT = Operator("product", "forward", "addmm", "fp32", (1, 32, 64, 16), 65_536.0, 14_592.0, 1.0, 2.0, 1, 4352.0)
STEP = StepOperators(
    batch=32,
    precision="amp-bf16",
    operators=(
        PRODUCT,
        replace(PRODUCT, phase="backward", count=0.5, fused_bytes=9000.0, fused_launches=0.0),
        Operator("optimizer", "optimizer", "_fused_adamw_", "fp32", (1088, 2), 0.0, 30_464.0, 1.0, 1.0, None, 30_464.0),
    ),
    optimizer="adamw-fused",
    checkpointing=True,
    memory=StepMemory(4352.0, 4352.0, 100.0, 8.0, 4.0, 5.0, None, None, 2048.0),
    unseen=("autograd function Own (2 calls): its operators are not in the graph",),
)


def run_with(directory: Path, job_id: str = "job", step: StepOperators = STEP) -> Path:
    OperatorsFile(job_id, step).write(simple_run(directory))
    return directory


def test_each_operator_has_a_line(tmp_path: Path) -> None:
    text = (run_with(tmp_path) / OPERATORS_NAME).read_text()
    assert sum(line.startswith('{"kind"') for line in text.splitlines()) == len(STEP.operators)
    assert set(json.loads(text)) == {"schema", "job_id", "step", "operators"}


def test_without_forward_the_workload_has_none(tmp_path: Path) -> None:
    update_only = replace(STEP, operators=STEP.operators[-1:])
    run = run_with(tmp_path, step=update_only)
    assert load_run(run).step == update_only
    assert ddlprof.load(run).workload().step is None


def test_those_of_another_job_are_left_out(tmp_path: Path) -> None:
    run = load_run(run_with(tmp_path, job_id="another"))
    assert run.step is None
    assert run.notes == [
        Note(
            OPERATORS_NAME, "belongs to another job and is left out: the operators of its step are not known"
        )
    ]  # fmt: skip


def changed(run: Path, change: Callable[[Any], Any]) -> Path:
    path = run / OPERATORS_NAME
    value = json.loads(path.read_text())
    result = change(value)
    value = result if result == [] else value
    path.write_text(json.dumps(value))
    return run


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda v: [], "not an object"),
        (lambda v: v.update(schema=OPERATORS_SCHEMA + 1), "written by a newer ddlprof"),
        (lambda v: v.update(schema="1"), "schema: a whole number"),
        (lambda v: v.pop("operators"), "operators"),
        (lambda v: v.update(step=[]), "step"),
        (lambda v: v["step"].update(batch=0), "step.batch: a whole number of 1 or more"),
        (lambda v: v["operators"][0].update(kind="magic"), "operators[0].kind: not a kind"),
        (lambda v: v["operators"][1].update(phase="sideways"), "operators[1].phase: not a phase"),
        (lambda v: v["operators"][0].update(shape=[]), "operators[0].shape: 1 to 16 items"),
        (lambda v: v["operators"][0].update(shape=[1, 0, 2, 3]), "operators[0].shape[1]: a whole number from 1"),
        (lambda v: v["operators"][0].update(shape=[1] * 17), "operators[0].shape: 1 to 16 items"),
        (lambda v: v["operators"][0].update(shape=[1, 2]), "operators[0].shape: 4 sizes are expected of kind product"),
        (lambda v: v["operators"][0].update(grows=4), "operators[0].grows: there is no such size"),
        (lambda v: v["operators"][0].update(bytes=-1), "operators[0].bytes"),
        (lambda v: v["operators"][0].update(flops="many"), "operators[0].flops"),
        (lambda v: v["operators"][0].update(fixed_bytes=1e9), "operators[0].fixed_bytes: more than all bytes"),
        (lambda v: v.update(operators=v["operators"] * 5000), "operators: at most 10000 are expected"),
        (lambda v: v["step"].update(unseen=7), "step.unseen"),
    ],
)
def test_what_cannot_be_is_left_out_with_a_word(tmp_path: Path, change: Callable[[Any], Any], why: str) -> None:
    run = load_run(changed(run_with(tmp_path), change))
    assert run.step is None
    assert run.ranks
    (note,) = run.notes
    assert note.source == OPERATORS_NAME
    assert note.message.startswith("unreadable (")
    assert why in note.message
    assert note.message.endswith(": the operators of its step are not known")


def test_a_huge_file_is_not_parsed(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    with (run / OPERATORS_NAME).open("ab") as file:
        file.truncate(MAX_BYTES + 1)
    (note,) = load_run(run).notes
    assert "too large" in note.message


def test_the_file_alone_makes_no_run(tmp_path: Path) -> None:
    """And a folder of runs stays one when there is such a file of somebody else's in it."""
    simple_run(tmp_path / "part")
    (tmp_path / OPERATORS_NAME).write_text("{}")
    assert len(load_run(tmp_path).ranks) == 1
