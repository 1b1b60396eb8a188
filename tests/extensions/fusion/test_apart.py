"""Objects in processes of their own: what they return, raise and leave behind."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import torch

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.apart import FORK, HERE, SPAWN, apart
from ddlprof.extensions.fusion.traced import Untraceable

CPU = torch.device("cpu")
WAYS = [SPAWN, HERE, *([FORK] if sys.platform == "linux" else [])]


class Counter:
    """Counts its calls, and draws."""

    def __init__(self, begin: int) -> None:
        self.count = begin

    def add(self, told: Callable[[int], None] = lambda done: None) -> tuple[int, int]:
        self.count += 1
        told(self.count)
        return self.count, os.getpid()

    def draw(self) -> tuple[float, float]:
        return random.random(), float(torch.rand(()))

    def fail(self, error: Exception) -> None:
        raise error

    def end(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("way", WAYS)
def test_an_object_keeps_its_state_and_draws_as_this_process_would(way: str) -> None:
    random.seed(5)
    torch.manual_seed(5)
    told: list[int] = []
    with closing(apart(way, CPU, Counter, 3)) as one, closing(apart(way, CPU, Counter, 3)) as other:
        drawn = [each.call("draw") for each in (one, other, one)]
        assert [one.call("add", told=told.append)[0], one.call("add")[0], other.call("add")[0]] == [4, 5, 4]
        assert (one.call("add")[1] == os.getpid()) is (way == HERE)
    assert told == [4]
    expected = [(random.random(), float(torch.rand(()))) for _ in range(2)]
    assert drawn == [expected[0], expected[0], expected[1]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [UserError("what to do"), Untraceable("changes"), ValueError("a bug")])
def test_what_it_raises_is_raised_here_and_it_goes_on(way: str, error: Exception) -> None:
    with closing(apart(way, CPU, Counter, 0)) as remote:
        with pytest.raises(type(error), match=str(error)):
            remote.call("fail", error)
        assert remote.call("add")[0] == 1


def test_a_process_that_ends_is_one_line() -> None:
    ended = pytest.raises(UserError, match=r"ended early \(exit status -9\)")
    with closing(apart(WAYS[-1] if WAYS[-1] != HERE else SPAWN, CPU, Counter, 0)) as remote, ended:
        remote.call("end")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Product:
    def sum(self) -> float:
        torch.set_num_threads(2)
        return float((torch.ones(600, 600) @ torch.ones(600, 600)).sum())


@pytest.mark.skipif(sys.platform != "linux", reason="copies of a process are made on Linux only")
def test_a_copy_computes_with_threads_that_this_process_has_used(two_threads: None) -> None:
    """GNU's OpenMP would wait for ever for threads that a copy does not have."""
    expected = Product().sum()
    with closing(apart(FORK, CPU, Product)) as remote:
        assert remote.call("sum") == expected


@pytest.mark.slow
def test_processes_end_with_the_one_that_started_them() -> None:
    program = (
        "import os, signal, torch\n"
        "from ddlprof.extensions.fusion.apart import apart, SPAWN\n"
        "from tests.extensions.fusion.test_apart import Counter, WAYS\n"
        "remotes = [apart(WAYS[-1] if WAYS[-1] != 'here' else SPAWN, torch.device('cpu'), Counter, 0) for _ in '12']\n"
        "print(*[each.call('add')[1] for each in remotes], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False, timeout=200)
    assert found.returncode == -signal.SIGKILL  # its output ends only when the others have closed it, too
    assert len(found.stdout.split()) == 2
