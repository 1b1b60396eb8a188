"""Communication by dimension of the layout, in each format of the report."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.model.manifest import LayoutFacts
from ddlprof.model.records import CollectiveShape, CollectiveTimes, GroupFacts
from ddlprof.report.run import csv as csv_files
from ddlprof.report.run import text, trace
from ddlprof.report.run.data import ReportData, build_report
from ddlprof.report.run.formats import as_json
from ddlprof.report.run.html.page import render
from ddlprof.report.run.html.subject import Subject
from ddlprof.store import load_run
from tests.golden.runs import NOW_UNIX_NS, header, manifest, step, with_collectives, write_rank

STEPS = 40
TENSOR, DATA = GroupFacts("1", "tensor", "tensor", 2), GroupFacts("2", "data", "", 2)


def made(directory: Path, *groups: GroupFacts) -> Path:
    """Two ranks; of each step of 14 ms, 3 ms are of group 1 and 1 ms of group 2."""
    shapes = [CollectiveShape("1", "allreduce", 3_000_000, 2), CollectiveShape("2", "allreduce", 500_000, 2)]
    times = [CollectiveTimes(1000, 4000, 1000, 3000), CollectiveTimes(6000, 7000, 6000, 1000)]
    for rank in range(2):
        rows = [with_collectives(step(n, comm_ms=4), (n, n)) for n in range(STEPS)]
        write_rank(directory, header(rank, 2), rows, shapes, times * STEPS, groups)
    described = replace(manifest(2), layout=LayoutFacts(tensor=2, data_shard=2))
    described.training.strategy = "fsdp+tp"
    described.write(directory)
    return directory


def report_of(directory: Path) -> ReportData:
    run = load_run(directory)
    return build_report(run, analyse(run), NOW_UNIX_NS)


def test_the_card_says_what_communication_consists_of(tmp_path: Path) -> None:
    lines = dict(text.lines(report_of(made(tmp_path, TENSOR, DATA))))
    assert lines["Layout"] == "tp2 x fsdp2"
    assert lines["Comm"] == "29 % of the step = tensor 21 + data 7"


@pytest.mark.parametrize("groups", [(), (TENSOR, replace(DATA, dimension="tensor"))], ids=["none", "one"])
def test_the_card_has_no_line_for_one_dimension(groups: tuple[GroupFacts, ...], tmp_path: Path) -> None:
    assert "Comm" not in dict(text.lines(report_of(made(tmp_path, *groups))))


def test_a_layout_that_the_strategy_tells_is_not_repeated(tmp_path: Path) -> None:
    report = replace(report_of(made(tmp_path, TENSOR)), layout="fsdp2")
    assert "Layout" not in dict(text.lines(report))


def test_the_json_report_has_a_line_for_each_dimension(tmp_path: Path) -> None:
    found = json.loads(as_json(report_of(made(tmp_path, TENSOR))))
    assert found["layout"] == "tp2 x fsdp2"
    assert found["manifest"]["layout"]["tensor"] == 2
    assert [line["dimension"] for line in found["dimensions"]] == ["tensor", ""]
    tensor = found["dimensions"][0]
    assert [tensor.pop(name) for name in ("dimension", "group_sizes", "scopes")] == ["tensor", [2], ["intra"]]
    assert tensor == pytest.approx(
        {
            "comm_s": 3e-3, "share": 3 / 14,
            "interconnect_s": 3e-3, "network_s": 0, "straggler_s": 0, "bubble_s": 0, "collectives": 1, "bytes": 3e6,
            "duration_s": 3e-3, "bus_gb_s": 1,
        }
    )  # fmt: skip
    assert sum(line["comm_s"] for line in found["dimensions"]) == pytest.approx(found["times"]["comm"]["mean_s"])


def test_the_csv_files(tmp_path: Path) -> None:
    run = load_run(made(tmp_path / "run", TENSOR))
    tables = {}
    for path in csv_files.export(run, analyse(run), tmp_path / "out"):
        with path.open(encoding="utf-8", newline="") as file:
            tables[path.name] = list(csv.DictReader(file))
    assert [row["dimension"] for row in tables["collectives.csv"]] == ["tensor", ""] * STEPS * 2
    means = {row["class"]: row["mean_s"] for row in tables["summary.csv"]}
    assert list(means)[-10:] == [
        f"comm_{name}" for each in ("tensor", "unknown")
        for name in (each, f"{each}_interconnect", f"{each}_network", f"{each}_straggler", f"{each}_bubble")
    ]  # fmt: skip
    assert float(means["comm_tensor"]) + float(means["comm_unknown"]) == pytest.approx(float(means["comm"]))


def test_the_page_has_a_table(tmp_path: Path) -> None:
    run = load_run(made(tmp_path, TENSOR, DATA))
    attempts = analyse(run)
    page = "".join(render(Subject(run, attempts, build_report(run, attempts, NOW_UNIX_NS))))
    section = page.partition('id="dimensions"')[2].partition("</section>")[0]
    assert "Layout: tp2 x fsdp2." in section
    rows = [line.split("</tr>")[0] for line in section.split("<tr>")[2:]]
    assert ["tensor" in row or "data" in row for row in rows] == [True, True]
    assert "21 %" in section


def test_the_lanes_of_the_trace_are_named(tmp_path: Path) -> None:
    run = load_run(made(tmp_path, TENSOR))
    events = json.loads("".join(trace.render(run, analyse(run))))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"collectives of group 1 (tensor)", "collectives of group 2"} <= names
