"""Questions of `ddlprof recommend` and `ddlprof predict`: other settings, several targets, prices of one's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cli.commands import BERT, WORK, ddlprof, rows, write_workload

pytestmark = pytest.mark.usefixtures("alone")


def test_what_is_asked_is_shown_beside_the_step_as_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str
) -> None:
    asked = ["predict", bert, "--instance", "g4dn.12xlarge", "-o", "-", "-o", "p.json"]
    assert ddlprof(monkeypatch, *asked) == 0
    plain = json.loads(Path("p.json").read_text(encoding="utf-8"))
    assert plain["target"]["placement"] == [1]
    assert "as_measured" not in plain
    assert "As RUN" not in capsys.readouterr().out
    assert ddlprof(monkeypatch, *asked, "--precision", "fp16", "--optimizer", "adamw", "--strategy", "ddp") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "Asked    precision fp16 (in RUN: fp32), optimizer adamw"
    assert [line for line in lines if line.startswith("As RUN   500 ms")]
    value = json.loads(Path("p.json").read_text(encoding="utf-8"))
    assert value["as_measured"] == plain["estimate"]
    assert value["estimate"]["step_s"] < plain["estimate"]["step_s"]
    assert (value["target"]["precision"], value["target"]["optimizer"]) == ("fp16", "adamw")


def test_targets_and_precisions_side_by_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str
) -> None:
    where = ["--instance", "g4dn.12xlarge,g5.12xlarge", "--instance", "g5.12xlarge", "--gpu", "RTX 3090"]
    several = ["predict", bert, *where, "--precision", "fp32,bf16", "--placement", "2", "-o", "-", "-o", "p.json"]
    assert ddlprof(monkeypatch, *several) == 0
    out = capsys.readouterr().out
    assert out.startswith("ddlprof  predict bert-base · 6 targets, 2 each · 12 samples per GPU, 24 in all\n")
    rows = [line.split()[1:-1] for line in out.splitlines() if line[:1].isdigit()]
    names = [row[0] for row in rows]
    assert names == ["g4dn.12xlarge"] * 2 + ["g5.12xlarge"] * 2 + ["RTX"] * 2
    assert "No step  2: no bf16: T4 has none in hardware" in out
    value = json.loads(Path("p.json").read_text(encoding="utf-8"))
    assert [each["target"]["precision"] for each in value["predictions"]] == ["fp32", "bf16"] * 3
    assert [each["estimate"] is None for each in value["predictions"]] == [False, True, *[False] * 4]
    single = [*several[:2], "--gpu", "RTX 3090", *several[-8:]]
    single[single.index("fp32,bf16")] = "bf16"
    assert ddlprof(monkeypatch, *single) == 0
    alone = json.loads(Path("p.json").read_text(encoding="utf-8"))
    assert alone["estimate"] == value["predictions"][-1]["estimate"]


def test_memory_that_is_not_enough_is_said_with_the_largest_batch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str
) -> None:
    """Of bert, 6 GiB were measured with 12 samples, about 1.6 of which do not grow with the batch."""
    asked = ["predict", bert, "--instance", "g4dn.xlarge", "-o", "-", "-o", "p.json"]
    assert ddlprof(monkeypatch, *asked) == 0
    assert "Memory   6.8 GiB needed of the 14.6 GiB of a GPU that a process gets\n" in capsys.readouterr().out
    assert json.loads(Path("p.json").read_text(encoding="utf-8"))["fits_memory"] is True
    assert ddlprof(monkeypatch, *asked, "--batch", "60") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Memory does not fit, 24.3 GiB needed of the 14.6 GiB" in out
    largest = int(out.partition("the largest batch that fits is ")[2].split()[0].rstrip(";"))
    assert 24 < largest < 60
    assert json.loads(Path("p.json").read_text(encoding="utf-8"))["fits_memory"] is False
    assert ddlprof(monkeypatch, *asked, "--batch", str(largest), "--gpu", "L4") == 0
    assert "!" not in capsys.readouterr().out
    assert ddlprof(monkeypatch, *asked, "--batch", str(largest + 1), "--gpu", "L4") == 0
    out = capsys.readouterr().out
    assert "? fits perhaps in memory" in out
    assert "Memory   1: fits perhaps" in out
    assert ddlprof(monkeypatch, *asked, "--batch", str(2 * largest), "--gpu", "L4") == 0
    out = capsys.readouterr().out
    assert "! does not fit in memory" in out
    assert "Memory   1: does not fit" in out


def test_one_sample_is_singular_and_flags_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str
) -> None:
    asked = ["predict", bert, "--batch", "1", "--instance"]
    assert ddlprof(monkeypatch, *asked, "g4dn.xlarge") == 0
    assert " 1 sample per GPU, 1 in all\n" in capsys.readouterr().out
    several = [*asked, "g4dn.xlarge,p5.48xlarge", "--batch", "1000"]
    assert ddlprof(monkeypatch, *several) == 0
    out = capsys.readouterr().out
    assert " 1,000 samples per GPU" in out
    assert "SAMPLES/S: of all GPUs. x extrapolated; ! does not fit in memory\n" in out


def test_a_plan_as_asked_beside_the_one_as_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str
) -> None:
    options = [*WORK, "--instance", "g4dn.12xlarge,p3.16xlarge", "-o", "-", "-o", "r.csv", "-o", "r.json"]
    assert ddlprof(monkeypatch, "recommend", bert, *options) == 0
    before = json.loads(Path("r.json").read_text(encoding="utf-8"))
    assert (before["asked"], before["as_measured"]) == ({}, None)
    capsys.readouterr()
    assert ddlprof(monkeypatch, "recommend", bert, *options, "--precision", "fp16", "--grad-accum", "2") == 0
    out = capsys.readouterr().out
    assert "Asked     precision fp16 (in RUN: fp32), accumulation 2 (in RUN: 1)" in out
    after = json.loads(Path("r.json").read_text(encoding="utf-8"))
    assert after["asked"]["precision"] == {"as_run": "fp32", "asked": "fp16"}
    assert after["as_measured"] == before["plans"][0]
    assert {plan["grad_accum"] for plan in after["plans"]} == {2}
    assert f"As RUN    {before['plans'][0]['instance_type']}: " in out
    assert ddlprof(monkeypatch, "recommend", bert, *options, "--precision", "bf16") == 1
    out = capsys.readouterr().out
    assert "As RUN    " in out
    assert "2 no bf16" in out


def test_what_is_asked_may_be_what_makes_it_possible(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Optimizer states of 24 GiB fit into 16 GiB only where ranks share them."""
    write_workload(replace(BERT, gradient_bytes=6 * 2**30, peak_memory_bytes=28 << 30), tmp_path / "large.json")
    options = [*WORK, "--budget", "90d", "--instance", "g4dn.12xlarge", "--max-nodes", "2"]
    assert ddlprof(monkeypatch, "recommend", "large.json", *options) == 2
    assert "not even one sample fits into the memory of any GPU" in capsys.readouterr().err
    assert (
        ddlprof(monkeypatch, "recommend", "large.json", *options, "--strategy", "fsdp", "-o", "-", "-o", "r.json") == 0
    )
    assert "As RUN    no plan: not even one sample fits" in capsys.readouterr().out
    assert json.loads(Path("r.json").read_text(encoding="utf-8"))["as_measured"] is None


