"""A list of many runs: what is found under a folder, what each cost, what changed, and what cannot be read."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.cli.app import main
from ddlprof.instance_catalog import CatalogError, load
from ddlprof.model.manifest import Manifest
from ddlprof.model.records import End
from ddlprof.model.run_summary import SUMMARY_NAME, RunSummary
from ddlprof.report.fleet import data as fleet_data
from ddlprof.report.fleet.data import GLANCE, LOADED, OUTDATED, SAVED, WHOLE, Entry, changes, entries_of, rows_of
from ddlprof.report.fleet.formats import RUNS
from ddlprof.report.run.data import build_report
from ddlprof.report.run.summary import summarise_run
from ddlprof.store import fleet as searching
from ddlprof.store import load_run
from ddlprof.store.fleet import search
from tests.golden.runs import MS, NOW_UNIX_NS, ORIGIN_UNIX_NS, header, manifest, step, write_rank
from tests.unit.cli.hostile import NAME, write_run

HOUR_NS = 3600 * 10**9
Command = Callable[..., tuple[int, str, str]]


def write(directory: Path, job_id: str, hours: float = 0, saved: bool = True, **facts: Any) -> Path:
    """A run of two ranks on A100s, for 36 s; `hours` after the others. `facts` are the manifest's."""
    origin = ORIGIN_UNIX_NS + round(hours * HOUR_NS)
    for rank in range(2):
        head = replace(header(rank, 2, device="A100"), origin_unix_ns=origin, job_id=job_id)
        rows = [step(n, compute_ms=6, data_ms=3, other_ms=1) for n in range(60)]
        write_rank(directory, head, rows, records=[End("ok", 0, 36_000 * MS)])
    described = replace(manifest(2), job_id=job_id, origin_unix_ns=origin, created_unix_ns=origin)
    replace(described, **{"host": {"instance_type": "p4d.24xlarge"}, **facts}).write(directory)
    if saved:
        save(directory)
    return directory


def save(directory: Path, **facts: Any) -> RunSummary:
    data = load_run(directory)
    attempts = analyse(data)
    summary = summarise_run(data, attempts, build_report(data, attempts, NOW_UNIX_NS))
    replace(summary, **facts).write(directory)
    return summary


def listed(folder: Path, load_at_most: int = 0) -> dict[str, Entry]:
    entries = entries_of(search(folder), load_at_most, NOW_UNIX_NS).entries
    return {Path(entry.path).name: entry for entry in entries}


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path / "no-overlay"))
        monkeypatch.setattr(sys, "argv", ["ddlprof", "fleet", *words])
        capsys.readouterr()
        return main(), *capsys.readouterr()

    return command


def test_runs_at_any_depth_are_found_and_their_insides_are_not_looked_into(tmp_path: Path) -> None:
    write(tmp_path / "a", "1")
    write(tmp_path / "team" / "deep" / "er" / "b", "2")
    write(tmp_path / "a" / "attempt-0" / "inside", "3")
    write(tmp_path / ".hidden" / "c", "4")
    (tmp_path / "data" / "images").mkdir(parents=True)
    assert sorted(listed(tmp_path)) == ["a", "b"]
    assert list(listed(tmp_path / "a")) == ["a"]


def test_where_a_summary_is_from(tmp_path: Path) -> None:
    write(tmp_path / "saved", "1")
    write(tmp_path / "without", "2", saved=False)
    write(tmp_path / "damaged", "3")
    (tmp_path / "damaged" / SUMMARY_NAME).write_bytes(b"{")
    write(tmp_path / "grown", "4")
    with (tmp_path / "grown" / "attempt-0" / "rank-0.jsonl").open("a") as file:
        file.write('["n","x","y"]\n')
    sources = {name: entry.source for name, entry in listed(tmp_path).items()}
    assert sources == {"saved": SAVED, "without": GLANCE, "damaged": GLANCE, "grown": OUTDATED}
    sources = {name: entry.source for name, entry in listed(tmp_path, 9).items()}
    assert sources == {"saved": SAVED, "without": LOADED, "damaged": LOADED, "grown": LOADED}
    assert [entry.source for entry in listed(tmp_path, 1).values()].count(LOADED) == 1
    assert listed(tmp_path, 9)["without"].summary == replace(listed(tmp_path)["saved"].summary, job_id="2")


def test_what_is_told_without_loading_agrees_with_what_loading_tells(tmp_path: Path) -> None:
    write(tmp_path / "run", "1", saved=False)
    glanced, loaded = listed(tmp_path)["run"].summary, listed(tmp_path, 1)["run"].summary
    same = "job job_id model status world_size ranks device instance_type attempts wall_s rank_hours strategy precision"
    for name in f"{same} global_batch versions arguments file_bytes created_unix_ns ended_unix_ns".split():
        assert getattr(glanced, name) == getattr(loaded, name), name
    assert (glanced.step_s, glanced.verdict, glanced.steps, glanced.machine_hours) == (None, None, None, None)


