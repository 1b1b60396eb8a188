"""Runs that are damaged, or were made to be."""

from __future__ import annotations

import zipfile
from pathlib import Path

from ddlprof.extensions.sharing.write import share
from ddlprof.store.lines import MAX_DAMAGED_LINES
from tests.golden.runs import simple_run


def test_of_endless_damage_no_more_is_shared_than_anybody_reads(tmp_path: Path) -> None:
    simple_run(tmp_path / "run")
    (path,) = (tmp_path / "run").rglob("rank-0.jsonl")
    path.write_bytes(path.read_bytes() + b"\n" * (MAX_DAMAGED_LINES + 1000))
    share([str(tmp_path / "run")], tmp_path / "run.zip")
    with zipfile.ZipFile(tmp_path / "run.zip") as archive:
        lines = archive.read("attempt-0/rank-0.jsonl").count(b"\n")
    assert MAX_DAMAGED_LINES < lines < MAX_DAMAGED_LINES + 500
