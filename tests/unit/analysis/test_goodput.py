"""Goodput over the attempts of a job: a simulated month whose truth is known, and attempts made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.goodput import BEGINNING, GOODPUT_PARTS, LAST, MATCHED, TOLD, goodput, in_order
from ddlprof.analysis.run import analyse
from ddlprof.analysis.trials import trials_of
from ddlprof.model.trial import AttemptFacts, ReadFrom, SavedAt
from ddlprof.store import load_run
from scripts.lab.simulated_month import Job, write_month
from tests.short import first_short

PARTS = {"steps": 100.0, "checkpoint": 10.0, "evaluation": 0.0, "start_up": 20.0, "hang": 0.0, "idle": 5.0}


def trial(begin_s: float, steps: int = 100, status: str = "torn", **facts: object) -> AttemptFacts:
    made = AttemptFacts(begin_s, begin_s + 135, 4, 1, steps, 1.0, PARTS, status, checkpoints=2)
    return replace(made, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("names_files", [True, False])
@pytest.mark.parametrize("seed", first_short([1, 2, 3]))
def test_a_month_with_known_truth(tmp_path: Path, seed: int, names_files: bool) -> None:
    truth = write_month(tmp_path / "run", Job(seed, names_files=names_files))
    found = goodput(trials_of(analyse(load_run(tmp_path / "run"))))
    assert found is not None
    assert len(found.failures) == truth.failures > 5
    assert found.new_steps == truth.new_steps
    total_s = sum(truth.parts_s.values())
    assert found.total_s == pytest.approx(total_s, rel=0.001)
    for part in GOODPUT_PARTS:
        assert found.parts_s[part] == pytest.approx(truth.parts_s.get(part, 0.0), rel=0.05, abs=0.0005 * total_s), part
    assert found.share == pytest.approx(truth.useful_s / total_s, rel=0.01)
    assert found.parts_s["hang"] > 0


def test_the_parts_add_up_to_the_time_of_all_machines() -> None:
    found = goodput([trial(0, saves=(SavedAt(60),)), trial(200, ranks=2, status="ok")])
    assert found is not None
    assert found.total_s == pytest.approx(135 * 4 + 65 * 4 + 135 * 2)
    assert found.parts_s["waiting"] == 65 * 4
    assert found.parts_s["repeated_steps"] == 40 * 2
    assert found.useful_s == 100 * 4 + 60 * 2
    (failure,) = found.failures
    assert failure.lost_s == 65 * 4 + 20 * 2 + 40 * 2
    assert found.checkpoint_s == 5
    assert found.every_steps == 50
    assert found.time_between_failures_s == 270


def test_where_an_attempt_began() -> None:
    saves = (SavedAt(40, "p", "a"), SavedAt(80, "p", "b"))
    cases = {
        (ReadFrom("elsewhere", "a"),): (40, MATCHED),  # renamed or moved
        (ReadFrom("p", "copied"),): (80, MATCHED),
        (ReadFrom("q", "pretrained"), ReadFrom("", "", 60)): (60, TOLD),
        (ReadFrom("q", "pretrained"),): (80, LAST),
        (ReadFrom("q", "counts something else", 5000),): (80, LAST),
        (): (0, BEGINNING),
    }
    for reads, expected in cases.items():
        second = in_order([trial(0, saves=saves), trial(200, reads=reads)])[1]
        assert (second.first_step, second.known_by) == expected
        assert second.repeated == 100 - expected[0]
    # Runs of an older version tell when they saved, not what they read.
    assert in_order([trial(0, saves=(SavedAt(80),)), trial(200)])[1].known_by == LAST
    assert in_order([trial(0), trial(200)])[1].known_by == BEGINNING
    assert in_order([trial(0, reads=(ReadFrom(told=500),))])[0].first_step == 500


def test_what_followed_a_measured_part_is_not_taken_for_waiting() -> None:
    found = goodput([trial(0, status="stopped"), trial(5000, status="ok")])
    assert found is not None
    assert found.parts_s["waiting"] == 0
    assert found.failures == []


def test_the_last_attempt_is_a_failure_only_where_it_hung_or_said_so() -> None:
    hung = {**PARTS, "hang": 900.0}
    for facts, failures in (({"parts_s": hung}, 1), ({"status": "exception"}, 1), ({"status": "ok"}, 0), ({}, 0)):
        found = goodput([trial(0, **facts)])
        assert found is not None
        assert len(found.failures) == failures
    assert goodput([]) is None
