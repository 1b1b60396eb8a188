"""The table and the remarks of `ddlprof characterize`, from made-up experiments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddlprof.extensions.characterize import report as characterize
from ddlprof.extensions.characterize.differential import ExperimentTimes, stalls
from ddlprof.extensions.characterize.experiment import ALL_REPLAYED, COLD, ONE_REPLAYED, WARM
from ddlprof.extensions.characterize.model import Reads
from ddlprof.extensions.characterize.report import Comparison, ExperimentLine, ExperimentOutcome, as_table
from ddlprof.model.classes import TIMES
from ddlprof.report.json_csv import json_of

MIB = 2**20


def measured(step_s: float, **times_s: float) -> ExperimentTimes:
    return ExperimentTimes([step_s], {**dict.fromkeys(TIMES), "step": step_s, **times_s})


EXPERIMENTS = {
    ALL_REPLAYED: measured(0.100, compute=0.1, data=0.0, data_fetch=0.0, data_prep=0.0, comm=0.0),
    WARM: measured(0.150, compute=0.1, data=0.045, data_fetch=0.0, data_prep=0.045, comm=0.0),
    COLD: measured(0.130, compute=0.1, data=0.03, data_fetch=0.01, data_prep=0.02, comm=0.0),
}


@pytest.fixture
def result() -> Comparison:
    return Comparison(
        name="train",
        directory="runs/x",
        reference_step_s=0.13,
        experiments=[
            ExperimentLine(name, [f"runs/x/{name}"], 1, 100, m.step_s, m.step_s, m.step_s, m.times_s, 3, [], 10, 9)
            for name, m in EXPERIMENTS.items()
        ],
        stalls=stalls(EXPERIMENTS),
        remarks=["mind this"],
    )


def test_table(result: Comparison) -> None:
    assert as_table(result) == (
        "ddlprof  characterize train · step 130 ms\n"
        "\n"
        "STALL         BY DIFFERENCE ms  DIRECT ms    DISAGREEMENT  DIFFERENCE OF                DIRECT IS\n"
        "interconnect  -                 0 (0.0 %)    -             all-replayed - one-replayed  comm of all-replayed\n"
        "prep          50 (38.5 %)       45 (34.6 %)  3.8 %         warm - all-replayed          data of warm\n"
        "fetch         -20 (-15.4 %)     10 (7.7 %)   -23.1 %       cold - warm                  "
        "data_fetch of cold, less that of warm\n"
        "data          30 (23.1 %)       30 (23.1 %)  0.0 %         cold - all-replayed          data of cold\n"
        "network       -                 -            -             network-run - warm           network of network-run"
        "\n\n"
        "EXPERIMENT    RANKS  STEPS  STEP ms  COMPUTE  DATA_FETCH  DATA_PREP  DATA  H2D  COMM  STRAGGLER  OTHER\n"
        "all-replayed  1      100    100      100      0           0          0     -    0     -          -\n"
        "warm          1      100    150      100      0           45         45    -    0     -          -\n"
        "cold          1      100    130      100      10          20         30    -    0     -          -\n"
        "\n"
        "Remark   mind this\n"
        "Files    runs/x\n"
    )


def test_json(result: Comparison) -> None:
    content = json.loads(json_of(result))
    assert content["schema"] == 1
    fetch = next(stall for stall in content["stalls"] if stall["name"] == "fetch")
    assert fetch["stall_s"] == pytest.approx(-0.02)
    assert fetch["stall_low_s"] is None
    assert fetch["disagreement_share"] == pytest.approx(-0.03 / 0.13)
    assert content["experiments"][0]["runs"] == ["runs/x/all-replayed"]


def test_a_negative_difference_is_remarked() -> None:
    [remark] = characterize._negative(stalls(EXPERIMENTS))
    assert remark.startswith("fetch by difference is negative")


def test_reasons_for_a_disagreement() -> None:
    one = measured(0.1, compute=0.08)
    every = measured(0.12, compute=0.1, straggler=0.0)
    warm = measured(0.15, compute=0.1, straggler=0.01, data_fetch=0.02, data_prep=0.0)
    cold = measured(0.17, compute=0.1, straggler=0.01, data_fetch=0.02, data_prep=0.02)
    remarks = list(characterize._reasons({ONE_REPLAYED: one, ALL_REPLAYED: every, WARM: warm, COLD: cold}, step_s=0.17))
    assert [remark.split(":")[0] for remark in remarks] == [
        "a step computes 20 ms longer in all-replayed than in one-replayed (shared cores or memory)",
        "with real input the ranks wait 10 ms a step longer for a later rank",
        "with a warm cache the loader is still blocked for 20 ms a step (remote storage, a lock, a sleep)",
        "reading from storage takes 20 ms a step of processor time, or of waiting for a processor",
    ]
    assert not list(characterize._reasons({ALL_REPLAYED: every}, step_s=0.12))


def outcome(files: set[str], mapped: set[str], asked: int, disk: int) -> ExperimentOutcome:
    return ExperimentOutcome([Path("x")], [], [Reads(frozenset(files), frozenset(mapped), asked, disk)])


@pytest.mark.parametrize(
    ("name", "reads", "says"),
    [
        (COLD, outcome({"/a"}, set(), 100 * MIB, 99 * MIB), None),
        (COLD, outcome({"/a"}, set(), 100 * MIB, 40 * MIB), "only 40 % of the 100 MiB read came from storage"),
        (COLD, outcome({"/a"}, {"/a"}, 0, 3 * MIB), "/a mapped into memory: pages in use stay in the cache"),
        (COLD, outcome(set(), set(), 100, 0), "nothing to make cold"),
        (WARM, outcome({"/a"}, set(), 100 * MIB, 0), None),
        (WARM, outcome({"/a"}, set(), 100 * MIB, 40 * MIB), "40 % of the 100 MiB read came from storage"),
        (WARM, outcome(set(), set(), 100, 0), None),
        (COLD, ExperimentOutcome([Path("x")], [], []), "what the loaders read is not known"),
    ],
)
def test_what_the_cache_was(name: str, reads: ExperimentOutcome, says: str | None) -> None:
    remarks = list(characterize._cache(name, reads))
    assert len(remarks) == (says is not None)
    if says:
        assert says in remarks[0]
