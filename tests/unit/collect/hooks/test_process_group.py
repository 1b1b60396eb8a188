"""The default process group is noticed whoever makes it, and not when it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ddlprof.collect.hooks import process_group

dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether there was a group, each time that we were told so."""
    calls: list[bool] = []
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        monkeypatch.setenv(name, value)
    uninstall = process_group.follow(lambda: calls.append(dist.is_initialized() and dist.get_world_size() == 1))
    yield calls
    if dist.is_initialized():
        dist.destroy_process_group()
    uninstall()


def by_name(init: Callable[..., Any]) -> None:
    init("gloo", store=dist.HashStore(), rank=0, world_size=1)


EARLY: Callable[..., Any] = dist.init_process_group


@pytest.mark.parametrize(
    "make",
    [
        lambda: by_name(dist.init_process_group),
        lambda: by_name(EARLY),
        lambda: dist.device_mesh.init_device_mesh("cpu", (1,)),
    ],
    ids=["init_process_group", "imported before", "init_device_mesh"],
)
def test_every_way_to_make_a_group(make: Callable[[], None], made: list[bool]) -> None:
    make()
    assert made == [True]
    dist.destroy_process_group()
    assert made == [True]


def test_another_version_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the common place, the function itself is what is watched."""
    c10d = dist.distributed_c10d
    setter = c10d._update_default_pg
    monkeypatch.delattr(c10d, "_update_default_pg")
    calls: list[int] = []
    uninstall = process_group.follow(lambda: calls.append(1))
    try:
        assert c10d.init_process_group is dist.init_process_group is not EARLY
        monkeypatch.setattr(c10d, "_update_default_pg", setter, raising=False)
        by_name(dist.init_process_group)
        dist.destroy_process_group()
    finally:
        uninstall()
    assert calls == [1]
    assert dist.init_process_group is EARLY
