from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ddlprof.base.alive import instances_of


@pytest.fixture(autouse=True)
def all_objects() -> Iterator[None]:
    """A training freezes no objects, which would hide them; the suite does."""
    gc.unfreeze()
    yield
    gc.freeze()


class Kind:
    pass


class Special(Kind):
    pass


def test_instances_of_a_class_and_of_those_made_from_it() -> None:
    alive = [Kind(), Special(), Special()]
    assert sorted(map(id, instances_of(Kind))) == sorted(map(id, alive))
    assert sorted(map(id, instances_of(Special))) == sorted(map(id, alive[1:]))
    del alive
    assert instances_of(Kind) == []


def test_an_object_whose_class_lies_is_not_asked() -> None:
    class Proxy:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise AssertionError("the script's code runs")

    proxy = Proxy()
    assert instances_of(Kind) == []
    assert type(proxy) is Proxy
