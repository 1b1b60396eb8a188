"""The CSV files: columns of the contract, sums, and what was not measured."""

from __future__ import annotations

import csv
import errno
import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis.job_time import JOB_PARTS
from ddlprof.analysis.run import analyse
from ddlprof.base.errors import UserError
from ddlprof.model.classes import CLASSES, PARTS
from ddlprof.model.records import CollectiveShape, CollectiveTimes, Flag
from ddlprof.report.run.columns import RUN_COLUMNS
from ddlprof.report.run.csv import export
from ddlprof.store import load_run
from scripts.lists.columns import tables
from tests.golden.runs import HERE, MS, header, simple_run, step, with_collectives, write_rank

Rows = list[dict[str, str]]


def exported(directory: Path, out: Path) -> dict[str, Rows]:
    run = load_run(directory)
    tables: dict[str, Rows] = {}
    for path in export(run, analyse(run), out):
        with path.open(encoding="utf-8", newline="") as file:
            tables[path.name] = list(csv.DictReader(file))
    return tables


def test_columns_are_those_of_the_contract(tmp_path: Path) -> None:
    exported(HERE / "two-ranks", tmp_path)
    first_lines = {path.name: path.read_text().splitlines()[0] for path in tmp_path.iterdir()}
    assert first_lines == {
        "steps.csv": "attempt,rank,node,step,start_s,step_s,compute_s,compute_forward_s,compute_backward_s,"
        "compute_optimizer_s,data_s,data_fetch_s,data_prep_s,h2d_s,comm_s,interconnect_s,network_s,straggler_s,bubble_s,other_s,"
        "rollout_s,microbatches,samples,peak_memory_bytes,flags",
        "collectives.csv": "attempt,rank,step,group,seq,op,bytes,ranks,scope,start_s,ready_s,duration_s,transfer_s,"
        "wait_s,exposed_s,busbw_gb_s,dimension",
        "ranks.csv": "attempt,rank,host,node,device,status,complete,steps,steady_steps,step_s,compute_s,"
        "compute_forward_s,compute_backward_s,compute_optimizer_s,data_s,data_fetch_s,data_prep_s,h2d_s,comm_s,interconnect_s,network_s,straggler_s,bubble_s,other_s,rollout_s",
        "job.csv": "attempt,part,seconds,share",
        "rates.csv": "rate,value",
        "summary.csv": "class,mean_s,share,median_s,p95_s",
    }


def test_the_page_says_what_every_column_means() -> None:
    """`python -m scripts.lists.columns` prints what the page must have."""
    page = (HERE.parent.parent / "docs" / "columns.md").read_text(encoding="utf-8")
    for heading, table in tables().items():
        assert f"### {heading}\n\n{table}" in page
    assert all(each.meaning for columns in RUN_COLUMNS.values() for each in columns.values())


def test_what_is_never_empty_is_never_empty(tmp_path: Path) -> None:
    for file, rows in exported(HERE / "two-ranks", tmp_path).items():
        columns = RUN_COLUMNS[file.removesuffix(".csv")]
        empty = {column for row in rows for column, text in row.items() if not text}
        assert not {column for column in empty if not columns[column].empty}, file


def test_classes_add_up_in_every_row(tmp_path: Path) -> None:
    tables = exported(HERE / "two-ranks", tmp_path)
    assert len(tables["steps.csv"]) == 55
    for row in tables["steps.csv"] + tables["ranks.csv"]:
        total = sum(float(row[f"{name}_s"] or 0) for name in CLASSES)
        assert total == pytest.approx(float(row["step_s"]), rel=1e-6)
        for name in ("compute", "comm"):
            parts = [row[f"{part}_s"] for part in PARTS[name]]
            assert all(parts) or not any(parts)
            if all(parts):
                assert sum(map(float, parts)) == pytest.approx(float(row[f"{name}_s"]), rel=1e-6)
    assert any(row["compute_forward_s"] for row in tables["steps.csv"])


def test_the_parts_of_the_job_add_up(tmp_path: Path) -> None:
    rows = exported(HERE / "two-ranks", tmp_path)["job.csv"]
    assert [row["part"] for row in rows] == list(JOB_PARTS)
    assert sum(float(row["seconds"]) for row in rows) == pytest.approx(4.8)  # 0.5 s of it before the session
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1)


