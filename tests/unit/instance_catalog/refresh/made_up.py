"""A cloud that is made up: one class with the methods of `Provider`, as `docs/architecture.md` asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from ddlprof.instance_catalog.refresh.providers.base import Allowance, TypeAnswer

ONE = TypeAnswer("t1.one", "t1", "T4", 1, 1.0, 16.0, vcpus=4, memory_gib=16.0, network=None)


class Toy:
    """Answers with plain values; a callable in their place is called with the region and the allowance."""

    name = "toy"
    gpu_types: tuple[str, ...] = ("t*",)
    sources: Mapping[str, str] = {"types": "Toy Types", "on_demand": "Toy Prices", "spot": "Toy Spot"}
    endpoints: Mapping[str, str] = {"types": "api", "offerings": "api", "on_demand": "prices", "spot": "api"}

    def __init__(self, profile: str | None = None, **answers: Any) -> None:
        self.asked: list[tuple[str, str]] = []
        self._answers = {
            "types": [ONE],
            "offerings": {"t1.one"},
            "on_demand": {"t1.one": 1.0},
            "spot": {"t1.one": 0.4},
            **answers,
        }

    def regions(self, wanted: Sequence[str]) -> tuple[str, ...]:
        return tuple(wanted) or ("moon",)

    def types(self, region: str, names: Sequence[str], allowance: Allowance) -> list[TypeAnswer]:
        return list(self._answer("types", region, allowance))

    def offerings(self, region: str, allowance: Allowance) -> set[str]:
        return set(self._answer("offerings", region, allowance))

    def on_demand(self, region: str, allowance: Allowance) -> dict[str, float]:
        return dict(self._answer("on_demand", region, allowance))

    def spot(self, region: str, types: Sequence[str], now: datetime, allowance: Allowance) -> dict[str, float]:
        return {name: price for name, price in self._answer("spot", region, allowance).items() if name in types}

    def _answer(self, kind: str, region: str, allowance: Allowance) -> Any:
        self.asked.append((kind, region))
        answer: Callable[[str, Allowance], Any] | Any = self._answers[kind]
        if isinstance(answer, Exception):
            raise answer
        return answer(region, allowance) if callable(answer) else answer
