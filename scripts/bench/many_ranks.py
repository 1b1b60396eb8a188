"""How the requests to the job's store grow with its ranks, while they find out who is on which machine.

`TORCH_CPP_LOG_LEVEL=ERROR python -m scripts.bench.many_ranks` connects as many clients as a job has ranks, each in a
thread of its own, to one real TCPStore, and lets them exchange their machines as they do before a training. Beside it
is what they did before: each asked for the machine of every other.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

from ddlprof.collect.job.calibration import exchange_nodes
from scripts.bench.machine import describe

RANKS = (64, 256, 1024)
RANKS_OF_MACHINE = 8
MOST_REQUESTS_OF_RANK = 4


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


def gathered(client: Client, node_id: str) -> None:
    """What ranks do."""
    exchange_nodes(client, client, node_id)


def one_by_one(client: Client, node_id: str) -> None:
    """What they did."""
    client.set(f"{client.rank}", node_id)
    keys = [f"{each}" for each in range(client.ranks)]
    client.wait(keys)
    for key in keys:
        client.get(key)


def measure(ranks: int, way: Callable[[Client, str], None]) -> tuple[float, int]:
    """Seconds until the last rank is done, and the requests of all."""
    dist: Any = importlib.import_module("torch.distributed")
    server = dist.TCPStore("127.0.0.1", 0, None, True)
    connected, begins = Barrier(ranks), []

    def rank(number: int) -> int:
        store = dist.TCPStore("127.0.0.1", server.port, None, False)
        client = Client(number, ranks, store)
        connected.wait()
        begins.append(time.perf_counter())
        way(client, f"machine-{number // RANKS_OF_MACHINE}/6f1f2a4c-3a55-4f6d-8d0e-0d1f5b8d6c11/net:4026531840")
        return client.requests

    with ThreadPoolExecutor(ranks) as pool:
        requests = sum(pool.map(rank, range(ranks)))
    return time.perf_counter() - min(begins), requests


def main() -> int:
    """Exit code 1 if a rank makes more requests than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--without-former", action="store_true", help="leave out what they did before")
    arguments = parser.parse_args()
    print(describe())
    print("\n| ranks | way | requests | requests a rank | seconds |\n|---:|---|---:|---:|---:|")
    missed = False
    for ranks in arguments.ranks:
        for way in (gathered,) if arguments.without_former else (gathered, one_by_one):
            seconds, requests = measure(ranks, way)
            each = requests / ranks
            missed |= way is gathered and each > MOST_REQUESTS_OF_RANK
            print(f"| {ranks:,} | {way.__name__} | {requests:,} | {each:,.1f} | {seconds:.2f} |", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
