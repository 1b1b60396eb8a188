"""`ddlprof instances` and its commands as a user types them, on the embedded catalogue."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ddlprof.cli.app import main
from ddlprof.instance_catalog import CatalogError, load
from ddlprof.instance_catalog.refresh import RefreshOutcome, RefreshReport
from ddlprof.model.records import Calibration, End
from tests.golden.runs import HERE, header, manifest, step, write_rank

Ddlprof = Callable[..., int]


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty layer of the user's own."""
    directory = tmp_path / "overlay"
    monkeypatch.setenv("DDLPROF_CATALOG", str(directory))
    return directory


@pytest.fixture
def ddlprof(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> Ddlprof:
    """Runs a command and gives its exit code."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["ddlprof", *arguments])
        return main()

    return run


def listed(ddlprof: Ddlprof, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    assert ddlprof("instances", *arguments, "--format", "json") == 0
    return {row["instance_type"]: row for row in json.loads(capsys.readouterr().out)}


def test_the_table_fits_80_columns(
    ddlprof: Ddlprof, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert ddlprof("instances") == 0
    out, err = capsys.readouterr()
    body, _, _ = out.rpartition("\n\n")
    assert max(len(line) for line in body.splitlines() if ": prices" not in line) <= 80
    assert "p2.xlarge *" in out
    assert err == ""


def test_csv_into_a_file(ddlprof: Ddlprof, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "t4.csv"
    assert ddlprof("instances", "--gpu", "T4", "--format", "csv", "-o", str(file)) == 0
    assert capsys.readouterr().out == ""
    rows = list(csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))))
    assert {row["gpu_model"] for row in rows} == {"T4"}


def test_any_spelling_of_a_gpu(ddlprof: Ddlprof, capsys: pytest.CaptureFixture[str]) -> None:
    spelled = [listed(ddlprof, capsys, "--gpu", name) for name in ("T4", "Tesla T4", "t4-16gb")]
    assert spelled[0] == spelled[1] == spelled[2]
    assert {"p4d.24xlarge", "p4de.24xlarge"} <= listed(ddlprof, capsys, "--gpu", "A100").keys()


@pytest.mark.parametrize(
    ("arguments", "holds"),
    [
        (["--cloud", "gcp"], lambda row: row["cloud"] == "gcp"),
        (["--min-gpu-memory", "40"], lambda row: row["gpu_memory_gib"] >= 40),
        (["--min-gpus", "8"], lambda row: row["gpus"] >= 8),
        (["--max-price", "1.5"], lambda row: row["on_demand_usd_per_hour"] <= 1.5),
        (["--efa"], lambda row: row["efa"]),
        (["--offered"], lambda row: row["offered"] is not False),
        (["--region", "us-west-2"], lambda row: row["region"] in ("us-west-2", "any")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_filters(
    ddlprof: Ddlprof, capsys: pytest.CaptureFixture[str], arguments: list[str], holds: Callable[[Any], bool]
) -> None:
    every, kept = listed(ddlprof, capsys), listed(ddlprof, capsys, *arguments)
    assert kept
    assert len(kept) < len(every)
    assert all(holds(row) for row in kept.values())


@pytest.mark.parametrize(("form", "out"), [("table", ""), ("json", "[]\n")])
def test_the_filter_that_leaves_nothing_is_named(
    ddlprof: Ddlprof, capsys: pytest.CaptureFixture[str], form: str, out: str
) -> None:
    assert ddlprof("instances", "--gpu", "V100", "--cloud", "aws", "--max-price", "0.01", "--format", form) == 1
    captured = capsys.readouterr()
    assert captured.out == out
    assert captured.err.startswith("ddlprof: no instance type is left: --max-price 0.01 excludes all ")
    assert captured.err.endswith(" that --gpu V100 --cloud aws leaves\n")


def test_show(ddlprof: Ddlprof, capsys: pytest.CaptureFixture[str]) -> None:
    assert ddlprof("instances", "show", "P4D.24xlarge") == 0
    out = capsys.readouterr().out
    assert out.startswith("p4d.24xlarge · aws · family p4d\nGPUs          8 x A100-SXM4-40GB")
    assert ddlprof("instances", "show", "p4d.24xlarge", "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["instance"]["vcpus"] == 96


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "p4d.24xlrge"], "unknown instance type 'p4d.24xlrge'; closest: p4d.24xlarge"),
        (["--gpu", "A10000"], "unknown GPU 'A10000'"),
        (["--cloud", "oracle"], "unknown cloud 'oracle'; known: aws"),
        (["--region", "us-esat-1"], "'us-esat-1'"),
        (["--gpu", "A100", "show", "p4d.24xlarge"], "--gpu is for the list: leave it out, or put it behind show"),
        (["--format", "xml"], "xml"),
        (["-o", "no/such/file"], "no/such/file: cannot be written: there is no folder no/such"),
        (["measured", "--instance", "p3.8xlarge"], "nothing to add: name a run, or --fact NAME=GBPS"),
        (["measured", "--instance", "p33", "--fact", "flow_gbps=1"], "unknown instance type 'p33'"),
        (["measured", "--instance", "p3.8xlarge", "--fact", "speed=1"], "--fact speed=1: write one of network_gbps"),
        (["measured", "--instance", "p3.8xlarge", "--fact", "flow_gbps=nan"], "and Gbit/s above 0"),
        (["measured", "nowhere", "--instance", "p3.8xlarge"], "nowhere: no such run directory"),
        (["measured", str(HERE / "two-ranks"), "--instance", "p3.8xlarge"], "timed no links"),
    ],
)
def test_errors_are_one_line(
    ddlprof: Ddlprof,
    capsys: pytest.CaptureFixture[str],
    overlay: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ddlprof("instances", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ddlprof: ")
    assert message in err
    assert err.count("\n") == 1
    assert not overlay.exists()


def test_a_damaged_overlay_is_one_line(ddlprof: Ddlprof, capsys: pytest.CaptureFixture[str], overlay: Path) -> None:
    overlay.mkdir()
    (overlay / "prices.csv").write_text("cloud,region\naws,us-east-1\n", encoding="utf-8")
    assert ddlprof("instances") == 2
    err = capsys.readouterr().err
    assert "prices.csv" in err
    assert err.count("\n") == 1


def test_a_measured_flow_comes_before_the_table(ddlprof: Ddlprof, capsys: pytest.CaptureFixture[str]) -> None:
    assert ddlprof("instances", "measured", "--instance", "p3.8xlarge", "--fact", "flow_gbps=4.9") == 0
    capsys.readouterr()
    assert listed(ddlprof, capsys, "--gpu", "V100")["p3.8xlarge"]["flow_gbps"] == 4.9
    words = ["--instance", "p3.8xlarge", "--fact", "flow_gbps=4.9"]
    assert ddlprof("instances", "measured", *words, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["added"][0]["value"] == 4.9
    assert load(None).instance("p3.8xlarge").flow_gbps != 4.9


def test_the_links_of_a_run_are_added_and_shown(
    ddlprof: Ddlprof, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ladder = [Calibration(2, 4096, 60_000), Calibration(2, 8_000_000, 4_000_000)]
    for rank in (0, 1):
        write_rank(run, header(rank, 2), [step(n) for n in range(40)], records=[*ladder, End("ok", 0, 1)])
    manifest(2).write(run)
    assert ddlprof("instances", "measured", str(run), "--instance", "P3.8xlarge") == 0
    assert "gloo_allreduce_intra_gb_s" in capsys.readouterr().out
    assert ddlprof("instances", "show", "p3.8xlarge", "--format", "json") == 0
    facts = {fact["what"]: fact for fact in json.loads(capsys.readouterr().out)["measured"]}
    fact = facts["gloo_allreduce_intra_gb_s"]
    assert (fact["value"], fact["unit"], fact["measured_at"]) == (2.0, "GB/s", "2026-01-01")
    assert fact["source"] == str(run)


@pytest.mark.parametrize(("error", "code"), [(None, 0), ("AccessDenied", 1)])
def test_refresh(
    ddlprof: Ddlprof,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    overlay: Path,
    error: str | None,
    code: int,
) -> None:
    asked: dict[str, Any] = {}

    def fetch(regions: Sequence[str], directory: Path, **more: Any) -> RefreshReport:
        asked.update(more, regions=regions, directory=directory)
        more["on_progress"](1, 1)
        return RefreshReport((RefreshOutcome("us-east-1", "types", 65, error),), (), ())

    monkeypatch.setattr("ddlprof.instance_catalog.refresh.refresh", fetch)
    typed = ["--region", "us-east-1,us-west-2", "--region", "eu-west-1", "--profile", "lab", "--instance", "g5.*"]
    assert ddlprof("instances", "refresh", *typed) == code
    assert asked["regions"] == ["us-east-1", "us-west-2", "eu-west-1"]
    assert (asked["profile"], asked["instance_types"], asked["directory"]) == ("lab", ["g5.*"], overlay)
    out, err = capsys.readouterr()
    assert out.startswith("region     what   rows")
    assert err == ""
    assert ddlprof("instances", "refresh", *typed, "--format", "json") == code
    assert json.loads(capsys.readouterr().out)["ok"] is (code == 0)


def test_a_refresh_that_fetches_nothing_is_one_line(
    ddlprof: Ddlprof, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*_: Any, **__: Any) -> RefreshReport:
        raise CatalogError("no AWS credentials: run aws configure")

    monkeypatch.setattr("ddlprof.instance_catalog.refresh.refresh", fetch)
    assert ddlprof("instances", "refresh", "--region", "us-east-1") == 2
    assert capsys.readouterr() == ("", "ddlprof: no AWS credentials: run aws configure\n")


@pytest.mark.parametrize(
    "command", [["instances"], ["instances", "show", "p3.8xlarge"], ["instances", "--format", "json"]], ids=" ".join
)
def test_nothing_heavy_is_imported(tmp_path: Path, overlay: Path, command: list[str]) -> None:
    code = (
        "import sys; from ddlprof.cli.app import main; sys.argv = ['ddlprof', *sys.argv[1:]]; code = main();"
        "heavy = {'torch', 'pandas', 'numpy', 'sklearn', 'boto3', 'botocore', 'plotext'} & set(sys.modules);"
        "heavy |= {'rich'} & set(sys.modules) if 'json' in sys.argv else set();"  # tables are rich's
        "sys.exit(code or str(heavy or '') or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *command], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
