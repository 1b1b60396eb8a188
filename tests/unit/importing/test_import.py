"""Traces of known times become runs that say these times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import ddlprof
from ddlprof.base.errors import UserError
from ddlprof.cli.app import main
from ddlprof.importing import import_traces
from tests.unit.importing.traces import GEMM, Device, device_trace, forward, host_trace, mark, of_rank, write_trace

CLASSES = ("compute", "data", "h2d", "comm", "other")


def means_us(run: ddlprof.api.Run) -> dict[str, float]:
    """Means of all steps, in microseconds."""
    names = [name for name in run.steps.columns if name.endswith("_s") and name != "start_s"]
    return {name.removesuffix("_s"): round(1e6 * run.steps[name].mean(), 3) for name in names}


@pytest.fixture
def imported(tmp_path: Path):  # type: ignore[no-untyped-def]
    def make(*traces: Path) -> ddlprof.api.Run:
        out = tmp_path / f"run-{len(list(tmp_path.glob('run-*')))}"
        import_traces(traces, out)
        return ddlprof.load(out)

    return make


def test_classes_of_a_device(tmp_path: Path, imported) -> None:  # type: ignore[no-untyped-def]
    means = means_us(imported(write_trace(tmp_path / "a.json.gz", device_trace(), **of_rank(0, 2))))
    assert {name: means[name] for name in ("step", *CLASSES)} == {
        "step": 1000, "compute": 500, "data": 100, "h2d": 100, "comm": 200, "other": 100,
    }  # fmt: skip
    assert [means[f"compute_{part}"] for part in ("forward", "backward", "optimizer")] == [200, 200, 100]


def test_classes_of_a_host(tmp_path: Path, imported) -> None:  # type: ignore[no-untyped-def]
    run = imported(
        write_trace(tmp_path / "a.json", host_trace(), **of_rank(0, 2, "gloo")),
        write_trace(tmp_path / "b.json", host_trace(late_us=500), **of_rank(1, 2, "gloo")),
    )
    steps = run.steps[run.steps["rank"] == 0]
    means = {name: round(1e6 * steps[f"{name}_s"].mean()) for name in ("step", *CLASSES)}
    assert means == {"step": 10_000, "compute": 6000, "data": 1000, "h2d": 0, "comm": 1000, "other": 2000}
    parts = [round(1e6 * steps[f"compute_{part}_s"].mean()) for part in ("forward", "backward", "optimizer")]
    assert parts == [2000, 3000, 1000]
    assert round(1e6 * steps["straggler_s"].mean()) == 500
    assert set(run.collectives["bytes"]) == {4000}


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ddlprof", *words])
    return main()


def test_the_command_and_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(tmp_path / "a.json", device_trace(), **of_rank(0, 2))
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "import", "a.json", "--out", "run") == 0
    assert capsys.readouterr().out == "1 of 2 ranks, 5 steps\nnext: ddlprof report run\n"
    assert command(monkeypatch, "report", "run") == 0
    card = capsys.readouterr().out
    assert "1 of 2 ranks left a file" in card
    assert "; 5 steps, 1 of 2 ranks)" in card
    assert "compute 0.50" in card
    assert command(monkeypatch, "import", "a.json", "--out", "run") == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(("steps", "said"), [(0, "the traces hold no whole step"), (1, "too few steady steps")])
def test_whoever_has_a_trace_is_told_to_record_another(
    steps: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_trace(tmp_path / "a.json", device_trace(steps=1), **of_rank(0, 1))
    if not steps:
        trace.write_bytes(trace.read_bytes()[: trace.stat().st_size // 2])
    assert command(monkeypatch, "import", str(trace), "--out", str(tmp_path / "run")) == 0
    assert f"1 rank, {'1 step' if steps else '0 steps'}" in capsys.readouterr().out
    assert command(monkeypatch, "report", str(tmp_path / "run")) == 0
    card = capsys.readouterr().out
    assert said in card
    assert "next   let torch.profiler record" in card


def test_two_traces_of_one_rank(tmp_path: Path, imported) -> None:  # type: ignore[no-untyped-def]
    traces = [write_trace(tmp_path / name, device_trace(), **of_rank(0, 2)) for name in ("a.json", "b.json")]
    with pytest.raises(UserError, match="both of rank 0"):
        imported(*traces)
    assert not list(tmp_path.glob("run-*"))


def test_an_idle_device_is_said_to_wait_for_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a trace kernels are seen, so what idles between them is in `other`, and no loop of a script is to blame."""
    device = Device()
    events = []
    for number in range(40):
        at = 1_000_000 + 1000 * number
        events += [mark(100 + number, at, 1000), forward(at + 5, 900)]
        for kernel in range(200):
            device.run(GEMM, at + 5 * kernel, at + 5 * kernel + 1, 2)
    write_trace(tmp_path / "a.json", [*events, *device.events], **of_rank(0, 1))
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "import", "a.json", "--out", "run") == 0
    assert command(monkeypatch, "report", "run") == 0
    card = capsys.readouterr().out
    assert "OTHER-BOUND (60 % of the step" in card
    assert "the device has nothing to do" in card
    assert "the device waits for kernels to be launched (60 % of the step" in card


def test_what_recommend_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    traces = [write_trace(tmp_path / f"{rank}.json", device_trace(steps=8), **of_rank(rank, 2)) for rank in range(2)]
    import_traces(traces, tmp_path / "run")
    work = ["recommend", str(tmp_path / "run"), "--budget", "30d", "--samples", "100000"]
    assert command(monkeypatch, *work) == 2
    error = capsys.readouterr().err
    assert "--batch" in error
    assert error.count("\n") == 1
    assert command(monkeypatch, *work, "--batch", "32", "--why") in (0, 1)
    assert "A100" in capsys.readouterr().out


def test_nothing_secret_is_taken_over(tmp_path: Path) -> None:
    """Tools write environments and command lines into traces."""
    secret = "hf_0123456789"
    beside = {"metadata": {"env": {"HF_TOKEN": secret}}, "username": secret, "trace_id": secret, "tw_job": secret}
    import_traces([write_trace(tmp_path / "a.json", device_trace(), **of_rank(0, 2), **beside)], tmp_path / "run")
    assert not any(secret.encode() in path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())


def test_a_folder_of_traces_and_other_files(tmp_path: Path, imported) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / "traces"
    folder.mkdir()
    write_trace(folder / "a.pt.trace.json.gz", device_trace(), **of_rank(0, 2))
    write_trace(folder / "b.pt.trace.json", device_trace(), **of_rank(1, 2))
    (folder / "config.json").write_text('{"lr": 1}')
    (folder / "readme.txt").write_text("x")
    run = imported(folder)
    assert set(run.steps["rank"]) == {0, 1}
    assert run.manifest.name == "traces"
    (tmp_path / "empty").mkdir()
    for path, message in ((tmp_path / "empty", "no traces in this folder"), (folder / "config.json", "no traceEvents")):
        with pytest.raises(UserError, match=message):
            imported(path)
