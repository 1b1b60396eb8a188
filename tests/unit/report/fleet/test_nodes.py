"""The machines of a fleet: which are late more often than chance would have it."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.instance_catalog import load
from ddlprof.model.health import HealthReading
from ddlprof.model.run_summary import RunSummary
from ddlprof.report.fleet.data import SAVED, Entry, rows_of
from ddlprof.report.fleet.formats import Listing
from ddlprof.report.fleet.nodes import NODES, at_least, nodes_of
from tests.golden.runs import MS, SHAPES, ddp_step, header, manifest, write_rank
from tests.unit.report.fleet.test_fleet import save

HOUR_NS = 3600 * 10**9


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> RunSummary:
    """The summary of a run on two machines whose second one swaps and is late."""
    folder = tmp_path_factory.mktemp("run")
    for rank in (0, 1):
        made = [ddp_step(rank, number) for number in range(600)]
        swaps = [HealthReading(s * 1000 * MS, "swap_pages", "", 900 * s * rank) for s in range(0, 61, 10)]
        times = [each for _, collectives in made for each in collectives]
        write_rank(folder, header(rank, 2, node="ab"[rank]), [row for row, _ in made], SHAPES, times, swaps)
    manifest(2).write(folder)
    return save(folder)


def listing(*runs: RunSummary) -> Listing:
    entries = [
        Entry(f"runs/{n}", replace(run, job_id=str(n), created_unix_ns=run.created_unix_ns + n * HOUR_NS), SAVED)
        for n, run in enumerate(runs)
    ]
    return Listing(rows_of(entries, load()))


def test_a_summary_names_the_machines_and_why_one_was_late(usual: RunSummary) -> None:
    assert usual.host_names == ["host-a", "host-b"]
    assert (usual.late_host, usual.moved) == ("host-b", ["swap_pages"])
    assert "sick_machine" in usual.findings


def test_a_machine_that_is_late_in_several_runs(usual: RunSummary) -> None:
    runs = [replace(usual, host_names=["host-b", *(f"other-{k}" for k in range(7))]) for _ in range(5)]
    well = replace(usual, late_host=None, moved=[], findings=[])
    first, *rest = nodes_of(listing(*runs, well, replace(usual, late_host="host-a", moved=[])).rows)
    assert (first.node, first.runs, first.compared_runs, first.late_runs) == ("host-b", 7, 7, 5)
    assert first.is_suspect
    assert first.moved == ("swap_pages",)
    assert not any(node.is_suspect for node in rest)
    assert len(rest) == 8


def test_chance_alone_makes_nobody_suspect(usual: RunSummary) -> None:
    hosts = [f"host-{n}" for n in range(10)]
    fair = [replace(usual, host_names=hosts, late_host=hosts[7 * n % 10]) for n in range(20)]
    assert {node.late_runs for node in nodes_of(listing(*fair).rows)} == {2}
    assert not any(node.is_suspect for node in nodes_of(listing(*fair).rows))
    assert not any(node.is_suspect for node in nodes_of(listing(usual, usual, usual).rows))  # one of two, three times


def test_a_run_on_one_machine_compares_nothing(usual: RunSummary) -> None:
    alone = listing(*[replace(usual, host_names=["host-b"])] * 5)
    (node,) = nodes_of(alone.rows)
    assert (node.runs, node.compared_runs, node.late_runs, node.by_chance) == (5, 0, 0, None)
    assert "Suspect   not known: no run compares machines" in NODES.as_table(alone)


def test_the_tail_is_the_sum_over_all_outcomes() -> None:
    chances = [0.5, 0.25, 0.1, 0.9]
    for number in range(6):
        total = 0.0
        for outcome in itertools.product((True, False), repeat=len(chances)):
            weight = 1.0
            for happened, chance in zip(outcome, chances, strict=True):
                weight *= chance if happened else 1 - chance
            total += weight if sum(outcome) >= number else 0.0
        assert at_least(number, chances) == pytest.approx(total)


def test_table_json_and_csv(usual: RunSummary) -> None:
    runs = [replace(usual, host_names=[f"host-{n}" for n in "bcdefgh"]) for _ in range(5)]
    given = listing(*runs, replace(usual, host_names=[]))
    table = NODES.as_table(given)
    assert "host-b  " in table
    assert "5 of 5" in table
    assert "pages swapped in or out" in table
    assert "Suspect   host-b\n" in table
    assert "1 run without names of machines" in table
    read = json.loads(NODES.as_json(given))
    assert read["nodes"][0]["moved"] == ["swap_pages"]
    assert tuple(read["nodes"][0]) == NODES.table.heads
    head, first, *_ = NODES.as_csv(given).splitlines()
    assert head == ",".join(NODES.table.heads)
    assert first.startswith("host-b,5,5,5,")
    assert "Suspect   none" in NODES.as_table(listing(usual))


def test_the_command(usual: RunSummary, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import sys

    from ddlprof.cli.app import main

    (tmp_path / "run" / "attempt-0").mkdir(parents=True)
    (tmp_path / "run" / "attempt-0" / "rank-0.jsonl").touch()
    replace(usual, file_bytes=0).write(tmp_path / "run")
    words = sys.argv
    try:
        sys.argv = ["ddlprof", "fleet", str(tmp_path), "--by", "node"]
        assert main() == 0
        assert "host-b" in capsys.readouterr().out
        sys.argv = ["ddlprof", "fleet", str(tmp_path), "--by", "moon"]
        assert main() == 2
        assert "unknown --by 'moon'; known: run, node" in capsys.readouterr().err
    finally:
        sys.argv = words
