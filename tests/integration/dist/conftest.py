"""Jobs of several real processes on gloo, without a launcher of torch's: an import less for every rank."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.store import RankData, load_run
from tests.integration.processes import PATIENCE_S, Processes, free_port

HERE = Path(__file__).parent
DDLPROF = ["-m", "ddlprof", "run", "--quiet"]
Job = Callable[..., list[str]]


@pytest.fixture(scope="module")
def job(processes_of_module: Processes) -> Job:
    """`job(directory, world_size, words)` runs `python WORDS` on every rank and returns what each printed to stderr."""

    def run(directory: Path, world_size: int, words: list[str], **environment: str) -> list[str]:
        common = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size),
            "OMP_NUM_THREADS": "1", **environment,
        }  # fmt: skip
        ranks = [
            processes_of_module.start(
                sys.executable, *words, cwd=directory, stderr=subprocess.PIPE, text=True,
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(world_size)
        ]  # fmt: skip
        errors = [rank.communicate(timeout=PATIENCE_S)[1] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * world_size, "\n".join(errors)
        return errors

    return run


def ranks_of(run: Path, world_size: int) -> list[RankData]:
    ranks = load_run(run).ranks
    assert [rank.rank for rank in ranks] == list(range(world_size))
    assert not [drop for rank in ranks for drop in rank.drops]
    return ranks
