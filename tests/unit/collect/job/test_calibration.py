"""The ranks learn who is on which machine, without asking rank 0's store more than it can answer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from ddlprof.collect.job.calibration import exchange_nodes
from scripts.bench.many_ranks import Client

dist = pytest.importorskip("torch.distributed")


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