def test_not_measured_is_empty_and_zero_is_zero(tmp_path: Path) -> None:
    write_rank(tmp_path / "run", header(), [step(n, data_ms=None) for n in range(9)])
    tables = exported(tmp_path / "run", tmp_path / "out")
    row = tables["steps.csv"][5]
    assert (row["data_s"], row["data_fetch_s"], row["h2d_s"], row["comm_s"]) == ("", "", "0.0", "0.0")
    summary = {r["class"]: r for r in tables["summary.csv"]}
    assert summary["data"] == {"class": "data", "mean_s": "", "share": "", "median_s": "", "p95_s": ""}
    assert summary["comm"]["mean_s"] == "0.0"
    assert tables["ranks.csv"][0]["data_s"] == ""
    assert tables["collectives.csv"] == []


def test_seconds_are_exact_and_counted_from_the_origin_of_the_job(tmp_path: Path) -> None:
    rows = [step(0, compute_ms=8.000001), step(1, start_ms=123_456_789.000001)]
    for rank in (0, 1):
        write_rank(tmp_path / "run", header(rank, 2), rows)
    steps = exported(tmp_path / "run", tmp_path / "out")["steps.csv"]
    assert steps[0]["compute_s"] == "0.008000001"
    assert [r["start_s"] for r in steps] == ["0.0", "123456.789000001", "0.001", "123456.790000001"]


def test_ranks_of_two_machines_are_shown_on_one_clock(tmp_path: Path) -> None:
    shape, times = CollectiveShape("0", "allreduce", 8, 2), CollectiveTimes(1000, 1200, 1000, 0)
    for rank, node in enumerate("ab"):
        head = replace(header(rank, 2, node=node), origin_unix_ns=header().origin_unix_ns + rank * 700 * MS)
        write_rank(tmp_path / "run", head, [with_collectives(step(n), (n,)) for n in range(3)], [shape], [times] * 3)
    tables = exported(tmp_path / "run", tmp_path / "out")
    assert [row["start_s"] for row in tables["steps.csv"]] == ["0.0", "0.01", "0.02"] * 2
    assert [row["ready_s"] for row in tables["collectives.csv"]] == ["0.001", "0.011", "0.021"] * 2


def test_flags_are_names(tmp_path: Path) -> None:
    flags = Flag.EPOCH_START | Flag.COMPILE
    write_rank(tmp_path / "run", header(), [step(n, flags=flags if n == 0 else 0) for n in range(9)])
    steps = exported(tmp_path / "run", tmp_path / "out")["steps.csv"]
    assert [r["flags"] for r in steps[:4]] == ["warmup;epoch_start;compile", "warmup", "warmup", ""]


def test_a_run_without_steps_gives_tables_without_rows(tmp_path: Path) -> None:
    write_rank(tmp_path / "run", header(), [])
    tables = exported(tmp_path / "run", tmp_path / "out")
    assert tables["steps.csv"] == tables["collectives.csv"] == []
    assert tables["ranks.csv"][0]["status"] == "torn"
    assert {r["mean_s"] for r in tables["summary.csv"]} == {""}


def test_only_files_of_the_same_names_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("old")
    (tmp_path / "mine.txt").write_text("mine")
    exported(HERE / "two-ranks", tmp_path)
    assert (tmp_path / "steps.csv").read_text().startswith("attempt,")
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_progress_counts_ranks(tmp_path: Path) -> None:
    run = load_run(HERE / "two-ranks")
    calls: list[tuple[int, int]] = []
    export(run, analyse(run), tmp_path, lambda done, total: calls.append((done, total)))
    assert calls == [(1, 2), (2, 2)]


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    run = load_run(simple_run(tmp_path / "run"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot be written: .*; choose another --out"):
        export(run, analyse(run), tmp_path / "file")


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_an_export_that_fails_leaves_everything_as_it_was(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full when the last table is half written."""
    if format == "parquet":
        pytest.importorskip("pyarrow")
    module = importlib.import_module(f"ddlprof.report.run.{format}")
    run = load_run(simple_run(tmp_path))
    out = tmp_path / "out"
    module.export(run, analyse(run), out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def tables_of(*given: Any) -> list[Any]:
        *tables, last = original(*given)
        return [*tables, last._replace(pieces=map(full, last.pieces))]

    original = module.tables_of
    monkeypatch.setattr(module, "tables_of", tables_of)
    for place in (out, tmp_path / "new"):
        with pytest.raises(UserError, match="No space left on device"):
            module.export(run, analyse(run), place)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert not [path for path in (tmp_path / "new").rglob("*") if path.is_file()]


def test_a_link_in_the_place_of_a_table_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    out = tmp_path / "out"
    out.mkdir()
    (out / "steps.csv").symlink_to(precious)
    run = load_run(simple_run(tmp_path))
    export(run, analyse(run), out)
    assert precious.read_text() == "precious"
    assert (out / "steps.csv").read_text().startswith("attempt,rank")
