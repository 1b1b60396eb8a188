"""`ddlprof plan` as a user types it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.hetero.plan_file import read_plan
from ddlprof.extensions.hetero.training import apply
from ddlprof.model.operators import Layer, Operator, StepMemory, StepOperators
from ddlprof.recommender import Measurement, Workload
from tests.unit.cli.commands import ddlprof, write_workload

pytestmark = pytest.mark.usefixtures("alone")
CLUSTER = {
    "machines": [
        {"gpu": "V100", "gpus": 2, "network": "10 Gbit/s"},
        {"gpu": "GTX 1080 Ti", "gpus": 2, "network": "10 Gbit/s"},
    ]
}
LAYERS = tuple(Layer(f"conv{number}", 4e6 * 4**number, 1e9) for number in range(4))
NET = Workload(
    "net", layers=4, gradient_bytes=sum(layer.gradient_bytes for layer in LAYERS), global_batch=64,
    measurements=[Measurement(gpu_model="V100", placement=(1,), batch_per_gpu=64, step_s=0.05, compute_s=0.05)],
)  # fmt: skip
PRODUCT = Operator("product", "forward", "mm", "fp32", (1, 6400, 1024, 1024), 1.3e10, 6e7, 1, 20, 1, 4e6)
STEP = StepOperators(64, "fp32", (PRODUCT, replace(PRODUCT, phase="backward", count=40)), layers=LAYERS)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_workload(replace(NET, step=STEP), tmp_path / "job.json")
    (tmp_path / "cluster.json").write_text(json.dumps(CLUSTER))
    return tmp_path


def test_a_plan_beside_the_uniform_ones(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "job.json", "--machines", "cluster.json", "-o", "-", "-o", "all.json", "-o", "net.plan.json"]
    assert ddlprof(monkeypatch, *words, "-o", "step.trace.json") == 0
    out, err = capsys.readouterr()
    assert err == "".join(f"ddlprof: wrote {name}.json\n" for name in ("all", "net.plan", "step.trace"))
    assert out.startswith("ddlprof  plan net · 64 samples on up to 4 GPUs of 2 machines · 4 layers in 3 groups\n")
    found = json.loads(Path("all.json").read_text())
    steps = {name: each["step_s"] for name, each in found["uniform"].items()}
    assert len(steps) == 4
    assert found["gain"] == pytest.approx(min(steps.values()) / found["plan"]["step_s"])
    assert found["gain"] > 1.5  # 340 MB of gradients over 10 Gbit/s
    assert sum(found["plan"]["samples"]) == 64
    plan = read_plan("net.plan.json")
    assert plan.samples == tuple(each for each in found["plan"]["samples"] if each)
    assert [group.gradient_bytes for group in plan.groups] == [each["gradient_bytes"] for each in found["groups"]]


def test_the_timeline_ends_when_the_step_does_and_nothing_overlaps(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["plan", "job.json", "--machines", "cluster.json", "-o", "all.json", "-o", "step.trace.json"]
    assert ddlprof(monkeypatch, *words, "--global-batch", "1024") == 0
    trace = json.loads(Path("step.trace.json").read_text())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    step_s = json.loads(Path("all.json").read_text())["plan"]["step_s"]
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(step_s * 1e6, rel=1e-6)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in slices:
        tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) >= 4
    for spans in tracks.values():
        spans.sort()
        assert all(one[1] <= other[0] + 1e-3 for one, other in zip(spans, spans[1:], strict=False))  # noqa: RUF007
    named = {(event["pid"], event.get("tid")) for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert set(tracks) <= named


GIB = 2**30
BLOCKS = tuple(
    Layer(f"blocks.{number}", GIB, 1e9, input_bytes=8e6 if number else None, saved_bytes=1.6e7) for number in range(8)
)
LARGE = replace(
    STEP, layers=BLOCKS, optimizer="adam-single",
    memory=StepMemory(
        parameter_bytes=8.0 * GIB, trained_bytes=8.0 * GIB, saved_bytes=1.28e8, temporary_bytes=1e7, input_bytes=6.4e6
    ),
)  # fmt: skip
"""8 GiB of parameters: 32 GiB of states with Adam, more than any GPU of the cluster has."""


def test_a_model_that_fits_on_no_gpu_is_divided_over_them(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_workload(replace(NET, layers=8, gradient_bytes=8.0 * GIB, step=LARGE), files / "large.json")
    words = ["plan", "large.json", "--machines", "cluster.json", "-o", "-", "-o", "all.json", "-o", "net.plan.json"]
    assert ddlprof(monkeypatch, *words, "-o", "step.trace.json") == 0
    out = capsys.readouterr().out
    assert "plan: stages" in out
    assert "1F1B" in out
    found = json.loads(Path("all.json").read_text())
    plan = found["plan"]
    assert found["split"] is None
    assert plan == found["stages"]
    assert sum(stage["layers"] for stage in plan["stages"]) == 8
    devices = [device for stage in plan["stages"] for device in stage["devices"]]
    assert all(0 < each["memory_bytes"] <= each["memory_limit_bytes"] for each in devices)
    fast = sum(stage["layers"] for stage in plan["stages"] if stage["devices"][0]["device"].startswith("V100"))
    assert fast > 4
    assert 0 < plan["bubble"] < 1
    assert {link["name"] for link in plan["links"]} >= {"activations and gradients"}
    read = read_plan("net.plan.json")
    assert [each.begins for each in read.stages] == ["", *(stage["begins"] for stage in plan["stages"][1:])]
    assert read.micro_batches * sum(read.ranks[rank].samples for rank in read.stages[0].ranks) == 64
    slices = [event for event in json.loads(Path("step.trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(plan["step_s"] * 1e6, rel=1e-6)
    with pytest.raises(UserError, match="apply_stages"):
        apply("net.plan.json", None, None)


def test_a_model_for_which_all_gpus_together_are_too_small_is_one_line(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "cluster.json").write_text(json.dumps({"machines": CLUSTER["machines"][1:]}))
    write_workload(replace(NET, layers=8, gradient_bytes=8.0 * GIB, step=LARGE), files / "large.json")
    assert ddlprof(monkeypatch, "plan", "large.json", "--machines", "cluster.json") == 2
    err = capsys.readouterr().err
    assert "nor does it with its layers divided over them" in err
    assert err.count("\n") == 1


def test_without_layers_all_are_taken_for_equal_and_it_is_said(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_workload(NET, files / "old.json")
    assert ddlprof(monkeypatch, "plan", "old.json", "--machines", "cluster.json") == 0
    assert "its layers were not recorded: all are taken for equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("job", "words", "line"),
    [
        ({}, ["--machines", "none.yaml"], "none.yaml: cannot be read"),
        ({}, ["--machines", "cluster.json", "--global-batch", "10000000000"], "at most 1,000,000,000 samples"),
        ({"gradient_bytes": None}, ["--machines", "cluster.json"], "its gradient bytes are not known"),
        ({"global_batch": None}, ["--machines", "cluster.json"], "give --global-batch"),
        ({}, ["--machines", "cluster.json", "-o", "no/plan.json"], "no/plan.json: cannot be written"),
    ],
)
def test_bad_input_is_one_line(
    job: dict[str, None], words: list[str], line: str, files: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write_workload(replace(NET, **job), files / "j.json")  # type: ignore[arg-type]
    assert ddlprof(monkeypatch, "plan", "j.json", *words) == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"schema": 1, "ranks": []}, "ranks"),
        ({"schema": 9, "ranks": [{"device": "a", "machine": "b", "samples": 1}]}, "newer ddlprof"),
        ({"schema": 1, "ranks": [{"device": "a", "machine": "b", "samples": 0}]}, "samples"),
        ({"stages": [{"begins": "", "ranks": [1, 0]}]}, "each rank is expected once, in order"),
        ({"stages": [{"begins": "", "ranks": [0]}, {"begins": "", "ranks": [1]}], "micro_batches": 2}, "with a module"),
        ({"stages": [{"begins": "", "ranks": [0]}, {"begins": "x", "ranks": [1]}]}, "as many as there are stages, 2"),
        (
            {
                "ranks": [{"device": n, "machine": "b", "samples": 1 + (n == "b")} for n in "ab"],
                "stages": [{"begins": "", "ranks": [0]}, {"begins": "x", "ranks": [1]}],
            },
            "different numbers of samples",
        ),
        (
            {
                "schema": 1,
                "ranks": [{"device": "a", "machine": "b", "samples": 1}],
                "groups": [{"layers": "x", "gradient_bytes": 1, "server_rank": 1}],
            },
            "the plan has 1 ranks",
        ),
    ],
)
def test_a_damaged_plan_is_refused(tmp_path: Path, content: dict[str, object], words: str) -> None:
    usual = {"schema": 2, "ranks": [{"device": name, "machine": "b", "samples": 1} for name in "ab"]}
    (tmp_path / "plan.json").write_text(json.dumps(usual | content))
    with pytest.raises(UserError, match=words):
        read_plan(tmp_path / "plan.json")
