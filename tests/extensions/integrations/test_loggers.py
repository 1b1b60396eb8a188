"""Finished runs in the real libraries, read back as they have it."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ddlprof
from ddlprof.base.errors import UserError
from ddlprof.extensions.integrations import mlflow as to_mlflow
from ddlprof.extensions.integrations import tensorboard as to_tensorboard
from ddlprof.extensions.integrations import wandb as to_wandb
from ddlprof.extensions.integrations.scalars import points
from tests.golden.runs import header, manifest, simple_run, write_rank

TWO_RANKS = Path(__file__).parents[2] / "golden/two-ranks"


@pytest.fixture(scope="module")
def run() -> Any:
    return ddlprof.load(TWO_RANKS)


def test_a_point_is_the_mean_of_some_steps_of_all_ranks(run: Any) -> None:
    found = list(points(run, 10))
    assert [point.step for point in found] == [9, 19, 29]
    steps = run.steps[run.steps["step"].between(10, 19)]
    for name, value in found[1].values.items():
        assert value == pytest.approx(steps[name.removeprefix("ddlprof/")].mean())
    assert found[1].values["ddlprof/straggler_s"] > 0
    assert found[0].unix_s < found[1].unix_s
    assert len(list(points(run, 7))) == 5


def test_what_was_not_measured_is_not_logged(tmp_path: Path) -> None:
    (point, *_) = points(ddlprof.load(simple_run(tmp_path, data_ms=None)), 10)
    assert "ddlprof/compute_s" in point.values
    assert not [name for name in point.values if "data" in name]
    assert point.values["ddlprof/h2d_s"] == 0


def test_without_steps_or_with_bad_input_it_says_so(run: Any, tmp_path: Path) -> None:
    write_rank(tmp_path, header(), [])
    manifest().write(tmp_path)
    with pytest.raises(UserError, match="no step was measured"):
        to_tensorboard.log(ddlprof.load(tmp_path), tmp_path / "logs")
    with pytest.raises(UserError, match="1 or more"):
        to_tensorboard.log(run, tmp_path / "logs", every=0)


@pytest.mark.parametrize(
    ("module", "log", "extra"),
    [
        ("tensorboard.summary", to_tensorboard.log, "tensorboard"),
        ("wandb", to_wandb.log, "wandb"),
        ("mlflow", to_mlflow.log, "mlflow"),
    ],
)
def test_without_the_library_it_says_what_to_install(
    module: str, log: Any, extra: str, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"pip install 'ddlprof\[{extra}\]'"):
        log(run, str(tmp_path)) if extra == "tensorboard" else log(run)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard", "ignore::DeprecationWarning:google")
def test_tensorboard(run: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    assert to_tensorboard.log(run, tmp_path / "logs") == 3
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    assert set(events.Tags()["tensors"]) == {name for point in points(run, 10) for name in point.values}
    for event, point in zip(events.Tensors("ddlprof/compute_s"), points(run, 10), strict=True):
        assert event.step == point.step
        assert event.wall_time == pytest.approx(point.unix_s)
        assert float(make_ndarray(event.tensor_proto)) == pytest.approx(point.values["ddlprof/compute_s"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard", "ignore::DeprecationWarning:google")
def test_the_writer_of_torch(run: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        assert to_tensorboard.log(run, writer, every=30) == 1
        events = EventAccumulator(str(tmp_path))
        events.Reload()
    (scalar,) = events.Scalars("ddlprof/step_s")
    (point,) = points(run, 30)
    assert scalar.step == 29
    assert scalar.value == pytest.approx(point.values["ddlprof/step_s"])
    assert scalar.wall_time == pytest.approx(point.unix_s)


def test_mlflow(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the only store that mlflow-skinny has without a server
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    with pytest.raises(UserError, match="no run of MLflow is under way"):
        to_mlflow.log(run)
    with mlflow.start_run() as active:
        assert to_mlflow.log(run) == 3
    history = mlflow.MlflowClient().get_metric_history(active.info.run_id, "ddlprof/data_s")
    for metric, point in zip(history, points(run, 10), strict=True):
        assert metric.step == point.step
        assert metric.value == pytest.approx(point.values["ddlprof/data_s"])
        assert metric.timestamp == round(point.unix_s * 1e3)
    assert to_mlflow.log(run, active.info.run_id, every=100) == 1


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a file of an offline run: LevelDB's log format after seven bytes."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = (1 << 15) - at % (1 << 15)
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if at + 7 + length > len(data):  # half of it is written
            return
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""


def test_wandb(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb
    from wandb.proto import wandb_internal_pb2

    with pytest.raises(UserError, match=r"wandb\.init\(\)"):
        to_wandb.log(run)
    with wandb.init(project="p", dir=str(tmp_path), mode="offline") as active:
        active.log({"loss": 1.0})
        assert to_wandb.log(run, active) == 3
        assert to_wandb.log(run, every=30) == 1
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    parse = wandb_internal_pb2.Record.FromString  # type: ignore[attr-defined]
    records: list[Any] = []
    until = time.monotonic() + 60
    while not any(each.WhichOneof("record_type") == "exit" for each in records):  # another process still writes it
        assert time.monotonic() < until
        time.sleep(0.05)
        records = [parse(data) for data in wandb_records(path.read_bytes())]
    history = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            history.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    ours = [row for row in history if "ddlprof/step" in row]
    assert history[0]["loss"] == 1.0
    assert len(ours) == 4
    for row, point in zip(ours, points(run, 10), strict=False):
        assert row["ddlprof/step"] == point.step
        assert {name: value for name, value in row.items() if name in point.values} == pytest.approx(point.values)
