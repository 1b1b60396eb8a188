"""The view of a whole terminal."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from ddlprof.live.displays import Screen
from ddlprof.live.follower import RunFollower
from ddlprof.live.screen import render
from ddlprof.live.snapshot import GONE, TRAINS, Observer, RankView, Snapshot
from tests.unit.live.runs import GrowingRun

TWO_RANKS = Path(__file__).parents[2] / "golden/two-ranks"


def text_of(snapshot: Snapshot, width: int = 100, height: int = 30) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False, markup=False)
    console.print(render(snapshot, width, height, "leave with Ctrl-C"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_a_class_that_was_not_measured_says_so(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path).begin()
    run.train(20, data_ms=None)  # type: ignore[arg-type]
    text = text_of(Observer(RunFollower(tmp_path)).look(time.time_ns()))
    (line,) = [line for line in text.splitlines() if line.startswith("  data")]
    assert line.split() == ["data", "not", "measured"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_process_that_trains_alone_has_no_communication(ranks: int) -> None:
    names = ("compute", "data", "h2d", "interconnect", "network", "straggler", "bubble", "other")
    times: dict[str, float | None] = {"step": 1.0, **dict.fromkeys(names, 0.0), "comm": 0.0, "compute": 1.0}
    views = [RankView(n, 0, "a", TRAINS, 5, 4, {"step": 1.0}, 0.1, None, {}, None, {}) for n in range(ranks)]
    text = text_of(Snapshot("a", "", "ddp", "cpu", ranks, 1, steps=5, recent_steps=5, ranks=views, times_s=times))
    shown = {line.split()[0] for line in text.splitlines() if line.startswith("  ")}
    assert {"compute", "data", "other"} <= shown
    assert ({"interconnect", "network", "straggler", "bubble"} <= shown) == (ranks > 1)
    assert ("waits" in text) == (ranks > 1)


def test_a_narrow_terminal_shows_names_figures_and_sentences_whole() -> None:
    text = text_of(Observer(RunFollower(TWO_RANKS)).look(time.time_ns()), 40)
    lines = text.splitlines()
    for words in ("interconnect  4.0   4 % █", "compute      61.2  64 % █████████", "own work", "ended: exception"):
        assert any(words in line for line in lines)
    assert "mostly computing; the largest avoidable stall is data, 16 %" in " ".join(text.split())


def test_before_the_first_step_it_says_what_it_waits_for(tmp_path: Path) -> None:
    GrowingRun(tmp_path)
    assert "waiting for the first step" in text_of(Observer(RunFollower(tmp_path)).look(time.time_ns()))


@pytest.mark.parametrize(("width", "height"), [(200, 60), (80, 24), (40, 12), (10, 3)])
@pytest.mark.parametrize("ranks", [1, 3, 512])
def test_it_fits(width: int, height: int, ranks: int) -> None:
    hostile = "\x1b[31m[bold]x[/bold]\n" * 40
    views = [
        RankView(n, 0, hostile, TRAINS if n else GONE, 5, 4, {"step": 1.0, "compute": 1.0}, 0.1, 1 << 30, {}, None, {})
        for n in range(ranks)
    ]
    snapshot = Snapshot(
        hostile, hostile, "ddp", "cpu", ranks, 1, steps=5, recent_steps=5, steps_per_s=1.0, ranks=views,
        times_s={"step": 1.0, "compute": 0.9, "other": 0.1}, whole_s={"step": 1.0}, late_rank=0, notes=[hostile],
    )  # fmt: skip
    text = text_of(snapshot, width, height)
    assert all(character == "\n" or character.isprintable() for character in text)
    assert max(map(len, text.splitlines())) <= width
    if height >= 24:
        assert len(text.splitlines()) <= height
        assert "[bold]" in text
        assert ranks < 512 or "more" in text


def test_the_screen_comes_back_and_the_last_view_stays(tmp_path: Path) -> None:
    run = GrowingRun(tmp_path).begin()
    run.train(20)
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80, height=24, legacy_windows=False)
    with Screen(console, "hint") as screen:
        screen.show(Observer(RunFollower(tmp_path)).look(time.time_ns()))
    written = stream.getvalue()
    assert "\x1b[?1049h" in written
    _, _, after = written.partition("\x1b[?1049l")
    assert "step 20" in after
    assert "hint" not in after