def test_a_run_that_still_goes_on_or_was_killed_early(tmp_path: Path) -> None:
    write_rank(tmp_path / "running", header(), [step(0)])
    manifest().write(tmp_path / "running")
    (tmp_path / "early").mkdir()
    replace(manifest(), job_id="early").write(tmp_path / "early")
    found = listed(tmp_path)
    assert [found[name].summary.status for name in ("running", "early")] == ["torn", "torn"]
    assert found["running"].summary.wall_s is None


def test_broken_runs_do_not_stop_the_list(tmp_path: Path) -> None:
    write(tmp_path / "good", "1")
    for name, content in (("binary", b"\x00\xff"), ("empty", b""), ("deep", b"[" * 10_000), ("list", b"[]\n")):
        folder = tmp_path / name / "attempt-0"
        folder.mkdir(parents=True)
        (folder / "rank-0.jsonl").write_bytes(content)
        (tmp_path / name / "manifest.json").write_bytes(content)
        (tmp_path / name / SUMMARY_NAME).write_bytes(content)
    for load_at_most in (0, 9):
        entries = entries_of(search(tmp_path), load_at_most, NOW_UNIX_NS)
        assert [Path(entry.path).name for entry in entries.entries] == ["good"]
        assert [line.partition(":")[0] for line in entries.left_out] == ["not read"]
        assert "(and 3 more)" in entries.left_out[0]


@pytest.mark.skipif(os.name == "nt", reason="POSIX files")
def test_fifos_links_that_lead_back_and_folders_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "good", "1")
    for name in ("manifest.json", SUMMARY_NAME, "attempt-0/rank-0.jsonl"):
        path = tmp_path / "fifos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
    (tmp_path / "back").symlink_to(tmp_path)
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "again").symlink_to(tmp_path / "good")
    deep = tmp_path.joinpath(*["d"] * 20)
    deep.mkdir(parents=True)
    found = search(tmp_path)
    entries = entries_of(found, 9, NOW_UNIX_NS)
    assert len(entries.entries) == 1
    said = "\n".join(entries.left_out)
    assert "links to folders that were looked at already: 2" in said
    assert "folders more than 12 deep, not looked into: 1" in said
    assert "fifos: manifest.json: is a FIFO, not a regular file" in said
    monkeypatch.setattr(searching, "MAX_ENTRIES", 3)
    assert search(tmp_path).left_out[-1].startswith("the search ended after ")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root lists every folder")
def test_a_folder_that_cannot_be_listed_is_said(tmp_path: Path) -> None:
    write(tmp_path / "good", "1")
    (tmp_path / "closed").mkdir(mode=0)
    assert search(tmp_path).left_out == [f"cannot be listed: {tmp_path / 'closed'}: Permission denied"]


def test_a_folder_that_goes_away_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "good", "1")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuse(folder: Path) -> Any:
        if Path(folder).name == "closed":
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    found = search(tmp_path)
    assert len(found.runs) == 1
    assert found.left_out == [f"cannot be listed: {tmp_path / 'closed'}: Permission denied"]


def test_copies_and_other_parts_of_a_run_count_once(tmp_path: Path) -> None:
    write(tmp_path / "run", "1")
    write(tmp_path / "copy", "1", saved=False)
    write_rank(tmp_path / "part", replace(header(5, 8), job_id="1"), [step(0)])
    write_rank(tmp_path / "old-a", header(), [step(0)])
    write_rank(tmp_path / "old-b", header(), [step(0)])
    entries = entries_of(search(tmp_path), 0, NOW_UNIX_NS)
    assert [entry.summary.job for entry in entries.entries] == ["train", "old-a", "old-b"]
    assert entries.entries[0].source == SAVED
    assert entries.left_out == ["directories with copies or other ranks of a run in the list: 2"]


def test_hours_and_dollars(tmp_path: Path) -> None:
    (row,) = rows_of(list(listed(write(tmp_path / "run", "1")).values()), load(None))
    price = load(None).price("p4d.24xlarge")
    assert price is not None
    assert row.summary.gpu_hours == pytest.approx(2 * 36 / 3600)
    assert row.usd == pytest.approx(price.usd_per_hour * 36 / 3600)  # one machine
    assert row.hours["data"] == pytest.approx(2 * 60 * 3e-3 / 3600)
    assert row.lost_usd["data"] == pytest.approx(price.usd_per_hour * 60 * 3e-3 / 3600)
    computing = row.summary.class_rank_hours["compute"]
    assert sum(row.hours[name] or 0 for name in WHOLE) + (computing or 0) == pytest.approx(row.summary.rank_hours)


