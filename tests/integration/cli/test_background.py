"""Jobs in the background (`nohup ddlprof run ... &`): SIGINT and SIGHUP are ignored there, by Python as well."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.processes import PATIENCE_S, Processes, until

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")

SCRIPT = """\
import os, signal, sys, time
print([signal.getsignal(each).name for each in (signal.SIGINT, signal.SIGHUP)], flush=True)
signal.signal(signal.SIGHUP, lambda number, frame: print("was told"))  # as torchrun does, whatever was before
open("ready", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
print("ends")
"""
PROFILED = ["-m", "ddlprof", "run", "--quiet"]


def ended(processes: Processes, words: list[str], sent: list[int], folder: Path) -> str:
    """What the command prints that is sent these signals, which it ignores."""
    (folder / "script.py").write_text(SCRIPT)
    process = processes.start(sys.executable, *words, in_background=True, text=True, stdout=subprocess.PIPE)
    until((folder / "ready").exists, process)
    for number in sent:
        process.send_signal(number)
    (folder / "go").touch()
    output: str = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0
    return output


@pytest.mark.parametrize("before", [[], PROFILED], ids=["python", "ddlprof run"])
def test_an_interrupt_is_ignored(before: list[str], processes: Processes, tmp_path: Path) -> None:
    output = ended(processes, [*before, "script.py"], [signal.SIGINT], tmp_path)
    assert output == "['SIG_IGN', 'SIG_IGN']\nends\n"


def test_a_launcher_is_told_nothing_that_its_parent_ignores(processes: Processes, tmp_path: Path) -> None:
    command = ["--", "sh", "-c", f'"{sys.executable}" script.py; exit $?']
    output = ended(processes, [*PROFILED, *command], [signal.SIGINT, signal.SIGHUP], tmp_path)
    assert output == "['SIG_IGN', 'SIG_IGN']\nends\n"


def test_a_view_goes_on(processes: Processes, tmp_path: Path) -> None:
    """It waits for a run."""
    words = ["watch", "run", "--wait", "10m"]
    process = processes.start(
        sys.executable, "-m", "ddlprof", *words, in_background=True, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "ddlprof: waiting for run\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
