"""Which source lines of `other` are named."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.analysis.run import analyse
from ddlprof.analysis.sources import (
    AFTER_BACKWARD,
    UPDATES,
    Sources,
    SourceShare,
    compute_sources,
    other_sources,
    start_sources,
)
from ddlprof.collect.process.stack_schedule import StackSchedule
from ddlprof.model import codec
from ddlprof.model.records import ComputeSamples, Flag
from ddlprof.model.source_locations import (
    BETWEEN,
    CONSTANT,
    DERIVES,
    EACH,
    LOOP,
    MODULE,
    ONE_HOT,
    OWN_LOOP,
    START,
    START_WAITS,
    STEPPING,
    UPDATE,
    SourceLocation,
)
from ddlprof.store import load_run
from tests.golden.runs import header, step, write_rank

LOG, SAVE = SourceLocation("train.py:9 log", "logging"), SourceLocation("train.py:30 save")


def sources_of(directory: Path, *samples: tuple[int, dict[int, int]]) -> Sources:
    """Of a run of 40 steps, of which the first 3 are warm-up and the 20th evaluates."""
    rows = [step(n, other_ms=3, flags=Flag.EVALUATION if n == 20 else 0) for n in range(40)]
    lines = [codec.encode_location(0, LOG), codec.encode_location(1, SAVE)]
    lines += [codec.encode_samples(number, counts) for number, counts in samples]
    write_rank(directory, header(), rows, lines=lines)
    (attempt,) = analyse(load_run(directory))
    return other_sources(attempt.ranks)


def test_samples_of_steady_steps_count(tmp_path: Path) -> None:
    sources = sources_of(tmp_path, (0, {0: 50}), (20, {1: 500}), (10, {0: 9}), (11, {0: 6, 1: 5}))
    assert sources.samples == 20
    assert [(s.place, s.share, s.sure) for s in sources.shares] == [(LOG, 0.75, True), (SAVE, 0.25, False)]


@pytest.mark.parametrize(("log", "save", "named"), [(9, 0, []), (10, 0, [True]), (6, 4, [False, False])])
def test_few_samples_name_nothing(tmp_path: Path, log: int, save: int, named: list[bool]) -> None:
    shares = sources_of(tmp_path, (10, {0: log, 1: save} if save else {0: log})).shares
    assert [share.sure for share in shares] == named


@pytest.mark.parametrize(
    ("waits", "works", "turns_s"),
    [
        ((12, 7), (12, 12), 3.0),
        ((8, 7), (12, 12), 2.0),
        ((5, 12), (12, 12), 0.0),
        ((12, 1), (1, 12), 0.0),
        ((9, 9), (0, 12), 0.0),
    ],
)
def test_ranks_take_turns_where_each_waits_as_long_as_it_works(
    tmp_path: Path, waits: tuple[int, int], works: tuple[int, int], turns_s: float
) -> None:
    places = SourceLocation("train.py:9 read", START), SourceLocation("train.py:3 first", START_WAITS)
    for rank in range(2):
        lines = [codec.encode_location(n, place) for n, place in enumerate(places)]
        lines.append(codec.encode_samples(0, {0: works[rank], 1: waits[rank]}))
        rows = [step(n, flags=Flag.WARMUP if n < 3 else 0) for n in range(40)]
        write_rank(tmp_path, header(rank=rank, world_size=2), rows, lines=lines)
    (attempt,) = analyse(load_run(tmp_path))
    found = start_sources(attempt.ranks)
    assert (found.turns_s, found.main_s) == (turns_s, 3.0)
    assert [each.place.what for each in found.shares] == [START]  # waits are no work


def test_a_line_is_one_line_whatever_is_known_of_it_each_time(tmp_path: Path) -> None:
    lines = [codec.encode_location(n, SourceLocation("a.py:1 f", what)) for n, what in enumerate(("", "forward"))]
    lines.append(codec.encode_samples(10, {0: 5, 1: 15}))
    write_rank(tmp_path, header(), [step(n) for n in range(40)], lines=lines)
    (attempt,) = analyse(load_run(tmp_path))
    (share,) = other_sources(attempt.ranks).shares
    assert (share.place, share.share) == (SourceLocation("a.py:1 f", "forward"), 1.0)


def test_a_line_that_becomes_slow_on_the_second_day_is_named(tmp_path: Path) -> None:
    """Each step takes 20 s. One line takes 2 % of it; another one a third, from the 24th of 30 hours on."""
    schedule, drawn, found = StackSchedule(), random.Random(1), dict[int, dict[int, int]]()
    for quarter in range(4 * 30 * 3600):
        now_s = quarter / 4
        share, line = (0.02, 1) if now_s < 24 * 3600 else (0.33, 0)
        if schedule.is_due(1 + now_s, 0, 100) and drawn.random() < share:
            counts = found.setdefault(int(now_s // 20), {})
            counts[line] = counts.get(line, 0) + 1
    rows = [step(n, compute_ms=15_000, other_ms=5_000, data_ms=0) for n in range(30 * 180)]
    lines = [codec.encode_location(0, LOG), codec.encode_location(1, SAVE)]
    write_rank(tmp_path, header(), rows, lines=[*lines, *(codec.encode_samples(*each) for each in found.items())])
    (attempt,) = analyse(load_run(tmp_path))
    sources = other_sources(attempt.ranks)
    true_share = 6 * 0.33 / (6 * 0.33 + 24 * 0.02)
    assert [(share.place, share.sure) for share in sources.shares] == [(LOG, True), (SAVE, False)]
    assert sources.shares[0].share == pytest.approx(true_share, abs=0.1)


def test_few_late_samples_that_stand_for_much_are_not_sure(tmp_path: Path) -> None:
    rows = [step(n, compute_ms=15_000, other_ms=5_000, data_ms=0) for n in range(30 * 180)]
    lines = [codec.encode_location(0, LOG), codec.encode_location(1, SAVE)]
    samples = [codec.encode_samples(10, {1: 30}), codec.encode_samples(30 * 180 - 2, {0: 1})]
    write_rank(tmp_path, header(), rows, lines=[*lines, *samples])
    (attempt,) = analyse(load_run(tmp_path))
    first, second = other_sources(attempt.ranks).shares
    assert (first.place, first.sure, second.sure) == (LOG, False, False)
    assert first.share == pytest.approx(144 / 174, abs=0.01)


def test_a_run_of_minutes_counts_all_samples_alike_however_late_its_first_step_was(tmp_path: Path) -> None:
    rows = [step(n, other_ms=3, start_ms=7_200_000 + 10 * n) for n in range(40)]
    lines = [codec.encode_location(0, LOG), codec.encode_location(1, SAVE)]
    samples = [codec.encode_samples(10, {1: 30}), codec.encode_samples(30, {0: 10})]
    write_rank(tmp_path, header(), rows, lines=[*lines, *samples])
    (attempt,) = analyse(load_run(tmp_path))
    assert [share.share for share in other_sources(attempt.ranks).shares] == [0.75, 0.25]


def placed(directory: Path, places: list[SourceLocation], counts: dict[int, int]) -> Sources:
    lines = [codec.encode_location(number, place) for number, place in enumerate(places)]
    write_rank(directory, header(), [step(n) for n in range(40)], lines=[*lines, codec.encode_samples(10, counts)])
    (attempt,) = analyse(load_run(directory))
    return other_sources(attempt.ranks)


def test_lines_of_one_function_are_votes_for_it(tmp_path: Path) -> None:
    places = [SourceLocation(f"a.py:{n} told", "copy" if n == 4 else "", "train.py:8 main") for n in (3, 4, 7)]
    sources = placed(tmp_path, [*places, SourceLocation("train.py:8 main")], {0: 12, 1: 14, 2: 12, 3: 2})
    assert not any(share.sure for share in sources.shares)
    assert [each.place for each in sources.wider] == [
        SourceLocation("a.py:3-7 told", "copy"), SourceLocation("train.py:8 main", "copy"),
    ]  # fmt: skip
    assert sources.wider[0].share == 0.95
    assert sources.main == sources.wider[0]


def test_functions_of_one_line_of_the_loop_are_votes_for_it(tmp_path: Path) -> None:
    places = [SourceLocation(f"a.py:{n} f{n}", "", "train.py:8 main") for n in range(4)]
    sources = placed(tmp_path, places, dict.fromkeys(range(4), 10))
    assert [(each.place.text, each.share) for each in sources.wider] == [("train.py:8 main", 1.0)]


@pytest.mark.parametrize(
    ("whats", "counts", "main"),
    [
        (("logging", "logging"), {0: 20, 1: 20}, "a.py:0-1 f"),
        (("logging", "copy"), {0: 20, 1: 20}, "a.py:0 f"),
        (("", ""), {0: 20, 1: 20}, "a.py:0 f"),
        (("logging", "logging"), {0: 36, 1: 4}, "a.py:0 f"),
    ],
)
def test_a_function_is_told_that_does_more_of_the_same(
    tmp_path: Path, whats: tuple[str, str], counts: dict[int, int], main: str
) -> None:
    places = [SourceLocation(f"a.py:{n} f", what) for n, what in enumerate(whats)]
    found = placed(tmp_path, places, counts).main
    assert found is not None
    assert found.place.text == main


def test_a_line_and_the_comprehension_in_it_are_one_line(tmp_path: Path) -> None:
    places = [SourceLocation(f"a.py:3 told{inside}") for inside in ("", ".<listcomp>")]
    (function, *_) = placed(tmp_path, places, {0: 20, 1: 20}).wider
    assert function.place.text == "a.py:3 told"


def test_places_of_a_shared_run_have_no_functions(tmp_path: Path) -> None:
    sources = placed(tmp_path, [SourceLocation(f"line {n}", "", "line 8") for n in range(3)], {0: 12, 1: 14, 2: 12})
    assert [each.place.text for each in sources.wider] == ["line 8"]
    assert sources.main == sources.wider[0]


def test_samples_of_computing_are_apart(tmp_path: Path) -> None:
    places = [SourceLocation("a.py:1 f", LOOP), SourceLocation("a.py:2 g", UPDATE), SourceLocation("a.py:3 h")]
    places += [SourceLocation("a.py:4 clip", BETWEEN), SourceLocation("a.py:5 main", STEPPING)]
    lines = [codec.encode_location(number, place) for number, place in enumerate(places)]
    lines += [
        codec.encode_samples(10, {0: 15, 1: 12, 2: 5, 3: 9, 4: 3}, ComputeSamples),
        codec.encode_samples(10, {2: 11}),
    ]
    write_rank(tmp_path, header(), [step(n) for n in range(40)], lines=lines)
    (attempt,) = analyse(load_run(tmp_path))
    assert [(each.place.what, each.share) for each in compute_sources(attempt.ranks).shares] == [
        (LOOP, 0.75),
        ("", 0.25),
    ]
    assert [each.place.what for each in compute_sources(attempt.ranks, UPDATES).shares] == [UPDATE]
    assert [(each.place.what, each.share) for each in compute_sources(attempt.ranks, AFTER_BACKWARD).shares] == [
        (UPDATE, 0.5),
        (BETWEEN, 0.375),
        (STEPPING, 0.125),
    ]
    assert other_sources(attempt.ranks).samples == 11


@pytest.mark.parametrize("mostly", [OWN_LOOP, EACH])
@pytest.mark.parametrize("inside", [0, 1])
def test_a_loop_that_was_once_seen_in_a_module_or_to_keep_a_state_does_so(
    tmp_path: Path, mostly: str, inside: int
) -> None:
    places, what = [SourceLocation("a.py:1 f", mostly), SourceLocation("a.py:1 f", LOOP)], LOOP if inside else mostly
    lines = [codec.encode_location(number, place) for number, place in enumerate(places)]
    lines.append(codec.encode_samples(10, {0: 12} | ({1: inside} if inside else {}), ComputeSamples))
    write_rank(tmp_path, header(), [step(n) for n in range(40)], lines=lines)
    (attempt,) = analyse(load_run(tmp_path))
    assert [each.place.what for each in compute_sources(attempt.ranks).shares] == [what]


def test_the_kinds_of_work_of_a_line_are_told_apart(tmp_path: Path) -> None:
    places = [SourceLocation("net.py:3 f", what) for what in (CONSTANT, "", ONE_HOT)]
    lines = [codec.encode_location(number, place) for number, place in enumerate(places)]
    lines.append(codec.encode_samples(10, {0: 8, 1: 6, 2: 6}, ComputeSamples))
    write_rank(tmp_path, header(), [step(n) for n in range(40)], lines=lines)
    (attempt,) = analyse(load_run(tmp_path))
    (line,) = compute_sources(attempt.ranks).shares
    assert (line.place.what, line.share) == (CONSTANT, 1.0)
    assert [line.of(each) for each in (CONSTANT, "", LOOP)] == [0.4, 0.3, 0.0]


@pytest.mark.parametrize(("derives", "what"), [(9, DERIVES), (5, MODULE)])
def test_a_line_calls_a_module_for_what_is_known_of_a_third_of_it(tmp_path: Path, derives: int, what: str) -> None:
    places = [SourceLocation("net.py:3 f", each) for each in (MODULE, DERIVES, "")]
    lines = [codec.encode_location(number, place) for number, place in enumerate(places)]
    lines.append(codec.encode_samples(10, {0: 12, 1: derives, 2: 1}, ComputeSamples))
    write_rank(tmp_path, header(), [step(n) for n in range(40)], lines=lines)
    (attempt,) = analyse(load_run(tmp_path))
    assert [each.place.what for each in compute_sources(attempt.ranks).shares] == [what]


PLACES = {what: SourceLocation(f"train.py:{number} save", what) for number, what in ((17, ""), (18, "writes"))}
AROUND = SourceShare(SourceLocation("train.py:17-18 save", "writes"), 0.85, True)


@pytest.mark.parametrize(
    ("share", "around", "told"),
    [(0.45, AROUND, AROUND.place.text), (0.8, AROUND, "train.py:17 save"),
     (0.45, replace(AROUND, place=SourceLocation("train.py:40 main", "writes")), "train.py:17 save")],
)  # fmt: skip
def test_a_function_of_known_work_is_told_in_place_of_its_line_of_unknown_work(
    share: float, around: SourceShare, told: str
) -> None:
    lines = [SourceShare(PLACES[""], share, True), SourceShare(PLACES["writes"], 0.85 - share, False)]
    main = Sources(40, lines, [around]).main
    assert main is not None
    assert main.place.text == told


def test_a_line_is_unknown_where_nothing_is_known_around_it_either() -> None:
    line = SourceShare(PLACES[""], 0.5, True)
    assert Sources(40, [line]).unknown == line
    assert Sources(40, [line], [replace(AROUND, place=SourceLocation("train.py main"))]).unknown == line
    module = replace(line, place=SourceLocation("train.py:17 save", MODULE))
    assert Sources(40, [module], [replace(AROUND, place=module.place)]).unknown == module
    assert Sources(40, [line], [AROUND]).unknown is None
    assert Sources(40, [replace(line, sure=False)], []).unknown is None