def test_the_price_of_unknown_machines_is_asked_for(tmp_path: Path) -> None:
    entries = [
        *listed(write(tmp_path / "known", "1")).values(),
        *listed(write(tmp_path / "not-told", "2", host={})).values(),
        *listed(write(tmp_path / "not-catalogued", "3", host={"instance_type": "z9.huge"})).values(),
    ]
    rows = {Path(row.entry.path).name: row.price for row in rows_of(entries, load(None), "g5.xlarge")}
    prices = {name: price.instance_type if price else None for name, price in rows.items()}
    assert prices == {"known": "p4d.24xlarge", "not-told": "g5.xlarge", "not-catalogued": None}
    unpriced = [row for row in rows_of(entries, load(None)) if row.price is None]
    assert [(row.usd, set(row.lost_usd.values())) for row in unpriced] == [(None, {None})] * 2
    with pytest.raises(CatalogError, match="closest"):
        rows_of(entries, load(None), "g5.xlarg")


def test_what_changed(tmp_path: Path) -> None:
    write(tmp_path / "run", "1")
    was = replace(listed(tmp_path)["run"].summary, step_error_s=1e-5)
    assert changes(None, was) == changes(was, was) == ()
    now = replace(
        was, step_s=0.0112, verdict="COMPUTE-BOUND", global_batch=128, instance_type="g5.xlarge", hosts=2,
        versions={"torch": "2.13"}, arguments="other",
    )  # fmt: skip
    was = replace(was, versions={"torch": "2.12", "cuda": "12.1"})
    assert [change.words for change in changes(was, now)] == [
        "step +12 %, was 10.0 ms",
        "verdict COMPUTE-BOUND, was DATA-BOUND",
        "batch 128, was 64",
        "hosts 2, was 1",
        "machine g5.xlarge, was p4d.24xlarge",
        "torch 2.13, was 2.12",
        "other arguments",
    ]
    assert not changes(was, replace(was, global_batch=None, verdict=None, versions={}, arguments="", step_s=None))


@pytest.mark.parametrize(
    ("step_s", "error_s", "noise", "changed"),
    [
        (0.0102, 1e-6, 0.01, False),
        (0.0106, 1e-6, 0.01, True),
        (0.0094, 1e-6, 0.01, True),
        (0.0106, 5e-4, 0.01, False),  # its own steps vary
        (0.0106, 1e-6, 0.05, False),  # other work on the host
        (0.02, None, 0.01, False),  # too few steps
    ],
)
def test_a_difference_below_the_noise_is_none(
    step_s: float, error_s: float | None, noise: float, changed: bool, tmp_path: Path
) -> None:
    write(tmp_path / "run", "1")
    was = replace(
        listed(tmp_path)["run"].summary, step_s=0.01, step_error_s=error_s, step_error_freedom=8.0, step_noise=noise
    )
    assert bool(changes(was, replace(was, step_s=step_s))) is changed


def test_changes_are_those_since_the_last_timed_run_of_the_same_job(tmp_path: Path) -> None:
    base = listed(write(tmp_path / "run", "1"))["run"]

    def entry(number: int, job: str, **facts: Any) -> Entry:
        summary = replace(base.summary, job=job, job_id=str(number), created_unix_ns=number * HOUR_NS, **facts)
        return Entry(str(number), summary, SAVED)

    entries = [
        entry(4, "a", global_batch=4),
        entry(3, "a", global_batch=9, step_s=None),
        entry(2, "b", global_batch=2),
        entry(1, "a", global_batch=1),
    ]
    found = {row.entry.path: [(c.what, c.was, c.now) for c in row.changes] for row in rows_of(entries, load(None))}
    assert found == {"1": [], "2": [], "3": [("batch", 1, 9)], "4": [("batch", 1, 4)]}


def test_the_table(fleet: Command, tmp_path: Path) -> None:
    write(tmp_path / "runs" / "a", "1")
    write(tmp_path / "runs" / "b", "2", hours=1, saved=False, host={})
    code, out, err = fleet(str(tmp_path / "runs"), "--analyse", "0")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("JOB ")
    assert ["not summarised" in line for line in lines[1:3]] == [True, False]
    assert "1 x p4d.24xlarge (2 ranks on A100)" in lines[2]
    assert "DATA-BOUND" in lines[2]
    assert lines[2].endswith("0.02  0.22  outside steps 98 %")
    assert lines[4].startswith("Total  2 runs, 0.04 GPU-hours, 0.22 USD (1 of them with a price)")
    assert lines[5].startswith("Lost   GPU-hours and dollars of 1 run: data 0.0001 h 0.0011 USD, ")
    assert lines[6].startswith("Prices on demand: p4d.24xlarge 21.9576 USD/h in us-east-1 (read, as of 2")
    assert lines[7] == "Note   without summary.json, and not loaded, so that their steps are not known: 1 (--analyse N)"


