"""The values of a sweep as they are typed, and its trials."""

from __future__ import annotations

import pytest

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.hyperparameters import partition
from ddlprof.extensions.fusion.sweeps import UniformRange, combinations, drawn, for_optimizers, parse_sweeps, trials_of


def test_values_and_ranges_are_read() -> None:
    found = parse_sweeps(
        ["lr=log(1e-4, 1e-1, 4)", "wd=uniform(0,0.3,4)", "width=choice(64,128)", "kind=a,true,2", "eps=log(1e-8,1)"]
    )
    assert found["lr"] == [0.0001, 0.001, 0.01, 0.1]
    assert found["wd"] == [0.0, 0.1, 0.2, 0.3]
    assert found["width"] == [64, 128]
    assert found["kind"] == ["a", True, 2]
    assert found["eps"] == UniformRange("eps=log(1e-8,1)", 1e-8, 1.0, True)
    assert parse_sweeps(["lr=uniform(1,2,2)"]) == {"lr": [1.0, 2.0]}


def test_rounding_does_not_leave_the_range() -> None:
    assert parse_sweeps(["beta1=uniform(0.9,0.9999999,2)"]) == {"beta1": [0.9, 0.9999999]}


def test_draws_are_within_their_ranges_different_and_those_of_the_seed() -> None:
    sweeps = parse_sweeps(["lr=log(1e-4,1e-1)", "width=4,8", "wd=uniform(0,1)"])
    found = trials_of(sweeps, 200, seed=3)
    assert found == drawn(sweeps, 200, 3)
    assert found != drawn(sweeps, 200, 4)
    assert len({tuple(each.values()) for each in found}) == 200
    rates, shares = ([float(each[name]) for each in found] for name in ("lr", "wd"))
    assert 1e-4 <= min(rates) < 3e-4 < 3e-2 < max(rates) <= 1e-1
    below = sum(rate < 10**-2.5 for rate in rates)  # the middle of the logarithms
    assert 70 < below < 130
    assert 0 <= min(shares) < 0.1 < 0.9 < max(shares) <= 1
    assert {each["width"] for each in found} == {4, 8}


def test_draws_of_few_values_are_each_combination_once() -> None:
    sweeps = parse_sweeps(["a=1,2,3", "b=x,y"])
    found = drawn(sweeps, 6, 0)
    assert sorted(map(str, found)) == sorted(map(str, combinations(sweeps)))


def test_values_that_an_optimizer_does_not_have_make_no_trials() -> None:
    trials = trials_of(parse_sweeps(["optimizer=sgd,adam", "momentum=0,0.9", "amsgrad=true,false", "seed=1,2"]))
    found = for_optimizers(trials, "adam", {"seed"})
    assert len(found) == 8
    assert {tuple(each) for each in found} == {("optimizer", "momentum", "seed"), ("optimizer", "amsgrad", "seed")}
    parts = partition(found, {"optimizer"})
    sizes = [(common["optimizer"], len(numbers)) for common, numbers in parts]
    assert sizes == [("sgd", 4), ("adam", 4)]
    assert for_optimizers([{"momentum": 0.1}, {"momentum": 0.2}], "adam", {"momentum"}) == [
        {"momentum": 0.1}, {"momentum": 0.2}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr=log(1e-4,1e-1", "log(...), uniform(...) or choice(...) stands alone, with both brackets"),
        ("lr=1,log(1,2,3)", "stands alone"),
        ("lr=lgo(1,2,3)", "no lgo(...); did you mean log?; there are log(LOW,HIGH,N), uniform(LOW,HIGH,N) and choice"),
        ("lr=(1,2)", "no brackets(...); there are"),
        ("lr=log()", "not of the form log(LOW,HIGH,N) for N values, or log(LOW,HIGH) for draws"),
        ("lr=log(1)", "not of the form log(LOW,HIGH,N)"),
        ("lr=log(1,2,3,4)", "not of the form log(LOW,HIGH,N)"),
        ("lr=uniform(a,b,3)", "not of the form uniform(LOW,HIGH,N)"),
        ("lr=uniform(0,inf,3)", "not of the form uniform(LOW,HIGH,N)"),
        ("lr=uniform(2,1,3)", "LOW has to be less than HIGH"),
        ("lr=uniform(1,1,3)", "LOW has to be less than HIGH"),
        ("lr=log(0,1,3)", "LOW has to be more than 0 in log(LOW,HIGH,N) for N values, or log(LOW,HIGH) for draws;"),
        ("lr=log(1,2,1)", "N has to be a whole number from 2 to 100,000"),
        ("lr=log(1,2,2.5)", "N has to be a whole number"),
        ("lr=log(1,2,1e9)", "N has to be a whole number"),
        ("lr=uniform(0.1,0.1000001,5)", "LOW and HIGH are too close for 5 values of 6 digits"),
        ("lr=choice()", "a value is missing between commas"),
        ("lr=choice(1,1)", "1 stands there twice"),
        ("lr=", "not of the form NAME=VALUE,VALUE,..."),
    ],
)
def test_a_bad_form_is_one_line_that_says_what_to_type(text: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_sweeps([text])
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"--sweep {text}: ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("texts", "draws", "message"),
    [
        (["lr=log(1e-4,1e-1)"], None, "how many values? give their number, as in lr=log(1e-4,1e-1,8), or --trials N"),
        (["lr=1,2"], 3, "--trials 3: there are only 2 combinations"),
        (["lr=1,2"], 1, "--trials 1: has to be from 2 to 100,000"),
        ([], 3, "--trials 3: nothing to draw from; give --sweep NAME=log(LOW,HIGH)"),
        (["lr=uniform(0,1,400)", "wd=uniform(0,1,400)"], None, "160,000 trials: more than 100,000; draw some of them"),
        (["lr=uniform(1,1.00001)"], 30, "--trials 30: the ranges have fewer different values; make them wider"),
    ],
)
def test_trials_that_cannot_be_made_are_one_line(texts: list[str], draws: int | None, message: str) -> None:
    with pytest.raises(UserError) as raised:
        trials_of(parse_sweeps(texts), draws)
    assert message in str(raised.value)
