"""`ddlprof compare` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.golden.runs import HERE, header, manifest, simple_run, write_rank
from tests.unit.cli.commands import ddlprof

GOLDEN = str(HERE / "two-ranks")
RECORDED = str(HERE / "recorded/operators")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with run `a`, and `b` that waits 1 ms longer for data in each of its steps of 10 ms."""
    monkeypatch.chdir(tmp_path)
    simple_run(Path("a"), steps=100)
    simple_run(Path("b"), steps=100, data_ms=2.0)
    return tmp_path


def compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = ddlprof(monkeypatch, "compare", *words)
    out, err = capsys.readouterr()
    assert err == ("ddlprof: wrote out.md\n" if "-o" in words else "")
    return code, out


def test_a_slower_run(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = compared(monkeypatch, capsys, "a", "b")
    assert code == 0
    assert "Verdict  B is 10.0 % slower in the step: 11.00 ms a step instead of 10.00" in out
    assert "  why    data +1.00 ms (+10.0 % of the step)" in out
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert rows["step"].endswith("slower")
    assert rows["data"].endswith("slower")
    assert rows["compute"].endswith("no difference")


def test_a_run_and_itself(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = compared(monkeypatch, capsys, "a", "a", "--fail-on", "step=0%")
    assert code == 0
    assert "Verdict  no difference of the step beyond the noise" in out
    assert "Changed" not in out
    assert "a run is on both sides" in out


@pytest.mark.parametrize(
    ("gates", "code", "states"),
    [
        ("step=5%", 1, ["broken"]),
        ("step=11%", 0, ["kept"]),
        ("step=0.5ms", 1, ["broken"]),
        ("step=2ms,data=500us", 1, ["kept", "broken"]),
        ("compute=0%,data=1.5ms", 0, ["kept", "kept"]),
        ("data = 5 % , step=20 %", 1, ["broken", "kept"]),
        ("data_fetch=5%", 2, []),
    ],
)
def test_gates(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gates: str,
    code: int,
    states: list[str],
) -> None:
    assert ddlprof(monkeypatch, "compare", "a", "b", "--fail-on", gates, "--format", "json") == code
    out, err = capsys.readouterr()
    assert [gate["state"] for gate in json.loads(out)["gates"]] == states if states else not out
    assert err.count("\n") == (code == 2)


def test_a_broken_gate_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = compared(monkeypatch, capsys, "a", "b", "--fail-on", "data=5%", "--fail-on", "compute=5%")
    assert code == 1
    assert "Gate     BROKEN  data=5%: data +1.00 ms (+10.0 % of A's step), limit +0.50 ms (+5.0 % of A's step)" in out
    assert "Gate     kept  compute=5%" in out


def test_several_runs_a_side(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for number, more in enumerate((0.0, 0.05, 0.1)):
        simple_run(Path(f"before-{number}"), steps=60, compute_ms=8 + more)
        simple_run(Path(f"after-{number}"), steps=60, compute_ms=8 - more, data_ms=2.0)
    befores, afters = ([f"{name}-{number}" for number in range(3)] for name in ("before", "after"))
    code, out = compared(monkeypatch, capsys, *befores, "vs", *afters, "--format", "json")
    assert code == 0
    data = json.loads(out)
    assert [len(data[side]["runs"]) for side in ("a", "b")] == [3, 3]
    assert data["noise"] is None
    assert data["rows"][0]["word"] == "slower"


def test_runs_of_different_models_and_batches_are_compared_by_the_sample(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = compared(monkeypatch, capsys, GOLDEN, RECORDED)
    assert code == 0
    assert "ms a sample instead of" in out
    assert "Note     the models differ: SmallNet in A, Sequential in B" in out
    assert "Note     A: 1 of 2 ranks complete" in out
    assert "Late     rank 1 (data) in A, none in B" in out


def test_what_was_not_measured_is_empty(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simple_run(Path("c"), steps=100, data_ms=None, other_ms=2)
    code, out = compared(monkeypatch, capsys, "a", "c", "--format", "json")
    assert code == 0
    row = next(row for row in json.loads(out)["rows"] if row["name"] == "data")
    assert row == {
        "name": "data",
        "a_s": 0.001,
        "b_s": None,
        "word": "not measured",
        "mean": None,
        "typical": None,
        "own": None,
    }
    code, out = compared(monkeypatch, capsys, "a", "c", "--format", "markdown")
    assert "| data | 1.00 |  |  |  |  | not measured |" in out
    assert "data was not measured in B" in out


def test_into_a_file_and_in_several_formats(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = compared(monkeypatch, capsys, "a", "b", "--format", "markdown", "-o", "out.md", "--fail-on", "step=1%")
    assert (code, out) == (1, "")
    assert Path("out.md").read_text().startswith("### ddlprof: limit broken (step=1%); B is 10.0 % slower in the step")
    code, out = compared(monkeypatch, capsys, "a", "b", "--format", "table,json")
    table, _, rest = out.partition("\n{\n")
    assert table.startswith("ddlprof  compare: A a")
    assert json.loads("{" + rest)["schema"] == 1


def test_few_steps_carry_no_word(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simple_run(Path("short"), steps=7, data_ms=2)
    code, out = compared(monkeypatch, capsys, "a", "short", "--fail-on", "step=1%")
    assert code == 0
    assert "Verdict  too few steps to tell" in out
    assert "but too few steps tell whether that is noise" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a"], "give one run, the word vs, and another"),
        (["a", "b", "c"], "ddlprof compare A1 A2 vs B1 B2"),
        (["a", "vs"], "give one run, the word vs"),
        (["a", "vs", "b", "vs", "a"], "give one run, the word vs"),
        (["a", "nowhere"], "nowhere: no such run directory"),
        (["a", "empty"], "empty: no step was measured; see: ddlprof report empty"),
        (["a", "b", "--fail-on", "fetch=5%"], "no class is called 'fetch'; known: step, compute"),
        (["a", "b", "--fail-on", "step"], "give what step may grow by: step=5% (of A's step) or step=8ms"),
        (["a", "b", "--fail-on", "step=5"], "give what step may grow by"),
        (["a", "b", "--fail-on", "step=-5%"], "give what step may grow by"),
        (["a", "b", "--fail-on", "step=nan%"], "give what step may grow by"),
        (["a", "b", "--fail-on", "step=" + "9" * 400 + "%"], "the limit is too large"),
        (["a", "b", "--fail-on", "data_prep=5%"], "data_prep was not measured in A and B"),
        (["a", "b", "--format", "csv"], "unknown format 'csv'; known: table, json, markdown, html"),
        (["a", "b", "--format", "table,json", "-o", "x"], "-o takes one format"),
        (["a", "b", "-o", "no/such/file"], "no/such/file: cannot be written"),
        (["a", "b", "-o", "a"], "a: cannot be written"),
        (["a", "b", "--noise", "much"], "--noise 'much': give a percentage below 100, as in 2%"),
        (["a", "b", "--noise", "100%"], "give a percentage below 100"),
    ],
)
def test_errors_are_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    write_rank(Path("empty"), header(), [])
    assert ddlprof(monkeypatch, "compare", *words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ddlprof: ")
    assert message in err
    assert err.count("\n") == 1


def test_what_changed(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    old = manifest()
    replace(
        old,
        versions={"torch": "2.7"},
        host={"available_cores": 4, "gpus": ["A10G", "A10G"]},
        training=replace(old.training, precision="amp-bf16", loader_workers=4),
    ).write(Path("b"))
    _, out = compared(monkeypatch, capsys, "a", "b")
    assert "Changed  training: precision fp32 -> amp-bf16; loader workers 0 -> 4" in out
    assert "Changed  environment: available cores 8 -> 4; known of B only: torch 2.7, gpus 2 x A10G" in out


def test_it_imports_neither_torch_nor_pandas(here: Path) -> None:
    code = (
        "import sys; from ddlprof.cli.app import main; sys.argv = ['ddlprof', *sys.argv[1:]]; code = main();"
        "heavy = {'torch', 'pandas', 'sklearn', 'boto3', 'fsspec', 'scipy.stats'} & set(sys.modules);"
        "sys.exit(code or str(heavy or '') or 0)"
    )
    command = [sys.executable, "-c", code, "compare", "a", "b", "--format", "markdown", "--fail-on", "step=5%"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "")