def test_a_long_table_ends_and_its_total_does_not(fleet: Command, tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "runs" / str(number), str(number), number)
    lines = fleet(str(tmp_path / "runs"), "--top", "1")[1].splitlines()
    assert [line.split()[0] for line in lines if line] == ["JOB", "train", "Total", "Lost", "Prices", "Note"]
    assert "Note   not shown: 2 more runs (--top N, --format csv)" in lines
    assert any(line.startswith("Total  3 runs") for line in lines)


def test_csv_and_json_tell_the_same(fleet: Command, tmp_path: Path) -> None:
    write(tmp_path / "runs" / "a", "1")
    write(tmp_path / "runs" / "b", "2", hours=1, training=replace(manifest(2).training, global_batch=128))
    _, text, _ = fleet(str(tmp_path / "runs"), "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert tuple(rows[0]) == RUNS.table.heads
    found = json.loads(fleet(str(tmp_path / "runs"), "--format", "json")[1])
    for row, run in zip(rows, found["runs"], strict=True):
        assert [(name, row[name]) for name in RUNS.table.heads if name != "changes"] == [
            (name, "" if run[name] is None else str(run[name])) for name in RUNS.table.heads if name != "changes"
        ]
    assert [run["changes"] for run in found["runs"]] == [
        [{"what": "batch", "was": 64, "now": 128, "words": "batch 128, was 64"}],
        [],
    ]
    assert [row["changes"] for row in rows] == ["batch 128, was 64", ""]
    assert (found["total"]["runs"], found["total"]["priced_runs"], found["notes"]) == (2, 2, [])
    assert found["total"]["lost_usd"]["data"] == pytest.approx(2 * float(rows[0]["data_usd"]))


def test_runs_of_a_time_of_a_job_and_their_order(
    fleet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for hours, name in enumerate(("pre-a", "fine", "pre-b")):
        write(tmp_path / "runs" / name, name, hours, name=name)
    save(tmp_path / "runs" / "fine", step_s=9.0)
    now_ns = ORIGIN_UNIX_NS + 2 * HOUR_NS + HOUR_NS // 2
    monkeypatch.setattr("time.time_ns", lambda: now_ns)

    def jobs(*words: str) -> list[str]:
        code, out, err = fleet(str(tmp_path / "runs"), "--format", "csv", *words)
        assert (code, err) == (0, "")
        return [row["job"] for row in csv.DictReader(io.StringIO(out))]

    assert jobs() == ["pre-b", "fine", "pre-a"]
    assert jobs("--sort", "job") == ["fine", "pre-a", "pre-b"]
    assert jobs("--sort", "step")[0] == "fine"
    assert jobs("--since", "1h") == ["pre-b"]
    assert jobs("--since", "2h") == ["pre-b", "fine"]
    assert jobs("--job", "pre-*") == ["pre-b", "pre-a"]
    assert jobs("--job", "none") == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["file"], "file: is a file, not a folder"),
        (["empty"], "empty: no run in it; make one with: ddlprof run SCRIPT"),
        (["empty", "--format", "html"], "unknown format 'html'; known: table, json, csv"),
        (["empty", "--sort", "name"], "unknown --sort 'name'; known: when, job, hours, usd, lost, step"),
        (["empty", "--since", "soon"], "--since takes a time as in 12h, 90m, 1d or 2h30m: not 'soon'"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, fleet: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file").touch()
    assert fleet(*words) == (2, "", f"ddlprof: {message}\n")


def test_a_wrong_type_is_told_before_the_search(fleet: Command, tmp_path: Path) -> None:
    code, _, err = fleet(str(tmp_path), "--instance", "g5.xlarg")
    assert (code, "g5.xlarge" in err) == (2, True)


def test_the_command_as_a_process(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "hostile", NAME)
    write(tmp_path / "runs" / "good", "1")
    done = subprocess.run(
        [sys.executable, "-m", "ddlprof", "fleet", "runs"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(fleet_data.__file__).parents[3])},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "train (SmallNet)" in done.stdout


def test_what_a_manifest_alone_tells(tmp_path: Path) -> None:
    """A run whose first rank's file is on another machine."""
    write(tmp_path / "run", "1", saved=False)
    for path in (tmp_path / "run" / "attempt-0").iterdir():
        path.unlink()
    (entry,) = listed(tmp_path).values()
    assert (entry.summary.job, entry.summary.device, entry.summary.world_size) == ("train", "", 2)
    assert Manifest.read(tmp_path / "run").job_id == entry.summary.job_id
