"""Processes that are forked from warm memory are like those that Python starts; and all of them end with their test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.processes import Forked, ForkServer, Processes, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="they are forked on Linux")

PROGRAMS = {
    "surroundings": "import os, sys\nprint(sys.argv, sys.path, sys.orig_argv, __name__, __spec__, os.getcwd())\n"
    "print(sorted(sys.modules), sorted(globals()), sorted(os.environ))",
    "threads": "import os, threading\nprint(os.listdir('/proc/self/task') == [str(os.getpid())])",
    "input": "print(input()[::-1])",
    "exit": "import sys; sys.exit(7)",
    "exit with words": "import sys; sys.exit('enough')",
    "exception": "def f(): raise ValueError('wrong')\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    f()",
    "interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "handlers": "import atexit\natexit.register(print, 'bye')\natexit.register(int, 'x')",
    "late": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "replaced": "import os, sys\nif len(sys.argv) < 3:\n    os.execv(sys.executable, [*sys.orig_argv, 'again'])\n"
    "print(sys.argv[1:], sorted(sys.modules))",
}


def test_processes_of_tests_are_forked(processes: Processes) -> None:
    """In the surroundings that a test has: started cold, they take seconds more, and no other test would notice."""
    assert isinstance(processes.start(sys.executable, "-c", ""), Forked)


@pytest.mark.parametrize("form", ["-c", "script"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_forked_as_started(program: str, form: str, processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(PROGRAMS[program])
    words = ["script.py"] if form == "script" else ["-c", PROGRAMS[program]]
    cold, warm = (
        processes.run(sys.executable, *words, "x", stdin="some\n", cold=cold, text=True) for cold in (True, False)
    )
    assert (warm.stdout, warm.stderr, warm.returncode) == (cold.stdout, cold.stderr, cold.returncode)


IMPORTS = """\
import importlib.abc, sys
class Seen(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        found.append(name)
found = []
sys.meta_path.insert(0, Seen())
import torch
assert torch.__spec__.loader.get_source("torch") and torch.__loader__ is torch.__spec__.loader
print(sorted(set(found) & set(WANTED)), sorted(set(WANTED) & set(sys.modules)))
"""
WANTED = ["torch", "torch.nn.modules.linear", "torch.optim", "torch.distributed.distributed_c10d", "torch._dynamo"]


def test_the_import_of_torch_is_seen(processes: Processes) -> None:
    """With those of its modules, and of no others."""
    done = processes.run(sys.executable, "-c", f"WANTED = {WANTED}\n{IMPORTS}", text=True)
    there = sorted(set(WANTED) - {"torch._dynamo"})
    assert (done.stdout, done.stderr) == (f"{there} {there}\n", "")


def test_nothing_is_left(fork_server: ForkServer, tmp_path: Path) -> None:
    """Of what is forked, started, and started by those in a session of their own."""
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
        "print(os.getpid(), child.pid, flush=True)\ntime.sleep(1000)"
    )
    processes = Processes(tmp_path, fork_server)
    started = [
        processes.start(sys.executable, "-c", code, cold=cold, stdout=subprocess.PIPE, text=True)
        for cold in (False, True)
    ]
    numbers = [int(number) for each in started if each.stdout for number in each.stdout.readline().split()]
    assert len(numbers) == 4
    assert os.getpgid(numbers[0]) == numbers[0]
    processes.end()
    assert all(process.returncode < 0 for process in started)
    until(lambda: not any(is_there(number) for number in numbers))


def is_there(number: int) -> bool:
    try:
        return bool(psutil.Process(number).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
