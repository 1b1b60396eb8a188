"""The sentences of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.changes import Change
from ddlprof.analysis.findings import Finding
from ddlprof.model.records import CollectorPauses
from ddlprof.report.compare import text as words
from ddlprof.report.compare.data import ComparisonData, ShiftLine, build
from ddlprof.report.run.data import ReportData
from ddlprof.report.run.formats import Analysed
from tests.golden.runs import MS, header, manifest, simple_run, step, write_rank
from tests.unit.report.compare.made import analysed


@pytest.fixture
def same(tmp_path: Path) -> ComparisonData:
    """Two runs without a difference."""
    a, b = ([analysed(simple_run(tmp_path / letter, steps=100))] for letter in "ab")
    return build(a, b, [])


def changed(data: ComparisonData, **values: object) -> ComparisonData:
    """With other facts of every run of B."""
    runs = [replace(run, **values) for run in data.b.runs]  # type: ignore[arg-type]
    return replace(data, b=replace(data.b, runs=runs))


def notes(data: ComparisonData) -> list[str]:
    return list(words.notes(data, str))


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ({"model": "Other"}, "the models differ: SmallNet in A, Other in B"),
        ({"complete_ranks": 0}, "B: 0 of 1 rank complete; its steps until then count"),
        ({"unreadable": 2}, "B: not all of it can be read, as ddlprof report says"),
        ({"attempt": 1, "attempts": 3}, "B: attempt 1 of 0-2 is compared"),
        ({"global_batch": None}, "a global batch is not known, so steps are compared whatever their batch"),
    ],
)
def test_what_a_reader_must_know(same: ComparisonData, values: dict[str, object], note: str) -> None:
    assert notes(changed(same, **values)) == [note]


def test_two_timelines(same: ComparisonData) -> None:
    assert "two timelines" in notes(replace(same, changes=[Change("environment", "timeline", "host", "device")]))[0]


def line(share: float, half: float, word: str) -> ShiftLine:
    return ShiftLine(share / 1e2, (share - half) / 1e2, (share + half) / 1e2, share, share - half, share + half, word)


@pytest.mark.parametrize(
    ("mean", "own", "said", "because"),
    [
        (
            line(0.1, 0.5, "none"), line(0.2, 0.1, "slower"),
            "without what it waited for a processor, B is 20.0 % slower in the step (+10.0 % to +30.0 %); with that "
            "nothing is beyond the noise: 10.00 ms a step in B, 10.00 in A (-40.0 % to +60.0 %)", [],
        ),
        (
            line(0.1, 0.5, "none"), line(0.1, 0.2, "none"),
            "no difference of the step beyond the noise: 10.00 ms a step in B, 10.00 in A (-40.0 % to +60.0 %)",
            ["without what it waited for a processor, no difference is seen (-10.0 % to +30.0 %)"],
        ),
        (
            line(0.7, 0.5, "slower"), line(0.1, 0.2, "none"),
            "B is 70.0 % slower in the step: 10.00 ms a step instead of 10.00 (+20.0 % to +120.0 %)",
            ["without what it waited for a processor, no difference is seen (-10.0 % to +30.0 %)"],
        ),
    ],
)  # fmt: skip
def test_where_a_run_waited_for_processors_the_step_is_told_without_that(
    same: ComparisonData, mean: ShiftLine, own: ShiftLine, said: str, because: list[str]
) -> None:
    data = replace(same, rows=[replace(same.step, mean=mean, own=own, word=mean.word), *same.rows[1:]])
    assert words.verdict(data) == said
    assert [each for each in words.why(data) if "processor" in each] == because
    assert words.how(data).startswith("both intervals of the step hold in 97.5 of 100")


def test_other_work_on_the_host(same: ComparisonData) -> None:
    waited = replace(same, a=replace(same.a, runs=[replace(run, queued_share=0.01) for run in same.a.runs]))
    assert notes(changed(waited, queued_share=0.01, cpu_percent=100.0)) == []
    assert notes(changed(waited, queued_share=0.3)) == [
        "the main thread waited for a processor for 1 % of the time in A and 30 % in B: other work on the host makes "
        "runs differ"
    ]
    busy = replace(same, a=replace(same.a, runs=[replace(run, cpu_percent=40.0) for run in same.a.runs]))
    assert "busy for 40 % of the time in A and 97 % in B" in notes(changed(busy, cpu_percent=97.0))[0]


@pytest.mark.parametrize(("runs", "told"), [(1, False), (2, True), (3, True), (4, False)])
def test_few_runs_say_little(same: ComparisonData, runs: int, told: bool) -> None:
    a, b = (replace(side, runs=side.runs * runs) for side in (same.a, same.b))
    assert any("from 4 on" in note for note in notes(replace(same, a=a, b=b))) is told


def slow_run(folder: Path, compute_ms: Callable[[int], float]) -> Analysed:
    """A run of 200 steps that compute so long."""
    rows, at_ms = [], 0.0
    for number in range(200):
        rows.append(step(number, compute_ms(number), start_ms=at_ms))
        at_ms += rows[-1].step_ns / MS
    write_rank(folder, header(), rows)
    manifest().write(folder)
    return analysed(folder)


def test_one_slow_step_hides_no_difference(tmp_path: Path) -> None:
    a = slow_run(tmp_path / "a", lambda n: 8)
    b = slow_run(tmp_path / "b", lambda n: 10_000 if n == 90 else 9)
    data = build([a], [b], [])
    differs = "B is 10.0 % slower in the step (+6.6 % to +13.5 %)"
    with_them = "with them nothing is beyond the noise: 61.72 ms a step in B, 10.00 in A (-100.0 % to over +1,000 %)"
    assert words.verdict(data) == f"without single slow steps, {differs}; {with_them}"
    assert list(words.why(data)) == [f"1 step of B took so long that the mean moved; without such steps {differs}"]


def test_one_slow_step_makes_no_difference(tmp_path: Path) -> None:
    a = slow_run(tmp_path / "a", lambda n: 8)
    data = build([a], [slow_run(tmp_path / "b", lambda n: 10_000 if n == 90 else 8)], [])
    (reason,) = words.why(data)
    assert "without such steps no difference is seen (" in reason


@pytest.mark.parametrize(("shares", "told"), [((0.2, 0.0), True), ((0.2, 0.16), False), ((0.2, None), False)])
def test_pauses_of_the_collector_are_told_where_they_differ(
    same: ComparisonData, shares: tuple[float | None, float | None], told: bool
) -> None:
    a, b = (
        replace(side, runs=[replace(run, collector_share=share) for run in side.runs])
        for side, share in zip((same.a, same.b), shares, strict=True)
    )
    reasons = list(words.why(replace(same, a=a, b=b)))
    said = "the garbage collector paused the steps of A for 20 % of their time, those of B for 0 %"
    assert (said in reasons) == told
    assert told or not [each for each in reasons if "collector" in each]


def test_a_share_of_pauses_is_one_of_the_mean_step(tmp_path: Path) -> None:
    pauses = [CollectorPauses(1000 * MS, 5, 100 * MS, 30 * MS, 1)]
    write_rank(tmp_path, header(), [step(n) for n in range(100)], records=pauses)
    run = analysed(tmp_path)
    assert build([run], [run], []).a.runs[0].collector_share == pytest.approx(0.1, rel=0.05)


def test_a_class_may_differ_where_the_step_does_not(tmp_path: Path) -> None:
    a = slow_run(tmp_path / "a", lambda n: 8)
    b = analysed(simple_run(tmp_path / "b", steps=200, compute_ms=7, data_ms=2))
    text = words.verdict(build([a], [b], []))
    assert text.startswith(
        "no difference of the step beyond the noise, but compute is faster (-10.0 %), data is slower"
    )


def finding(rule: str) -> Finding:
    return Finding(rule, "warning", f"title of {rule}", "evidence", "next", 100)


def test_findings_that_came_and_went(tmp_path: Path) -> None:
    def found(name: str, *rules: str) -> Analysed:
        run = analysed(simple_run(tmp_path / name, steps=60))
        report: ReportData = replace(run.report, findings=[finding(rule) for rule in rules])
        vars(run)["report"] = report
        return run

    a = [found("a0", "kept", "gone"), found("a1", "kept", "gone", "now and then"), found("a2", "kept")]
    b = [found("b0", "kept", "new"), found("b1", "kept", "new"), found("b2", "now and then")]
    data = build(a, b, [])
    assert [(line.rule, line.side) for line in data.findings] == [("gone", "A"), ("new", "B")]
    text = words.render(data)
    assert "Finding  gone: title of gone (gone)" in text
    assert "Finding  new: title of new (new)" in text
