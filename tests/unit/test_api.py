"""`ddlprof.load`: the tables as data frames, and the workload."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import ddlprof
from ddlprof.base.errors import UserError
from ddlprof.model.manifest import Manifest
from ddlprof.model.records import ContextRow, Flag, JobSpan, LoaderCost
from ddlprof.recommender import Measurement
from ddlprof.recommender.workload import Recurring
from ddlprof.report.run.columns import RUN_COLUMNS
from tests.golden.runs import HERE, MS, header, manifest, simple_run, step, write_rank

EXPECTED = HERE / "two-ranks-expected"


@pytest.mark.parametrize("name", ["steps", "collectives", "ranks"])
def test_frames_are_the_csv_files(name: str) -> None:
    run = ddlprof.load(HERE / "two-ranks")
    frame = getattr(run, name)
    texts = dict.fromkeys(("group", "flags", "dimension"), str)
    expected = pd.read_csv(EXPECTED / f"{name}.csv", keep_default_na=True, dtype=texts)
    for column in {"flags", "dimension"} & set(expected):
        expected[column] = expected[column].fillna("")
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False)
    assert getattr(run, name) is frame


def test_summary_is_indexed_by_class() -> None:
    summary = ddlprof.load(HERE / "two-ranks").summary()
    assert list(summary.columns) == ["mean_s", "share", "median_s", "p95_s"]
    assert summary.loc["straggler", "mean_s"] == 0.01


def test_the_parts_of_the_job_are_a_frame() -> None:
    run = ddlprof.load(HERE / "two-ranks")
    expected = pd.read_csv(EXPECTED / "job.csv")
    pd.testing.assert_frame_equal(run.job, expected, check_dtype=False)
    assert run.job is run.job


def test_the_workload_tells_what_the_job_took_besides_steps(tmp_path: Path) -> None:
    rows = [step(n, flags=Flag.CHECKPOINT if n in (10, 20) else 0) for n in range(40)]
    saved = [JobSpan("checkpoint", n * 10 * MS + 1, 2 * MS) for n in (10, 20)]
    write_rank(tmp_path, replace(header(), age_ns=500 * MS, spans=True), rows, records=saved)
    manifest().write(tmp_path)
    facts = ddlprof.load(tmp_path).workload().job
    assert facts is not None
    assert facts.start_up_s == 0.5
    assert facts.checkpoint == Recurring(0.002, 10 * 32)
    assert facts.evaluation is None
    assert facts.compute_s_per_sample == pytest.approx(0.008 / 32)
    assert facts.compute_share == pytest.approx(0.8)
    simple_run(tmp_path / "older")
    assert ddlprof.load(tmp_path / "older").workload().job is None


def test_the_workload_tells_that_the_machine_was_shared(tmp_path: Path) -> None:
    for name, queued_ms, share in (("busy", 200, 0.5), ("quiet", 4, 0.01)):
        counters = [
            ContextRow(at * MS, 99.0, 0, 0, None, None, None, process_queued_ns=at * queued_ms * MS // 400)
            for at in (0, 200, 400)
        ]
        write_rank(tmp_path / name, replace(header(), age_ns=0, spans=True), [step(n) for n in range(40)],
                   records=counters)  # fmt: skip
        manifest().write(tmp_path / name)
        workload = ddlprof.load(tmp_path / name).workload()
        assert workload.job is not None
        assert workload.job.queued_share == workload.measurements[0].queued_share == pytest.approx(share)
        assert any("for 50 % of the time" in each for each in workload.assumed) is (name == "busy")


def test_not_measured_is_missing(tmp_path: Path) -> None:
    rows = [replace(step(n, data_ms=None), samples=None) for n in range(9)]
    write_rank(tmp_path, header(), rows)
    run = ddlprof.load(tmp_path)
    assert run.steps["data_s"].isna().all()
    assert run.steps["samples"].isna().all()
    assert run.steps["h2d_s"].tolist() == [0.0] * 9
    assert run.summary()["mean_s"].isna()["data"]
    assert run.manifest is None


def test_a_run_without_ranks_has_empty_frames(tmp_path: Path) -> None:
    manifest().write(tmp_path)
    run = ddlprof.load(str(tmp_path))
    assert list(run.steps.columns) == list(RUN_COLUMNS["steps"])
    assert len(run.steps) == len(run.collectives) == len(run.ranks) == len(run.summary()) == 0


def test_the_workload_holds_the_model_and_what_was_measured() -> None:
    workload = ddlprof.load(HERE / "two-ranks").workload()
    assert (workload.name, workload.layers, workload.parameter_tensors) == ("SmallNet", 4, 8)
    assert (workload.gradient_bytes, workload.global_batch, workload.flops_per_sample) == (500_000, 64, 3e6)
    (measured,) = workload.measurements
    assert measured == Measurement(
        instance_type=None, placement=(2,), batch_per_gpu=32, step_s=measured.step_s, compute_s=measured.compute_s,
        data_s=0.015, exposed_comm_s=0.014, precision="fp32", strategy="ddp", grad_accum=1, h2d_s=0.0, other_s=0.005,
    )  # fmt: skip
    assert (workload.buckets, workload.kernels_per_step) == (2, None)
    assert (workload.loader_cpu_s_per_sample, workload.loader_bytes_per_sample) == (None, None)
    assert measured.step_s == pytest.approx(0.0952, rel=0.01)


def test_placement_counts_ranks_on_each_node(tmp_path: Path) -> None:
    for rank, node in enumerate("abb"):
        write_rank(tmp_path, header(rank, 3, node=node, device="NVIDIA A10G"), [step(n) for n in range(9)])
    manifest(3).write(tmp_path)
    (measured,) = ddlprof.load(tmp_path).workload().measurements
    assert measured.placement == (1, 2)
    assert measured.gpu_model == "NVIDIA A10G"


def test_what_a_sample_costs_to_load(tmp_path: Path) -> None:
    cost = LoaderCost(8, samples=200, cpu_ns=10**9, asked_bytes=40_000, storage_bytes=0)
    write_rank(tmp_path, header(), [step(n) for n in range(9)], records=[cost])
    manifest().write(tmp_path)
    workload = ddlprof.load(tmp_path).workload()
    assert (workload.loader_cpu_s_per_sample, workload.loader_bytes_per_sample) == (0.005, 200.0)
    assert workload.loader_blocked_s_per_sample is None
    blocked = replace(cost, blocked_ns=2 * 10**9)
    write_rank(tmp_path / "blocked", header(), [step(n) for n in range(9)], records=[blocked])
    manifest().write(tmp_path / "blocked")
    workload = ddlprof.load(tmp_path / "blocked").workload()
    assert workload.loader_blocked_s_per_sample == 0.01


@pytest.mark.parametrize(
    ("device", "machine", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", "p4d.24xlarge", ("p4d.24xlarge", "NVIDIA A100-SXM4-40GB")),
        ("NVIDIA A100-SXM4-40GB", "p99.48xlarge", (None, "NVIDIA A100-SXM4-40GB")),
        ("NVIDIA A100-SXM4-40GB", None, (None, "NVIDIA A100-SXM4-40GB")),
        ("cpu", "p4d.24xlarge", (None, None)),
    ],
)
def test_the_machine_that_was_measured(
    device: str, machine: str | None, expected: tuple[str | None, str | None], tmp_path: Path
) -> None:
    write_rank(tmp_path, header(device=device), [step(n) for n in range(9)])
    made = manifest()
    made.host["instance_type"] = machine
    made.write(tmp_path)
    (measured,) = ddlprof.load(tmp_path).workload().measurements
    assert (measured.instance_type, measured.gpu_model) == expected


def test_a_workload_needs_steps_and_a_batch(tmp_path: Path) -> None:
    manifest().write(tmp_path)
    with pytest.raises(UserError, match="no step was measured"):
        ddlprof.load(tmp_path).workload()
    run = simple_run(tmp_path / "run")
    made = Manifest.read(run)
    made.training.batch_per_rank = made.training.global_batch = None
    made.write(run)
    with pytest.raises(UserError, match="batch size could not be told"):
        ddlprof.load(run).workload()
    workload = ddlprof.load(run).workload(batch_per_rank=16)
    assert (workload.measurements[0].batch_per_gpu, workload.global_batch) == (16, 16)
    assert list(workload.assumed) == ["batch of the run: 16, as given"]
    with pytest.raises(UserError, match=r"measurement: batch_per_gpu: a whole number from 1 .*; profile it again$"):
        ddlprof.load(run).workload(batch_per_rank=-16)
    (run / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"no manifest\.json"):
        ddlprof.load(run).workload(batch_per_rank=16)


@pytest.mark.parametrize(
    ("strategy", "stage", "ranks", "expected", "assumed"),
    [
        ("none", None, 1, "ddp", 0),
        ("none", None, 2, "ddp", 1),  # gradients averaged by hand, most likely
        ("ddp", None, 2, "ddp", 0),
        ("zero", 1, 2, "zero", 0),
        ("zero", 3, 2, "fsdp", 0),
        ("fsdp", None, 2, "fsdp", 0),
        ("fsdp", 2, 2, "zero", 0),
        ("ddp+fsdp", 3, 2, "fsdp", 1),
        ("fsdp+tp", 3, 2, "fsdp+tp", 0),
    ],
)
def test_strategies_as_the_predictor_names_them(
    strategy: str, stage: int | None, ranks: int, expected: str, assumed: int, tmp_path: Path
) -> None:
    for rank in range(ranks):
        write_rank(tmp_path, header(rank, ranks), [step(n) for n in range(9)])
    made = manifest(ranks)
    made.training.strategy, made.training.zero_stage = strategy, stage
    made.write(tmp_path)
    workload = ddlprof.load(tmp_path).workload()
    assert workload.measurements[0].strategy == expected
    assert len(workload.assumed) == assumed


def test_flags_are_a_column_like_any_other() -> None:
    """Not an attribute: `DataFrame.flags` is of pandas."""
    steps = ddlprof.load(HERE / "two-ranks").steps
    assert steps["flags"].str.contains("warmup").sum() == 8
