"""The ranks learn which machines they are on, and read other machines' clocks through a store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition
from typing import Any

import pytest

from ddlprof.collect.job import calibration
from ddlprof.collect.job.calibration import CLOCK_ROUNDS, MANY_MACHINES, exchange_nodes, read_clocks

dist = pytest.importorskip("torch.distributed")


@dataclass
class Client:
    """One rank's connection, in place of torch.distributed and of the store, and how much it was asked."""

    rank: int
    ranks: int
    store: Any
    requests: int = 0

    def get_rank(self) -> int:
        """The rank."""
        return self.rank

    def get_world_size(self) -> int:
        """The number of ranks."""
        return self.ranks

    def __getattr__(self, name: str) -> Any:
        def request(*arguments: Any) -> Any:
            self.requests += 1
            return getattr(self.store, name)(*arguments)

        return request


def exchanged(node_ids: list[str]) -> tuple[list[list[int]], list[int]]:
    """What each rank learns, and how often it asked the store."""
    store = dist.HashStore()
    clients = [Client(rank, len(node_ids), store) for rank in range(len(node_ids))]
    with ThreadPoolExecutor(len(clients)) as pool:
        learned = list(pool.map(exchange_nodes, clients, clients, node_ids))
    return learned, [client.requests for client in clients]


def test_each_rank_learns_the_machine_of_every_rank() -> None:
    learned, _ = exchanged(["a", "b", "a", "c", "b"])
    assert learned == [[0, 1, 0, 3, 1]] * 5


def test_requests_of_a_rank_do_not_grow_with_their_number() -> None:
    few, many = (exchanged([f"host-{rank // 8}" for rank in range(ranks)])[1] for ranks in (4, 64))
    assert max(few) == max(many) <= 4


class Store:
    """Keys and values of threads."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = Condition()

    def set(self, key: str, value: str) -> None:
        with self.changed:
            assert key not in self.values
            self.values[key] = value
            self.changed.notify_all()

    def wait(self, keys: list[str], patience: Any) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: all(key in self.values for key in keys), patience.total_seconds()):
                raise RuntimeError("timed out")

    def get(self, key: str) -> bytes:
        return self.values[key].encode()


def readings(nodes: list[int]) -> list[Any]:
    store = Store()
    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(lambda rank: read_clocks(rank, store, nodes), range(len(nodes))))


def test_rank_0_reads_the_clock_of_each_other_machine() -> None:
    first, *others = readings([0, 1, 0, 1, 4])
    assert [reading.rank for reading in first] == [1, 4]
    for reading in first:
        assert reading.least_ns < 0 < reading.greatest_ns  # here, both clocks are one
    assert others == [[]] * 4


def test_one_machine_has_nothing_to_read() -> None:
    assert readings([0, 0]) == [[], []]


def test_fewer_rounds_with_many_machines() -> None:
    nodes = list(range(MANY_MACHINES + 2))
    store = Store()
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(lambda rank: read_clocks(rank, store, nodes), range(len(nodes))))
    assert len(store.values) == 2 * CLOCK_ROUNDS[1] * (len(nodes) - 1)


def test_a_rank_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import timedelta

    monkeypatch.setattr(calibration, "_PATIENCE", timedelta(seconds=0.01))
    with pytest.raises(RuntimeError, match="timed out"):
        read_clocks(0, Store(), [0, 1])
