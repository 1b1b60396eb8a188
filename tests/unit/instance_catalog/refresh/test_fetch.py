"""Regions asked side by side of a cloud that is made up: what failed, what is asked after that, and when it ends."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from ddlprof.instance_catalog.refresh import fetch as module
from ddlprof.instance_catalog.refresh.fetch import Deadline, RegionAnswers, bounded, fetch
from ddlprof.instance_catalog.refresh.providers.base import MOST_MIB, MOST_PAGES, Allowance, CallFailed
from tests.unit.instance_catalog.refresh.made_up import ONE, Toy

NOW = datetime(2026, 9, 1)


def ask(
    regions: list[str],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    seconds: float = 60.0,
    **answers: Any,
) -> tuple[list[RegionAnswers], Toy]:
    toy = Toy(**answers)
    return fetch(toy, regions, ["t*"], ["t1.one"], NOW, on_progress, Deadline(seconds)), toy


@pytest.fixture
def never() -> Iterator[Callable[[str, Allowance], Any]]:
    """Waits until the test is over."""
    over = threading.Event()

    def wait(region: str, allowance: Allowance) -> Any:
        over.wait(60)
        return {}

    yield wait
    over.set()


def test_all_kinds_of_all_regions_are_answered() -> None:
    found, toy = ask(["moon", "mars"])
    assert [answers.region for answers in found] == ["moon", "mars"]
    assert [(a.types, a.offerings, a.on_demand, a.spot, a.errors) for a in found] == 2 * [
        ([ONE], {"t1.one"}, {"t1.one": 1.0}, {"t1.one": 0.4}, {})
    ]
    assert [kind for kind, region in toy.asked if region == "mars"] == ["types", "offerings", "on_demand", "spot"]


def test_an_endpoint_that_cannot_answer_anything_is_asked_once() -> None:
    (found,), toy = ask(["moon"], types=CallFailed("no connection", lasting=True))
    assert toy.asked == [("types", "moon"), ("on_demand", "moon")]
    assert found.errors == dict.fromkeys(("types", "offerings", "spot"), "no connection")
    assert found.on_demand == {"t1.one": 1.0}


def test_a_mistake_of_ours_is_no_failure_of_the_cloud() -> None:
    with pytest.raises(ZeroDivisionError):
        ask(["moon"], types=lambda region, allowance: 1 // 0)


def test_a_call_that_gets_nowhere_is_given_up_and_its_endpoint_with_it(
    monkeypatch: pytest.MonkeyPatch, never: Callable[[str, Allowance], Any]
) -> None:
    monkeypatch.setattr(module, "PAGE_S", 0.5)
    (found,), toy = ask(["moon"], types=never)
    assert found.errors["types"] == "no complete answer within 0.5 s: check the network, proxy and endpoint"
    assert found.errors.keys() == {"types", "offerings", "spot"}
    assert [kind for kind, _ in toy.asked] == ["types", "on_demand"]


def test_the_end_of_the_refresh_ends_a_call_under_way_and_those_after_it(
    never: Callable[[str, Allowance], Any],
) -> None:
    (found,), toy = ask(["moon"], seconds=0.5, offerings=never)
    over = "the 0.5 s that the refresh may take (--timeout) are over"
    assert found.errors == {
        "offerings": f"{over}, and not all was answered",
        "on_demand": f"{over}: not asked",
        "spot": f"{over}: not asked",
    }
    assert found.types == [ONE]
    assert [kind for kind, _ in toy.asked] == ["types", "offerings"]


def test_a_long_answer_may_take_its_time_as_long_as_pages_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE_S", 1.0)
    waiting = threading.Event()

    def slow(region: str, allowance: Allowance) -> dict[str, float]:
        return {str(page): 1.0 for page in allowance.pages(range(6)) if not waiting.wait(0.25)}

    (found,), _ = ask(["moon"], on_demand=slow)
    assert not found.errors
    assert found.on_demand is not None
    assert len(found.on_demand) == 6


def test_pages_without_end_are_one_line() -> None:
    def endless(region: str, allowance: Allowance) -> list[Any]:
        return [page for page in allowance.pages(itertools.count()) if page < 0]

    (found,), _ = ask(["moon"], types=endless)
    assert found.errors["types"].startswith(f"more than {MOST_PAGES} pages: ")


def test_bytes_without_end_are_one_line() -> None:
    def endless(region: str, allowance: Allowance) -> list[Any]:
        while True:
            allowance.read(2**20)

    (found,), _ = ask(["moon"], types=endless)
    assert found.errors["types"].startswith(f"more than {MOST_MIB} MiB: ")


def test_a_timeout_that_the_work_raises_is_its_own() -> None:
    def work() -> None:
        raise TimeoutError("of the work")

    with pytest.raises(TimeoutError, match="of the work"):
        bounded(work, Deadline(60.0))
