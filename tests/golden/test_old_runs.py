"""Runs written by earlier versions give today the CSV and JSON that they gave then.

`old-runs/NAME/run` is a real run and `old-runs/NAME/expected` what its version made of it. Neither is ever written
anew: a format that moves on gets a new neighbour. What a later version adds, an old run has not measured.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.runs import HERE, golden_outputs

ADVICE = ("next",)
"""The keys whose words may get better."""
OLD_RUNS = sorted((HERE / "old-runs").iterdir())
WORKED_OUT_ANEW = {"findings", "rule", "job", "job.csv", "trace.json"}
"""What later versions work out of what an old run has measured."""


@pytest.mark.parametrize("folder", OLD_RUNS, ids=lambda folder: folder.name)
def test_an_old_run_reads_as_it_did(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    outputs = golden_outputs("run")
    expected = {path.name: path.read_text(encoding="utf-8") for path in (folder / "expected").iterdir()}
    assert expected.keys() == outputs.keys() - {"card.txt", *WORKED_OUT_ANEW}
    for name, text in expected.items():
        assert (without_new_keys if name.endswith(".json") else without_new_columns)(outputs[name], text) == text, name


def without_new_columns(text: str, old: str) -> str:
    """The CSV text with the columns of `old` only, and of a summary with its classes only; the others are empty."""
    columns = next(csv.reader(io.StringIO(old)))
    classes = {row.get("class") for row in csv.DictReader(io.StringIO(old))}
    reader = csv.DictReader(io.StringIO(text))
    written = io.StringIO()
    writer = csv.DictWriter(written, columns, lineterminator="\n")
    writer.writeheader()
    for row in reader:
        assert not any(value for name, value in row.items() if name not in columns)
        if "class" in row and row["class"] not in classes:
            assert not any(value for name, value in row.items() if name != "class")
            continue
        writer.writerow({name: row[name] for name in columns})
    return written.getvalue()


def without_new_keys(text: str, old: str) -> str:
    """The JSON text without the keys that `old` has not; what they hold is nothing."""
    value = json.loads(text)
    return text if _drop_new_keys(value, json.loads(old)) == 0 else _dumped(value)


def _dumped(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _drop_new_keys(value: Any, old: Any) -> int:
    dropped = 0
    if isinstance(value, dict) and isinstance(old, dict):
        for key in value.keys() - old.keys():
            assert _is_nothing(value.pop(key)) or key in WORKED_OUT_ANEW, key
            dropped += 1
        for key in ADVICE:
            if value.get(key) and old.get(key):
                value[key] = old[key]
                dropped += 1
        dropped += sum(_drop_new_keys(value[key], old[key]) for key in value)
    elif isinstance(value, list) and isinstance(old, list):
        dropped += sum(map(_drop_new_keys, value, old))
    return dropped


def _is_nothing(value: Any) -> bool:
    return all(map(_is_nothing, value.values())) if isinstance(value, dict) else not value


def test_what_is_new_is_left_out_of_the_comparison_only_where_it_is_empty() -> None:
    assert without_new_columns("a,new,b\n1,,x\n", "a,b\n1,x\n") == "a,b\n1,x\n"
    assert without_new_columns("a,b\n1,y\n", "a,b\n1,x\n") != "a,b\n1,x\n"
    assert without_new_columns("class,b\na,1\nnew,\n", "class,b\na,1\n") == "class,b\na,1\n"
    with pytest.raises(AssertionError):
        without_new_columns("class,b\na,1\nnew,2\n", "class,b\na,1\n")
    old = _dumped({"a": [{"b": 1}]})
    assert without_new_keys(_dumped({"a": [{"b": 1, "new": None}]}), old) == old
    with pytest.raises(AssertionError):
        without_new_columns("a,new,b\n1,2,x\n", "a,b\n1,x\n")
    with pytest.raises(AssertionError):
        without_new_keys('{"a":[{"b":1,"new":2}]}', old)
