"""What a comparison says of the jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.analysis.findings import Finding
from ddlprof.model.manifest import TrainingFacts
from ddlprof.model.records import End
from ddlprof.report.compare import html, markdown
from ddlprof.report.compare import text as words
from ddlprof.report.compare.data import ComparisonData, JobLine, RowLine, ShiftLine, _copies, build
from tests.golden.runs import MS, header, simple_run, step, write_rank
from tests.unit.report.compare.made import analysed


def row(name: str, a_s: float, b_s: float, word: str, of_s: float = 10.0) -> RowLine:
    share = (b_s - a_s) / of_s
    shift = ShiftLine(b_s - a_s, None, None, share, share - 0.1, share + 0.1, word)
    return RowLine(name, a_s, b_s, word, shift, None, None)


FASTER = JobLine(
    [
        row("job", 10, 4, "faster"), row("steps", 3, 3, "none"), row("epoch_start", 7, 1, "faster"),
        row("end", 0, 0, "none"),
    ],
    200, True, (200, 200), (10.0, 4.0),
)  # fmt: skip
MOVED = replace(
    FASTER, rows=[row("job", 10, 9, "none"), row("steps", 7, 9, "slower"), row("evaluation", 3, 0, "faster")]
)


@pytest.fixture
def same(tmp_path: Path) -> ComparisonData:
    """Two runs whose steps do not differ."""
    a, b = ([analysed(simple_run(tmp_path / letter, steps=100))] for letter in "ab")
    return build(a, b, [])


def test_where_only_the_job_differs_it_comes_first(same: ComparisonData) -> None:
    data = replace(same, job=FASTER)
    said = words.verdict(data)
    assert said.startswith("B is 60.0 % faster in the job: 4.00 s in all instead of 10.00 (-70.0 % to -50.0 %); no ")
    assert "no difference of the step beyond the noise" in said
    assert list(words.why(data)) == ["in the job: first batches of epochs -6.00 s (-60.0 % of the job)"]


def test_where_both_differ_the_step_comes_first(same: ComparisonData) -> None:
    step = replace(same.step, word="slower", mean=ShiftLine(0.001, 0.0005, 0.002, 0.1, 0.05, 0.2, "slower"))
    said = words.verdict(replace(same, job=FASTER, rows=[step, *same.rows[1:]]))
    assert said.startswith("B is 10.0 % slower in the step: ")
    assert said.endswith("; 60.0 % faster in the job: 4.00 s in all instead of 10.00 (-70.0 % to -50.0 %)")


def test_where_only_a_part_of_the_job_differs_it_is_named(same: ComparisonData) -> None:
    assert words.verdict(replace(same, job=MOVED)).endswith("; in the job evaluation is faster (-30.0 % of the job)")


def test_work_that_is_done_again_and_again_counts_once(same: ComparisonData) -> None:
    side = replace(same.a, runs=[replace(same.a.runs[0], steps=400, mean_steps=400.0)])
    halved = replace(MOVED, rows=[row("job", 10, 9, "none"), row("steps", 7, 4, "faster")], done=(200, 200))
    other = replace(same.b, runs=[replace(same.b.runs[0], steps=200, mean_steps=200.0)])
    data = replace(same, a=side, b=other, job=halved)
    assert words.verdict(data).endswith("; in the job steps is faster (-30.0 % of the job)")
    assert "A trains on each sample 2 times: 400 steps are taken for 200" in list(words.notes(data, str))


@pytest.mark.parametrize(("rule", "copies"), [("repeated_samples", 3), ("same_samples", 4), ("data_line", 1)])
def test_what_workers_or_ranks_do_alike_is_work_once(rule: str, copies: int) -> None:
    report = SimpleNamespace(findings=[SimpleNamespace(rule=rule)], world_size=4)
    run: Any = SimpleNamespace(report=report, run=SimpleNamespace(manifest=None))
    attempt: Any = SimpleNamespace(manifest=lambda of: SimpleNamespace(training=TrainingFacts(loader_workers=3)))
    assert _copies(run, attempt) == copies


def test_the_parts_are_in_all_formats(same: ComparisonData) -> None:
    data = replace(same, job=FASTER)
    text = words.render(data)
    assert "first batches of epochs" in text
    assert "\nend " not in text
    assert "| first batches of epochs | 7.00 | 1.00 | -6.00 | -60.0 % |" in markdown.render(data)
    page = html.render(data)
    assert "Wall time of the job" in page
    assert ">faster</span>" in page
    assert "the wall time of a whole job is not known" in html.render(replace(same, job=None))


def test_jobs_of_unequal_work_are_told(same: ComparisonData) -> None:
    assert not [note for note in words.notes(replace(same, job=FASTER), str) if "jobs" in note]
    assert "ended after" not in words.verdict(replace(same, job=FASTER))
    unequal = replace(FASTER, same_work=False, done=(200, 1100), ended_s=(10.0, 22.0))
    told = "B's job ended after 22.00 s with 1,100 steps, A's after 10.00 with 200"
    assert words.verdict(replace(same, job=unequal)).endswith(told)
    assert "the jobs did not do as much: their times are those of 200 steps, the first run of A" in list(
        words.notes(replace(same, job=unequal), str)
    )


def written(folder: Path, *steps: int) -> Any:
    """A run whose ranks ended, after so many steps each."""
    for rank, number in enumerate(steps):
        head = replace(header(rank, len(steps)), spans=True, age_ns=3_000 * MS)
        end = End("ok", 0, 10 * max(steps) * MS)
        write_rank(folder, head, [step(n) for n in range(number)], records=[end])
    return analysed(folder)


def uneven(folder: Path, *steps: int) -> Any:
    """Such a run, of which a finding says that its ranks share one training and have other numbers of batches."""
    run = written(folder, *steps)
    found = Finding("uneven_steps", "warning", "", "", "", samples=20)
    run.__dict__["report"] = replace(run.report, findings=[found])  # what is cached there
    return run


def test_ranks_that_do_not_train_are_no_work(tmp_path: Path) -> None:
    data = build([written(tmp_path / "a", 1000, 1)], [written(tmp_path / "b", 1000, 1, 1, 1)], [])
    assert data.job is not None
    assert (data.job.whole.word, data.job.done) == ("none", (1000, 1000))


def test_the_jobs_of_runs_whose_ranks_ended_are_compared(tmp_path: Path) -> None:
    job = build([written(tmp_path / "a", 100)], [written(tmp_path / "b", 100)], []).job
    assert job is not None
    assert (job.whole.word, job.work, job.same_work) == ("none", 100, True)
    assert {line.name: line.a_s for line in job.rows} == {"job": 4.0, "start_up": 3.0, "steps": 1.0}


@pytest.mark.parametrize(("steps", "work"), [(200, 100), (100, 100), (130, 130)])
def test_work_that_is_done_again_counts_once_where_both_did_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, work: int
) -> None:
    monkeypatch.setattr(
        "ddlprof.report.compare.data._copies", lambda run, attempt: 2 if run.run.typed.endswith("a") else 1
    )
    data = build([written(tmp_path / "a", steps)], [written(tmp_path / "b", 100)], [])
    assert data.job is not None
    assert (data.job.done, data.job.same_work) == ((work, 100), work == 100)
    assert any("trains on each sample 2 times" in note for note in words.notes(data, str)) == (steps == 200)


def test_the_work_of_ranks_with_other_numbers_of_steps_is_their_mean(tmp_path: Path) -> None:
    data = build([uneven(tmp_path / "a", 1500, 500)], [written(tmp_path / "b", 1000, 1000)], [])
    assert data.job is not None
    assert (data.job.done, data.job.same_work) == ((1000, 1000), True)
    steps = next(each for each in data.job.rows if each.name == "steps")
    assert (steps.a_s, steps.b_s, steps.word) == (15.0, 10.0, "faster")
    assert words.verdict(data).startswith("B is 27.8 % faster in the job: 13.00 s in all instead of 18.00")
    assert "a rank of A makes 1,500 steps: the work of A is the mean of all, 1,000" in list(words.notes(data, str))
    short = build([uneven(tmp_path / "e", 300, 100)], [written(tmp_path / "f", 200, 200)], [])
    assert words.verdict(short).endswith("; in the job steps is faster (-16.7 % of the job)")  # start-up hides it
    even = build([uneven(tmp_path / "c", 1010, 990)], [written(tmp_path / "d", 1000, 1000)], [])
    assert not [note for note in words.notes(even, str) if "mean of all" in note]
