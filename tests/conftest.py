"""What holds for every test: a clean environment, and the markers that depend on the machine."""

from __future__ import annotations

import gc
import os
import re
import shutil
import site
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.integration.processes import ForkServer, Processes

# Packages that were installed with --user stay where they are. Not for each test: the process that forks others has to
# have the same variables as they.
os.environ["PYTHONUSERBASE"] = site.getuserbase()

# How long an example takes says nothing on a busy machine. Tests that say how many they try keep to that. The short
# profile tries the same examples each time: what only chance would find is found at night, and not in a fresh clone.
hypothesis.settings.register_profile("short", deadline=None, max_examples=30, derandomize=True)
hypothesis.settings.register_profile("long", deadline=None, max_examples=1000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips, with the reason, what this machine cannot run."""
    if item.get_closest_marker("gpu"):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
    if item.get_closest_marker("root") and (os.geteuid() != 0 or shutil.which("ip") is None):
        pytest.skip("needs root and iproute2")


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end, so neither the garbage collector nor what looks for the objects
    of a training goes through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home directory of all tests, in which no user has configured anything."""
    return tmp_path_factory.mktemp("home")


OF_THE_SHELL = re.compile(
    r"(DDLPROF|GPUHUNT|TORCHELASTIC|SLURM|OMPI|PMIX?|MV2|MPI|AWS|XDG)_\w*"
    r"|(LOCAL_|GROUP_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT)|NCCL_HOSTID|TEARDOWN_CUPTI"
    r"|COLUMNS|LINES|COLORTERM|(NO|FORCE)_COLOR|TTY_\w+|(?i:\w+_PROXY)"
)
"""Options of ours, a launcher's job, an account, what the terminal is like, and proxies between us and this machine."""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """The surroundings of the developer's shell change no result, nor do the tests before: torch draws as if first.

    Locale and time zone stay as they are, for no result may depend on them.
    """
    for name in filter(OF_THE_SHELL.fullmatch, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("HOME", str(home))
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)


@pytest.fixture
def dynamo_forgets() -> Iterator[None]:
    """For a test that compiles: to the ones after it, nothing was compiled in this process."""
    yield
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """One for each process of pytest."""
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def processes(fork_server: ForkServer, tmp_path: Path) -> Iterator[Processes]:
    """Real processes, in the test's directory; see `tests.integration.processes`."""
    started = Processes(tmp_path, fork_server)
    yield started
    started.end()


@pytest.fixture(scope="module")
def processes_of_module(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """In a directory of their own, if they are told no other; for what several tests look at."""
    started = Processes(tmp_path_factory.mktemp("module"), fork_server)
    yield started
    started.end()
