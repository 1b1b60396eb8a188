"""Parquet files: the values of the CSV files with types, read back by DuckDB, a partition for each run."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.analysis.run import analyse
from ddlprof.base.errors import UserError
from ddlprof.cli.app import main
from ddlprof.report.run import csv as csv_files
from ddlprof.report.run import parquet
from ddlprof.report.run.tables import RunTable
from ddlprof.store import load_run
from ddlprof.store.reader import runs_in
from tests.golden.runs import HERE, header, manifest, simple_run, step, write_rank

duckdb = pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

RECORDED = sorted((HERE / "recorded").iterdir())


def export(directory: Path, out: Path) -> list[Path]:
    run = load_run(directory)
    return parquet.export(run, analyse(run), out)


def query(out: Path, table: str, columns: str = "*") -> tuple[list[str], list[tuple[Any, ...]]]:
    """The names of the columns, and the rows of all runs in `out`."""
    where = str(out / table / "*" / "*" / "*.parquet")
    with duckdb.connect() as database:
        found = database.execute(f"SELECT {columns} FROM read_parquet(?, hive_partitioning=true)", [where])
        return [column[0] for column in found.description], found.fetchall()


def as_csv(value: Any) -> str:
    """A value as the CSV files have it."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("directory", [HERE / "two-ranks", *RECORDED], ids=lambda path: path.name)
def test_duckdb_reads_the_values_of_the_csv_files(directory: Path, tmp_path: Path) -> None:
    run = load_run(directory)
    export(directory, tmp_path / "parquet")
    for path in csv_files.export(run, analyse(run), tmp_path / "csv"):
        with path.open(encoding="utf-8", newline="") as file:
            header_row, *rows = csv.reader(file)
        names, found = query(tmp_path / "parquet", path.stem)
        assert names == [*header_row, "job", "run"]
        assert [[as_csv(value) for value in row[:-2]] for row in found] == rows
        assert {row[-2:] for row in found} <= {(run.name, run.manifest.job_id if run.manifest else "run")}


def test_types(tmp_path: Path) -> None:
    export(HERE / "two-ranks", tmp_path)
    names, rows = query(tmp_path, "steps")
    row = dict(zip(names, rows[0], strict=True))
    kinds = {name: type(row[name]) for name in ("rank", "start_s", "samples", "flags")}
    assert kinds == {"rank": int, "start_s": float, "samples": int, "flags": str}
    assert query(tmp_path, "ranks", "complete")[1] == [(True,), (False,)]


def test_not_measured_is_null_and_no_flag_is_an_empty_text(tmp_path: Path) -> None:
    write_rank(tmp_path / "run", header(), [step(n, data_ms=None) for n in range(9)])
    export(tmp_path / "run", tmp_path)
    rows = query(tmp_path, "steps", "data_s, h2d_s, peak_memory_bytes, flags")[1]
    assert rows[5] == (None, 0.0, None, "")


def test_runs_with_and_without_rows_have_one_schema(tmp_path: Path) -> None:
    from pyarrow.parquet import read_schema

    simple_run(tmp_path / "simple")
    write_rank(tmp_path / "empty", header(), [])
    paths = [path for name in ("simple", "empty") for path in export(tmp_path / name, tmp_path / "out")]
    paths += export(HERE / "two-ranks", tmp_path / "other")
    for table in ("steps", "collectives", "ranks", "job", "rates", "summary"):
        schemas = [read_schema(path) for path in paths if table in path.parts]
        assert len(schemas) == 3
        assert all(schema == schemas[0] for schema in schemas)
    assert query(tmp_path / "out", "collectives")[1] == []


def test_many_steps_are_written_in_groups_and_few_of_many_ranks_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow.parquet import ParquetFile

    monkeypatch.setattr(parquet, "ROWS_A_GROUP", 16)
    write_rank(tmp_path / "run", header(0, 5), [step(n) for n in range(40)])
    for rank in range(1, 5):
        write_rank(tmp_path / "run", header(rank, 5), [step(n) for n in range(3)])
    (path,) = (path for path in export(tmp_path / "run", tmp_path / "out") if "steps" in path.parts)
    with ParquetFile(path) as file:
        groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert groups == [16, 16, 8 + 3 + 3, 3 + 3]
    assert [row[0] for row in query(tmp_path / "out", "steps", "step")[1]] == [*range(40), *(4 * [0, 1, 2])]


