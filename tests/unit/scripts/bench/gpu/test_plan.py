"""The first hour on a GPU in parts: their length and order, what is kept of them, and what is said to be answered."""

from __future__ import annotations

from pathlib import Path

from scripts.bench.gpu import wheels
from scripts.bench.gpu.experiment import Experiment, Row
from scripts.bench.gpu.experiments import EXPERIMENTS
from scripts.bench.gpu.plan import NO_TIME, PART_S, QUESTIONS, START_S, answers, finished, next_one, parts


def nothing(bench: object) -> None:
    """Does nothing."""


def one(name: str, limit_s: int, question: str = "a") -> Experiment:
    return Experiment(name, limit_s, nothing, question=question)


def test_no_part_is_longer_than_nine_minutes_and_nothing_is_left_out() -> None:
    found = parts(EXPERIMENTS)
    assert [each for part in found for each in part] == list(EXPERIMENTS)
    assert all(START_S + sum(each.limit_s for each in part) <= PART_S == 9 * 60 for part in found)


def test_questions_are_asked_in_their_order_and_each_by_an_experiment() -> None:
    asked = [each.question for each in EXPERIMENTS]
    assert asked == sorted(asked)
    assert set(asked) == set(QUESTIONS)


def test_half_an_hour_is_enough_for_the_first_five_questions() -> None:
    """docs/benchmarks.md says so: three parts, and all of (a) to (e)."""
    first = parts(EXPERIMENTS)[:3]
    assert sum(START_S + sum(each.limit_s for each in part) for part in first) <= 30 * 60
    left = [each for part in parts(EXPERIMENTS)[3:] for each in part]
    assert not [each.name for each in left if each.question <= "e"]


def test_what_does_not_fit_into_the_time_left_waits() -> None:
    waiting = [one("long", 100), one("short", 20)]
    assert next_one(waiting, 100) is waiting[0]
    assert next_one(waiting, 99) is waiting[1]
    assert next_one(waiting, 19) is None


def test_a_file_of_results_says_what_need_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    rows = [
        Row("a", "failed", "a job ended"), Row("b", "skipped", NO_TIME), Row("a", "ok"), Row("c", "missed"),
        Row("d", "rehearsed"),
    ]  # fmt: skip
    path.write_text("".join(row.line() + "\n" for row in rows) + rows[0].line()[:20])
    assert {name: row.status for name, row in finished(path).items()} == {"a": "ok", "c": "missed"}
    assert set(finished(path, rehearsed=True)) == {"a", "c", "d"}
    assert finished(tmp_path / "none") == finished(None) == {}


def test_what_is_answered_is_said_by_question() -> None:
    experiments = [one("x", 9), one("y", 9), one("z", 9, "b"), one("w", 9, "c")]
    rows = {"x": Row("x", "missed"), "y": Row("y", "ok"), "z": Row("z", "failed", "why")}
    first, second, third = answers(experiments, rows)
    assert first.startswith("(a) answered 2 of 2")
    assert second.startswith("(b) open     0 of 1")
    assert second.endswith("[z failed]")
    assert third.startswith("(c) open     0 of 1")
    assert next(answers(experiments, {"x": Row("x")})).startswith("(a) in part  1 of 2")


def test_wheels_of_what_the_machine_has_are_not_installed(tmp_path: Path) -> None:
    named = [tmp_path / "pytest-9.0-py3-none-any.whl", tmp_path / "no_such_thing-1.0-py3-none-any.whl"]
    assert wheels.lacking(named) == [named[1]]