def test_prices_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str, tmp_path: Path
) -> None:
    (tmp_path / "own.csv").write_text("instance_type,usd_per_hour\np3.16xlarge,0\n", encoding="utf-8")
    options, own = [*WORK, "-o", "-", "-o", "r.csv"], ["--prices", "own.csv"]
    assert ddlprof(monkeypatch, "recommend", bert, *options) == 0
    listed = {(row["instance_type"], row["nodes"]): row for row in rows("r.csv")}
    capsys.readouterr()
    assert ddlprof(monkeypatch, "recommend", bert, *options, *own, "--discount", "aws=30%", "--top", "20", "--why") == 0
    out = capsys.readouterr().out
    found = rows("r.csv")
    assert (found[0]["instance_type"], float(found[0]["cost_usd"]), found[0]["price_basis"]) == (
        "p3.16xlarge",
        0.0,
        "own",
    )
    for row in found:
        if row["cost_usd"] and row["price_basis"] != "own":
            assert float(row["cost_usd"]) == pytest.approx(
                0.7 * float(listed[row["instance_type"], row["nodes"]]["cost_usd"])
            )
            assert row["price_basis"].endswith(", less 30 %")
            assert float(row["list_cost_usd"]) == float(listed[row["instance_type"], row["nodes"]]["cost_usd"])
    assert "o own price; d discounted" in " ".join(out.split())
    assert " at the list's price)" in " ".join(out.split())
    assert "with your own prices and discounts" in " ".join(out.split())
    assert ddlprof(monkeypatch, "recommend", bert, *options, *own, "--instance", "p3.16xlarge", "--why") == 0
    out = capsys.readouterr().out
    assert "All of these are paid for" in out
    assert "Prices    aws us-east-1, your own\n" in out


def test_a_bad_row_of_a_price_file_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bert: str, tmp_path: Path
) -> None:
    (tmp_path / "own.csv").write_text("instance_type,usd_per_hour\np3.2xlarge,1\np3.2xlarge,x\n", encoding="utf-8")
    assert ddlprof(monkeypatch, "recommend", bert, *WORK, "--prices", "own.csv") == 2
    err = capsys.readouterr().err
    assert err.startswith("ddlprof: own.csv, line 3: usd_per_hour: a number of 0 or more is expected, not 'x'")
    assert err.count("\n") == 1
