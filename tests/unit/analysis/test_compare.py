"""Two runs, or groups of runs, side by side: what is noise and what is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ddlprof.analysis.compare import (
    BROKEN,
    IN_NOISE,
    KEPT,
    NOT_MEASURED,
    Difference,
    RunTimes,
    check_gates,
    compare,
    own_noise,
    parse_gates,
    usual_noise,
)
from ddlprof.analysis.shifts import FEW_STEPS, Shift
from ddlprof.base.errors import UserError
from ddlprof.model.classes import TIMES

MS = 1e6
Random = np.random.Generator


def made(series: dict[str, NDArray[np.float64]], noise: float = 0.01) -> RunTimes:
    """A run of these series in milliseconds; the step is the sum of all, what is not named was not measured."""
    values = {name: series.get(name, np.zeros(0)) * MS for name in TIMES}
    values["step"] = np.asarray(sum(series.values())) * MS
    means = {name: float(each.mean()) if len(each) else None for name, each in values.items()}
    return RunTimes(means, values, noise)


def job(random: Random, runs_differ: float = 0.0, steps: int = 500, longer: str = "", by_ms: float = 1.0) -> RunTimes:
    """Steps of 20 ms: computing that drifts about, waits for data in bursts of four, and a rest."""
    drift = np.convolve(random.normal(size=steps + 9), np.ones(10) / 10, "valid")
    bursts = (np.arange(steps) + random.integers(4)) % 4 == 0
    more = {longer: by_ms}
    series = {
        "compute": 14 + more.get("compute", 0.0) + 0.5 * drift + 0.3 * random.normal(size=steps),
        "data": bursts * (16 + 4 * more.get("data", 0.0) + random.normal(size=steps)),
        "other": 2 + more.get("other", 0.0) + 0.2 * random.exponential(size=steps),
    }
    slower = 1 + runs_differ * random.normal()
    return made({name: slower * values for name, values in series.items()})


def of(name: str, differences: list[Difference]) -> Difference:
    return next(each for each in differences if each.name == name)


def words(differences: list[Difference]) -> set[str]:
    return {each.word for each in differences}


def test_equal_runs_are_seldom_called_different() -> None:
    """Runs that differ by 1 % among each other, as the allowance says; any word for any class counts."""
    random = np.random.default_rng(0)
    wrong = sum(
        bool(words(compare([job(random, 0.01)], [job(random, 0.01)])) & {"faster", "slower"}) for _ in range(300)
    )
    assert wrong <= 0.05 * 300


@pytest.mark.parametrize("name", ["compute", "data", "other"])
def test_five_per_cent_of_the_step_are_found_in_500_steps(name: str) -> None:
    random = np.random.default_rng(1)
    found = [compare([job(random, 0.005)], [job(random, 0.005, longer=name)]) for _ in range(60)]
    assert sum(of("step", each).word == "slower" for each in found) >= 0.9 * 60
    assert sum(of(name, each).word == "slower" for each in found) >= 0.9 * 60


def test_runs_that_differ_more_than_the_allowance_are_judged_by_themselves() -> None:
    """Five runs a side of a machine whose runs differ by 8 %: the allowance of 1 % would be wrong every other time."""
    random = np.random.default_rng(2)
    single = several = 0
    for _ in range(100):
        a, b = ([job(random, 0.08, steps=60) for _ in range(5)] for _ in range(2))
        single += of("step", compare(a[:1], b[:1])).word != "none"
        several += of("step", compare(a, b)).word != "none"
    assert several <= 6
    assert single >= 30


def test_what_one_side_has_not_measured_is_no_zero() -> None:
    steps = np.full(100, 5.0)
    found = of("data", compare([made({"compute": steps})], [made({"compute": steps, "data": steps})]))
    assert found.a_ns is None
    assert found.b_ns == 5 * MS
    assert (found.mean, found.typical, found.word) == (None, None, NOT_MEASURED)


def test_a_class_that_comes_is_slower() -> None:
    steps = np.full(100, 5.0)
    before, after = (made({"compute": steps, "comm": np.full(100, each)}) for each in (0.0, 1.0))
    assert of("comm", compare([before], [after])).word == "slower"
    assert of("comm", compare([after], [before])).word == "faster"
    assert of("comm", compare([before], [before])).word == "none"


def test_few_steps_carry_no_word() -> None:
    few = of("step", compare([made({"compute": np.full(4, 5.0)})], [made({"compute": np.full(100, 9.0)})]))
    assert few.word == FEW_STEPS
    assert few.mean is not None
    assert (few.mean.ns, few.mean.low_ns) == (4 * MS, None)


def test_a_run_that_had_to_wait_for_processors_says_less() -> None:
    noises = [usual_noise(share, 100.0) for share in (0.0, 0.02, 0.2)]
    assert noises == [pytest.approx(each, rel=0.01) for each in (0.01, 0.01414, 0.1005)]
    assert usual_noise(None, None) == usual_noise(None, 50.0) == 0.01
    assert usual_noise(None, 95.0) == 0.05


def starved(random: Random, queued_share: float, slower: float = 0.0, seconds: int = 40) -> RunTimes:
    """A job of which other processes take a share of the time, more in some seconds than in others."""
    run = job(random)
    queued = np.clip(queued_share * (1 + 0.5 * random.normal(size=seconds)), 0, 0.9)
    own = run.step * (1 + slower) * (1 + 0.03 * random.normal()) * (1 + 0.03 * random.normal(size=seconds))
    wall = np.repeat(own / (1 - queued), -(-500 // seconds))[:500]
    share = float(queued.mean())
    return replace(
        made({"compute": wall / MS}, usual_noise(share, None)),
        own_steps=own, own_noise=own_noise(share), queued_share=share,
    )  # fmt: skip


def own_of(a: list[RunTimes], b: list[RunTimes]) -> Shift | None:
    return of("step", compare(a, b)).own


def test_on_a_busy_machine_equal_runs_are_seldom_called_different() -> None:
    random = np.random.default_rng(5)
    wrong = 0
    for _ in range(200):
        found = of("step", compare([starved(random, 0.3)], [starved(random, random.uniform(0.1, 0.4))]))
        wrong += found.word in ("faster", "slower") or (found.own is not None and found.own.word != "none")
    assert wrong <= 0.05 * 200


def test_on_a_busy_machine_a_slower_step_is_found_without_what_it_waited() -> None:
    random = np.random.default_rng(6)
    single = [compare([starved(random, 0.3)], [starved(random, 0.3, slower=0.3)])[0] for _ in range(40)]
    assert sum(each.word == "slower" for each in single) < 5
    assert sum(each.own is not None and each.own.word == "slower" for each in single) > 30
    several = [
        own_of([starved(random, 0.3) for _ in range(6)], [starved(random, 0.3, slower=0.1) for _ in range(6)])
        for _ in range(40)
    ]
    assert sum(each is not None and each.word == "slower" for each in several) > 30


def test_where_little_was_waited_or_not_counted_there_is_no_second_figure() -> None:
    random = np.random.default_rng(7)
    quiet, busy = starved(random, 0.02), starved(random, 0.3)
    assert own_of([quiet], [quiet]) is None
    assert own_of([quiet], [busy]) is not None
    assert own_of([replace(quiet, own_steps=np.zeros(0))], [busy]) is None
    assert own_of([replace(busy, own_steps=busy.own_steps[:4])], [busy]) is None
    assert own_of([replace(busy, own_steps=busy.own_steps[:1])] * 2, [busy] * 2) is not None


def test_the_second_figure_is_paid_for_by_the_first() -> None:
    """Both together are wrong as seldom as the one alone."""
    random = np.random.default_rng(8)
    busy = starved(random, 0.3)
    alone = of("step", compare([replace(busy, own_steps=np.zeros(0))], [busy])).mean
    beside = of("step", compare([busy], [busy])).mean
    assert width(beside) > 1.05 * width(alone)


def width(shift: Shift | None) -> float:
    assert shift is not None
    assert shift.high_ns is not None
    assert shift.low_ns is not None
    return shift.high_ns - shift.low_ns


STEP = Difference("step", 100 * MS, 104 * MS, Shift(4 * MS, -1 * MS, 9 * MS), None)


def state(gate: str, grew_ms: float, low_ms: float | None) -> str:
    high_ms = None if low_ms is None else 2 * grew_ms - low_ms
    shift = Shift(grew_ms * MS, None if low_ms is None else low_ms * MS, None if high_ms is None else high_ms * MS)
    data = Difference("data", 10 * MS, (10 + grew_ms) * MS, shift, None)
    return check_gates(parse_gates(gate), [STEP, data])[0].state


@pytest.mark.parametrize(
    ("gate", "grew_ms", "low_ms", "expected"),
    [
        ("data=5%", 6, 1, BROKEN),  # 5 % of A's step of 100 ms, not of its data wait of 10 ms
        ("data=5%", 4, 1, KEPT),
        ("data=5%", 6, -1, IN_NOISE),
        ("data=5%", 6, None, IN_NOISE),
        ("data=5%", 5, 1, KEPT),  # not more than the limit
        ("data=5%", -6, -7, KEPT),
        ("data=5.5ms", 6, 1, BROKEN),
        ("data=.007s", 6, 1, KEPT),
        ("data=5000us", 6, 1, BROKEN),
        ("data=0%", 0.5, 0.1, BROKEN),
        ("data=0%", -0.5, -0.7, KEPT),
    ],
)
def test_a_gate_is_broken_beyond_its_limit_and_beyond_the_noise(
    gate: str, grew_ms: float, low_ms: float | None, expected: str
) -> None:
    assert state(gate, grew_ms, low_ms) == expected


def test_several_gates() -> None:
    gates = parse_gates(" step = 3 % , data_fetch=1ms,")
    assert [(gate.name, gate.share, gate.ns) for gate in gates] == [("step", 0.03, None), ("data_fetch", None, MS)]
    assert parse_gates("") == []


@pytest.mark.parametrize(
    "text", ["5%", "step", "step=", "step=5", "step=-1%", "step=1h", "steps=5%", "=5%", "step=\u0665%"]
)
def test_what_is_no_gate(text: str) -> None:
    with pytest.raises(UserError, match="--fail-on"):
        parse_gates(text)


def test_a_class_that_was_not_measured_cannot_be_judged() -> None:
    with pytest.raises(UserError, match="data was not measured in B"):
        check_gates(parse_gates("data=5%"), [STEP, Difference("data", MS, None, None, None)])
