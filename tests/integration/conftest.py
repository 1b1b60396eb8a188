"""Real processes, for a test or for all tests of a file; see `tests.integration.processes`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.processes import ForkServer, Processes


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """One for each process of pytest."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def processes(fork_server: ForkServer, tmp_path: Path) -> Iterator[Processes]:
    """In the test's directory."""
    started = Processes(tmp_path, fork_server)
    yield started
    started.end()


@pytest.fixture(scope="module")
def processes_of_module(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """In a directory of their own, if they are told no other; for what several tests look at."""
    started = Processes(tmp_path_factory.mktemp("module"), fork_server)
    yield started
    started.end()
