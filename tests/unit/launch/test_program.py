"""How the end of a program is taken down, with a session that only remembers what it was told."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.launch import ending as endings
from ddlprof.launch import program
from ddlprof.launch.ending import Ending
from ddlprof.launch.program import without_our_frames
from ddlprof.launch.target import LaunchTarget
from ddlprof.model.options import Options


class FakeSession:
    def __init__(self, directory: Path | None = Path("run"), error: Exception | None = None, rank: int = 0) -> None:
        self.directory = directory
        self.rank = rank
        self.hangs = SimpleNamespace(error=None)
        self.finished: list[tuple[str, int]] = []
        self._error = error

    def finish(self, status: str, exit_code: int) -> None:
        self.finished.append((status, exit_code))
        if self._error:
            raise self._error


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The run directories whose card was printed."""
    printed: list[Path] = []
    monkeypatch.setattr(endings, "save_summary", lambda _: None)
    monkeypatch.setattr(endings, "print_card", lambda directory, _: printed.append(directory))
    monkeypatch.setattr(endings, "await_ranks", lambda directory, _: None)  # no rank has left a file
    return printed


def ending(session: Any, options: Options | None = None) -> Ending:
    return Ending(options or Options(), session)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, ("ok", 0)),
        (SystemExit(), ("ok", 0)),
        (SystemExit(0), ("ok", 0)),
        (SystemExit(7), ("exit", 7)),
        (SystemExit("text"), ("exit", 1)),
        (ValueError("x"), ("exception", 1)),
        (KeyboardInterrupt(), ("interrupt", 130)),
    ],
)
def test_status_and_exit_code(error: BaseException | None, expected: tuple[str, int], cards: list[Path]) -> None:
    session = FakeSession()
    end = ending(session)
    if error:
        end.note(error)
    end.finish()
    assert session.finished == [expected]
    assert cards == [Path("run")]


@pytest.mark.parametrize("options", [Options(quiet=True), Options(card=False)])
def test_no_card_if_not_wanted(options: Options, cards: list[Path]) -> None:
    ending(FakeSession(), options).finish()
    assert not cards


def test_a_quiet_run_has_a_summary_all_the_same(monkeypatch: pytest.MonkeyPatch, cards: list[Path]) -> None:
    saved: list[Path] = []
    monkeypatch.setattr(endings, "save_summary", saved.append)
    ending(FakeSession(), Options(quiet=True)).finish()
    ending(FakeSession(rank=1), Options(quiet=True)).finish()
    assert saved == [Path("run")]


def test_the_end_comes_once(cards: list[Path]) -> None:
    """A process of `multiprocessing` may run two kinds of exit handlers."""
    session = FakeSession()
    end = ending(session)
    end.finish()
    end.finish()
    assert session.finished == [("ok", 0)]
    assert len(cards) == 1


def test_a_forked_child_finishes_nothing(cards: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession()
    end = ending(session)
    monkeypatch.setattr("ddlprof.launch.ending.getpid", lambda: -1)
    end.finish()
    assert not session.finished
    assert not cards


def test_a_failing_session_costs_one_line(cards: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    ending(FakeSession(error=RuntimeError("broken"))).finish()
    assert capsys.readouterr().err == "ddlprof: the end of the run is not recorded: RuntimeError: broken\n"
    assert cards


def test_frames_of_this_package_are_left_out() -> None:
    ours = compile("theirs()", str(Path(program.__file__).with_name("bootstrap.py")), "exec")

    def theirs() -> None:
        raise ValueError

    with pytest.raises(ValueError) as caught:  # noqa: PT011 - it carries no text
        exec(ours, {"theirs": theirs})
    traceback = caught.value.__traceback__
    assert traceback
    cut = without_our_frames(traceback.tb_next)
    assert cut
    assert cut.tb_frame.f_code.co_name == "theirs"
    assert without_our_frames(None) is None


def test_broken_instrumentation_lets_the_training_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ddlprof.collect.session", None)  # importing it raises ImportError
    session = program._start_session(Options(), LaunchTarget(["train.py"]))
    assert session is None
    assert capsys.readouterr().err.startswith("ddlprof: this run is not measured: ModuleNotFoundError")
