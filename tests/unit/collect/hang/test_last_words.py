"""The stacks of an aborted rank, and a script that wants `faulthandler` for itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddlprof.collect.hang.last_words import LastWords

BEGIN = """
import faulthandler, os, sys
from pathlib import Path
from ddlprof.collect.hang.last_words import LastWords
words = LastWords(Path(sys.argv[1]))
own = open(sys.argv[2], "wb")
"""


def ran(folder: Path, script: str) -> tuple[Path, Path]:
    """The file of ddlprof and that of the script, in a process of its own: pytest uses `faulthandler`, too."""
    ours, own = folder / "rank-0.fatal", folder / "own"
    subprocess.run([sys.executable, "-c", BEGIN + script, str(ours), str(own)], check=False, capture_output=True)
    return ours, own


def test_an_aborted_process_leaves_its_stacks(tmp_path: Path) -> None:
    ours, own = ran(tmp_path, "def here(): os.abort()\nhere()")
    assert b"in here" in ours.read_bytes()
    assert own.read_bytes() == b""


@pytest.mark.parametrize("then", ["words.remove()", "os.fork() and os._exit(0); words.forked()"])
def test_a_script_that_takes_it_later_keeps_it(tmp_path: Path, then: str) -> None:
    ours, own = ran(tmp_path, f"faulthandler.enable(own)\nassert not words.in_use\n{then}\nos.abort()")
    assert b"Aborted" in own.read_bytes()
    assert not ours.exists() or ours.read_bytes() == b""


def test_nothing_is_left_of_a_script_that_ends(tmp_path: Path) -> None:
    ours, _ = ran(tmp_path, "assert words.in_use\nwords.remove()\nown.write(str(faulthandler.is_enabled()).encode())")
    assert not ours.exists()
    assert (tmp_path / "own").read_bytes() == b"False"


def test_a_rank_that_is_aborted_soon_after_its_first_step_leaves_its_stacks(tmp_path: Path) -> None:
    """Steps are of milliseconds, and the rank is asked what it does once a second."""
    assert b"in here" in rank_of_one_step(tmp_path, "def here(): os.abort()\nhere()").read_bytes()


def test_none_are_prepared_once_the_script_has_ended(tmp_path: Path) -> None:
    """The helper thread may look while they are removed, and goes on for a while."""
    assert not rank_of_one_step(tmp_path, "hangs.ended('ok')\nhangs.poll()").exists()


def rank_of_one_step(folder: Path, then: str) -> Path:
    """Where the last words of a rank are that did this after its first step."""
    (folder / "attempt-0").mkdir()
    script = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from ddlprof.collect.hang.rank import Hangs
place = SimpleNamespace(directory=Path(sys.argv[1]), header=SimpleNamespace(attempt=0), world_size=2, rank=1)
helper = SimpleNamespace(recorder=SimpleNamespace(calls=0, active=True))
hangs = Hangs(SimpleNamespace(hang_after=None, quiet=True), place, helper, lambda: (None, {}))
hangs.step_ended(1_000_000)
"""
    subprocess.run([sys.executable, "-c", script + then, str(folder)], check=False, capture_output=True)
    return folder / "attempt-0" / "rank-1.fatal"


def test_no_link_is_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("theirs")
    (tmp_path / "rank-0.fatal").symlink_to(target)
    with pytest.raises(FileExistsError):
        LastWords(tmp_path / "rank-0.fatal")
    assert target.read_text() == "theirs"
