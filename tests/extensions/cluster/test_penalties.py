"""What a placement costs a job of a trace."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.jobs import Job
from ddlprof.extensions.cluster.machines import Level, Placement, parse_cluster
from ddlprof.extensions.cluster.penalties import (
    SHIPPED,
    ModelPenalties,
    PenalisedSpeeds,
    Penalties,
    read_penalties,
    shipped_penalties,
)

LM = ModelPenalties("V100", "LM", (2, 4, 8), (2.0, 4.0, 6.0), batch_per_gpu=10)
NET = ModelPenalties("V100", "ResNet-50", (2, 4, 8), (0.9, 1.2, 1.4), batch_per_gpu=32)


def job(gpus: int, model: str | None = "LM", batch_per_gpu: int = 10) -> Job:
    return Job("j", 0, gpus, samples=1000, batch=batch_per_gpu * gpus, step_s=2.0, model=model)


def factor(penalties: Penalties, model: str | None, gpus: int, level: Level = Level.RACK) -> float:
    return penalties.of("V100", model, 10, gpus, level).factor


def test_between_and_beyond_the_measured_numbers_of_gpus() -> None:
    penalties = Penalties([LM])
    assert factor(penalties, "LM", 3) == pytest.approx(2 + 2 * math.log(1.5) / math.log(2))
    assert factor(penalties, "LM", 64) == 6.0


def test_nothing_is_faster_than_the_best_placement() -> None:
    assert factor(Penalties([NET]), "ResNet50", 2) == 1.0


@pytest.mark.parametrize("model", [None, "A3C"])
def test_an_unknown_model_has_the_median_of_all_and_their_spread(model: str | None) -> None:
    penalties = Penalties([LM, NET, ModelPenalties("V100", "X", (8,), (3.0,))])
    found = penalties.of("V100", model, 10, 8, Level.RACK)
    assert found.factor == 3.0
    assert 1.4 < found.low < 3.0 < found.high < 6.0
    own = penalties.of("V100", "LM", 10, 8, Level.RACK)
    assert own.high / own.low < found.high / found.low


def test_the_step_and_its_exposed_communication() -> None:
    speeds = PenalisedSpeeds(parse_cluster("2x2x8"), Penalties([LM]))
    packed = speeds.step(job(8), Placement((8,)), 80)
    assert (packed.step_s, packed.comm_s) == (2.0, 0.0)
    spread = speeds.step(job(8), Placement((4, 4)), 80)
    assert (spread.step_s, spread.comm_s) == (12.0, 10.0)
    assert spread.low_s <= spread.step_s <= spread.high_s


@pytest.mark.parametrize(("gpus", "batch"), [(4, 80), (8, 160)])
def test_other_gpus_or_batches_are_not_known(gpus: int, batch: int) -> None:
    speeds = PenalisedSpeeds(parse_cluster("1x8"), Penalties([LM]))
    with pytest.raises(UserError, match="none is known on"):
        speeds.step(job(8), Placement((gpus,)), batch)


def test_an_unmeasured_gpu_is_refused() -> None:
    with pytest.raises(UserError, match=r"none are known of A100, only of V100; give a file with --penalties"):
        Penalties([LM]).of("A100", "LM", 10, 8, Level.RACK)


def test_the_shipped_figures() -> None:
    content = json.loads(SHIPPED.read_text())
    assert content["licence"] == "MIT"
    assert {row["gpu_model"] for row in content["penalties"]} == {"K80", "P100", "V100"}
    lm = shipped_penalties().of("V100", "LM", 10, 8, Level.RACK)
    assert lm.factor == 9.388
    assert shipped_penalties().of("V100", "LM", 10, 8, Level.NETWORK) == lm


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{}", "penalties"),
        ('{"penalties": []}', "penalties"),
        ('{"penalties": [{"gpu_model": "V100", "model": "LM", "gpus": [2], "slowdown": [0]}]}', "slowdown"),
        ('{"penalties": [{"gpu_model": "V100", "model": "LM", "gpus": [2, 4], "slowdown": [1]}]}', "as many"),
        ('{"penalties": [{"gpu_model": "V100", "model": "LM", "gpus": [4, 2], "slowdown": [1, 2]}]}', "ascending"),
    ],
)
def test_bad_files(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(UserError, match=says) as caught:
        read_penalties(path)
    assert str(path) in str(caught.value)
