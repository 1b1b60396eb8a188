"""Phases of a training: which steps the headline is of, and what is said of the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.phases import LATEST, MOST_LINES, Phases
from ddlprof.analysis.run import Attempt, analyse
from ddlprof.analysis.sources import between_sources
from ddlprof.base.errors import UserError
from ddlprof.model import codec
from ddlprof.model.manifest import Manifest
from ddlprof.model.records import End, Flag, Phase, StepRow
from ddlprof.model.source_locations import SourceLocation
from ddlprof.report.run import text
from ddlprof.report.run.data import ReportData, build_report
from ddlprof.report.run.formats import as_json
from ddlprof.report.run.phases import require_phase
from ddlprof.report.run.tables import tables_of
from ddlprof.store import RunData, load_run
from tests.golden.runs import header, manifest, step, write_rank

Stage = tuple[str, str, int, int, float]
"""Model, optimizer, parameters, steps and the milliseconds of a step."""
ONE: Stage = ("Encoder", "SGD", 1000, 40, 10.0)
TWO: Stage = ("Head", "Adam", 100, 60, 2.0)


def _run(directory: Path, stages: Sequence[Stage], ranks: int = 1, told_by: int | None = None) -> RunData:
    """A run of these stages; `told_by`: the rank whose second phase begins one step later."""
    rows: list[StepRow] = []
    phases: list[Phase] = []
    start = 0.0
    for model, optimizer, parameters, steps, ms in stages:
        phases.append(Phase(len(rows), optimizer, parameters, model))
        for number in range(steps):
            took = ms if number else 5 * ms  # what lies between the phases
            rows.append(step(len(rows), took, 0, 0, start_ms=start))
            start += took
    end = End("ok", 0, round(start * 1e6))
    for rank in range(ranks):
        moved = [replace(each, step=each.step + (each.step > 0 and rank == told_by)) for each in phases]
        write_rank(directory, header(rank, ranks), rows, records=[*(moved if len(phases) > 1 else []), end])
    manifest(ranks).write(directory)
    return load_run([str(directory)])


def _analysed(run: RunData, phase: int | None = None) -> tuple[Attempt, ReportData]:
    attempts = analyse(run, phase)
    return attempts[0], build_report(run, attempts, 0)


def _phases(attempt: Attempt) -> Phases:
    assert attempt.phases is not None
    return attempt.phases


def test_the_headline_is_of_the_phase_with_most_time(tmp_path: Path) -> None:
    attempt, report = _analysed(_run(tmp_path, [ONE, TWO]))
    assert attempt.summary.mean_ns("step") == 10e6
    assert attempt.steady_steps == 40 - 3
    lines = _phases(attempt).lines
    assert [(each.name, each.steps, each.mean_s, each.first_steps) for each in lines] == [
        ("Encoder with SGD", 40, 0.010, [0]),
        ("Head with Adam", 60, 0.002, [40]),
    ]
    assert [each.share for each in lines] == pytest.approx([440 / 568, 128 / 568])
    assert report.phase == 1
    card = text.render(report)
    assert (
        "Phase 1  Encoder with SGD, 40 steps, 10.0 ms mean, 77 % of the time of all steps: all else here is of it"
        in card
    )
    assert "--phase 2\n" in card


def test_another_phase_is_shown_when_asked_for_and_not_taken_for_the_first(tmp_path: Path) -> None:
    run = _run(tmp_path, [ONE, TWO])
    attempt, report = _analysed(run, 2)
    assert attempt.summary.mean_ns("step") == 2e6
    assert attempt.steady_steps == 60 - 3  # the first is also what lies between the phases
    assert report.model == "Head"
    told = attempt.manifest(run.manifest)
    assert told is not None
    assert run.manifest is not None
    assert run.manifest.model.forward_flops_per_sample is not None
    assert (told.model.forward_flops_per_sample, told.training.loader_workers) == (None, None)
    assert (told.training.batch_per_rank, told.training.optimizer) == (32, "Adam")
    assert _analysed(run, 1)[0].manifest(run.manifest) == run.manifest


def test_who_follows_a_run_sees_the_phase_that_trains_now(tmp_path: Path) -> None:
    run = _run(tmp_path, [ONE, TWO, ONE, TWO])
    assert _phases(analyse(run)[0]).shown.name == "Encoder with SGD"
    assert _phases(analyse(run, LATEST)[0]).shown.name == "Head with Adam"


def test_facts_of_the_update_are_those_of_one_optimizer(tmp_path: Path) -> None:
    def loops(stages: Sequence[Stage], optimizer: str) -> bool | None:
        directory = tmp_path / f"{len(stages)}-{optimizer}-{stages[0][1]}"
        attempt, _ = _analysed(_run(directory, stages), 1)
        found: Manifest = manifest()
        found.training.optimizer, found.training.optimizer_loops = optimizer, True
        told = attempt.manifest(found)
        assert told is not None
        return told.training.optimizer_loops

    assert loops([ONE, TWO], "SGD") is True
    assert loops([ONE, TWO], "Adam") is None  # looked at in another phase
    assert loops([ONE, (*TWO[:1], "SGD", *TWO[2:])], "SGD") is None  # nobody knows in which


def test_folds_are_one_line_that_all_steps_belong_to(tmp_path: Path) -> None:
    run = _run(tmp_path, [ONE] * 5)
    attempt, report = _analysed(run)
    (line,) = _phases(attempt).lines
    assert (line.phases, line.steps, line.first_steps) == (5, 200, [0, 40, 80, 120, 160])
    assert attempt.steady_steps == 5 * (40 - 3)
    assert attempt.summary.mean_ns("step") == 10e6
    assert attempt.manifest(run.manifest) == run.manifest
    card = text.render(report)
    assert "5 phases of Encoder with SGD, 200 steps, 10.0 ms mean" in card
    assert "--phase" not in card


def test_many_trials_of_all_sizes_are_told_by_model_and_optimizer(tmp_path: Path) -> None:
    few = [("Net", "Adam", size, 20, 1.0) for size in range(MOST_LINES)]
    assert len(_phases(_analysed(_run(tmp_path / "few", few))[0]).lines) == MOST_LINES
    many = [("Net", ("Adam", "SGD")[trial % 3 == 0], trial, 20, 1.0) for trial in range(100)]
    attempt, _ = _analysed(_run(tmp_path / "many", many))
    assert [(each.name, each.phases, each.parameters) for each in _phases(attempt).lines] == [
        ("Net with SGD", 34, None),
        ("Net with Adam", 66, None),
    ]


@pytest.mark.parametrize("stages", [[ONE], [(*ONE[:3], 2, 1.0), (*TWO[:3], 2, 1.0)] * 20])
def test_one_phase_and_turns_say_nothing(stages: list[Stage], tmp_path: Path) -> None:
    run = _run(tmp_path, stages)
    attempt, report = _analysed(run)
    assert attempt.phases is None
    assert "Phase" not in text.render(report)
    assert not {"phase", "phases"} & set(json.loads(as_json(report)))
    assert "phases" not in [table.name for table in tables_of(run, [attempt])]
    with pytest.raises(UserError, match="it has one phase"):
        require_phase(attempt, 1)


def test_a_table_and_the_json_report_have_all_phases(tmp_path: Path) -> None:
    run = _run(tmp_path, [ONE, TWO])
    attempt, report = _analysed(run, 2)
    (table,) = (table for table in tables_of(run, [attempt]) if table.name == "phases")
    (columns,) = table.pieces
    assert list(columns) == list(table.columns)
    assert columns["first_step"].tolist() == [0, 40]
    assert columns["shown"].tolist() == [False, True]
    told = json.loads(as_json(report))
    assert (told["phase"], [line["steps"] for line in told["phases"]]) == (2, [40, 60])
    with pytest.raises(UserError, match="it has phases 1 to 2"):
        require_phase(attempt, 3)


def test_ranks_whose_phases_differ_are_told(tmp_path: Path) -> None:
    def notes(told_by: int | None) -> list[str]:
        attempt, _ = _analysed(_run(tmp_path / str(told_by), [ONE, TWO], ranks=2, told_by=told_by))
        return [note for note in attempt.notes if "phases" in note]

    assert notes(None) == []
    assert notes(1) == ["the phases are those of rank 0; other ranks have others"]


def test_what_the_script_does_before_a_later_phase_is_beside_the_steps(tmp_path: Path) -> None:
    """It loads its data for 2 s before each of three folds: before the first one no step tells it."""
    rows, start = list[StepRow](), 0.0
    for number in range(60):
        loads = 2000.0 * (number in (20, 40))
        first = 50.0 * (number % 20 == 0)  # what a first step computes is warm-up
        rows.append(step(number, 10 + first, 0, 1 + loads, start_ms=start))
        start += 11 + first + loads
    lines = [codec.encode_location(0, SourceLocation("data.py:9 load")), codec.encode_samples(3, {0: 5})]
    lines += [codec.encode_samples(number, {0: 10}) for number in (20, 40)]
    phases = [Phase(number, "Adam", 1000, "Net") for number in (0, 20, 40)]
    write_rank(tmp_path, header(), rows, lines=lines, records=[*phases, End("ok", 0, round(start * 1e6))])
    manifest(1).write(tmp_path)
    attempt, report = _analysed(load_run([str(tmp_path)]))
    assert report.job is not None
    assert report.job.later_phases == 2
    assert report.job.parts_s["idle"] == pytest.approx(4.0)
    assert report.job.before_phases_s == pytest.approx(4.0)
    assert report.job.parts_s["warm_up"] == pytest.approx(3 * 0.050)
    assert between_sources(attempt.ranks, attempt.later_phases).samples == 20
    (finding,) = [each for each in report.findings if each.rule == "between_steps"]
    assert "data.py:9 load" in finding.evidence
    assert finding.next.startswith("what is the same for each phase")


def test_the_job_has_the_steps_of_each_phase_at_their_own_length(tmp_path: Path) -> None:
    _, report = _analysed(_run(tmp_path, [ONE, TWO]))
    assert report.job is not None
    assert report.job.parts_s["warm_up"] == pytest.approx(4 * 0.010 + 4 * 0.002)  # the first step of each
    assert report.job.parts_s["steps"] == pytest.approx(40 * 0.010 + 60 * 0.002)
    assert Flag.WARMUP in Flag(int(_analysed(_run(tmp_path / "b", [ONE, TWO]))[0].ranks[0].flags[40]))