def test_a_second_time_replaces_this_run_alone(tmp_path: Path) -> None:
    simple_run(tmp_path / "run", steps=40)
    other = replace(manifest(), job_id="other")
    other.write(simple_run(tmp_path / "other"))
    first = [*export(tmp_path / "run", tmp_path / "out"), *export(tmp_path / "other", tmp_path / "out")]
    mine = first[0].with_name("notes.txt")
    mine.write_text("mine")
    before = {path: path.read_bytes() for path in first}
    simple_run(tmp_path / "run", steps=50)
    again = export(tmp_path / "run", tmp_path / "out")
    changed = {path.parts[-4] for path in first if path.read_bytes() != before[path]}
    assert "steps" in changed
    assert all(path.read_bytes() == before[path] for path in first if path not in again)
    assert mine.read_text() == "mine"
    assert sorted(row[0] for row in query(tmp_path / "out", "steps", "run")[1]).count("job") == 50
    assert {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()} == {"part-0.parquet", "notes.txt"}


def test_what_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = export(simple_run(tmp_path / "run"), tmp_path / "out")
    before = {path: path.read_bytes() for path in paths}
    other = simple_run(tmp_path / "other", steps=50)
    replace(manifest(), job_id="another").write(other)

    def full(path: Path, table: RunTable) -> None:
        path.write_bytes(b"PAR1")
        if table.name == "steps":
            raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(parquet, "_write", full)
    for directory in (tmp_path / "run", other):
        with pytest.raises(UserError, match=r"cannot be written: No space left on device; choose another --out$"):
            export(directory, tmp_path / "out")
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    assert not list((tmp_path / "out").rglob("run=another"))


@given(st.text(max_size=300))
def test_every_name_is_one_folder_and_can_be_told_again(name: str) -> None:
    value = parquet._value(name)
    assert len(f"job={value}".encode()) < 255
    assert not set(value) & set('/\\:=*?"<>|# \n')
    if name and 3 * len(name.encode()) <= 200:  # longer ones are shortened
        assert unquote(value, errors="strict") == name


def test_names_of_partitions_are_read_as_they_were(tmp_path: Path) -> None:
    for number, name in enumerate(("a/b", "../up", "50% = half", "größe", "x" * 400, "2026-11-22")):
        directory = simple_run(tmp_path / f"run-{number}", steps=3)
        replace(manifest(), name=name, job_id=f"id {number}").write(directory)
        export(directory, tmp_path / "out")
    found = {row[0] for row in query(tmp_path / "out", "ranks", "job")[1]}
    assert {"a/b", "../up", "50% = half", "größe", "2026-11-22"} < found
    assert {row[0] for row in query(tmp_path / "out", "ranks", "run")[1]} == {f"id {n}" for n in range(6)}
    assert len(list((tmp_path / "out").rglob("*.parquet"))) == 6 * 6


def test_runs_of_a_folder_are_parted_by_job(tmp_path: Path) -> None:
    head = replace(header(0, 2), job_id="one")
    write_rank(tmp_path / "runs" / "a", head, [step(0)])
    replace(manifest(2), job_id="one").write(tmp_path / "runs" / "a")
    write_rank(tmp_path / "runs" / "b", replace(header(1, 2), job_id="one"), [step(0)])
    write_rank(tmp_path / "runs" / "c", replace(header(), job_id="two"), [step(0)])
    write_rank(tmp_path / "runs" / "d", header(), [step(0)])
    write_rank(tmp_path / "runs" / "e", header(), [step(0)])
    runs = [[Path(path).name for path in paths] for paths in runs_in([tmp_path / "runs", tmp_path / "runs" / "b"])]
    assert runs == [["a", "b"], ["c"], ["d"], ["e"]]


def test_the_command_exports_the_runs_that_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simple_run(tmp_path / "runs" / "good")
    broken = tmp_path / "runs" / "broken" / "attempt-0"
    broken.mkdir(parents=True)
    (broken / "rank-0.jsonl").write_text("no header\n")
    monkeypatch.setattr(
        sys,
        "argv",
        ["ddlprof", "export", str(tmp_path / "runs"), "--format", "parquet", "--out", str(tmp_path / "out")],
    )
    assert main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.startswith("ddlprof: wrote ") for line in err.splitlines()].count(True) == 6
    assert err.count("\n") == 8
    assert "1 of 2 runs are not exported" in err
    assert len(query(tmp_path / "out", "steps")[1]) == 40


def test_without_pyarrow_it_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"^--format parquet needs pyarrow: pip install 'ddlprof\[parquet\]'$"):
        export(HERE / "two-ranks", tmp_path / "out")
    assert not (tmp_path / "out").exists()
