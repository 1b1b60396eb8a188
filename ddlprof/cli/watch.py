"""`ddlprof watch`: a run while it trains."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import UserError, complain
from ddlprof.cli.latest import run_argument

if TYPE_CHECKING:
    from ddlprof.live.loop import Display
    from ddlprof.live.snapshot import Observer

_SCREEN_INTERVAL_S, _LINES_INTERVAL_S = 2.0, 10.0
_SIGNALLED = 128
"""A shell adds this to the signal's number for the exit code of a process that died by a signal."""
_HANG_EXIT_CODE = 4
_HINT = "Ctrl-C leaves this view; the training goes on"

_MetricsPort = Annotated[
    int | None, typer.Option(metavar="PORT", min=1, max=65535, help="Serve metrics for Prometheus there.")
]
_MetricsAddress = Annotated[str, typer.Option(metavar="A", help="Address that metrics are served on.")]
_Otlp = Annotated[
    str | None, typer.Option(metavar="URL", help="Send metrics to an OpenTelemetry receiver: http://host:4318.")
]


def watch(
    run: Annotated[str, run_argument("Run directory or its URL (s3://...), still going or not.", "RUN")] = "last",
    once: Annotated[
        bool, typer.Option("--once", help="Print where the run is as one line on stdout, and exit.")
    ] = False,
    hang: Annotated[
        bool,
        typer.Option("--hang", help="Say on stdout why the run stands still, and exit: with 4 if it hangs, else 0."),
    ] = False,
    interval: Annotated[
        float | None, typer.Option(metavar="S", min=0.1, help="Seconds between two looks [2; 10 without a terminal].")
    ] = None,
    wait: Annotated[str | None, typer.Option(metavar="TIME", help="Wait so long for the run to begin: 10m.")] = None,
    total_steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Steps that the training will make in all.")
    ] = None,
    metrics_port: _MetricsPort = None,
    metrics_address: _MetricsAddress = "127.0.0.1",
    otlp: _Otlp = None,
    beside: Annotated[
        int | None, typer.Option(metavar="PID", hidden=True, help="What ddlprof run --live starts.")
    ] = None,
) -> None:
    """Show where the time of a run's steps goes while it trains; also attached later, or from another machine."""
    from ddlprof.base.text import shell_word
    from ddlprof.base.units import parse_duration
    from ddlprof.live.follower import RunFollower
    from ddlprof.live.loop import await_run
    from ddlprof.live.loop import watch as watch_run
    from ddlprof.live.snapshot import Observer
    from ddlprof.store.reader import why_no_run

    wait_s = parse_duration(wait, "--wait") if wait is not None else 0.0
    follower = RunFollower(run)
    if beside is not None:
        from ddlprof.live.loop import watch_beside

        watch_beside(follower, beside, interval, total_steps)
        return
    if wait_s:
        complain(f"waiting for {run}")
    if not await_run(follower, wait_s, _sleep):
        waits = "" if wait_s else "; --wait 10m waits for it to begin"
        raise UserError(f"{run}: {why_no_run(run)}{waits}")
    if hang:
        _say_why_it_hangs(run)
    observer = Observer(follower, total_steps)
    if once:
        _print_once(observer, otlp)
        return
    with (
        _metrics(metrics_port, metrics_address) as metrics,
        _otlp(otlp, observer) as sender,
        _display() as (display, default_s),
    ):
        displays = [display, *metrics, *sender]
        word = watch_run(observer, displays, interval or default_s, _sleep, shell_word(run, path=True))
    complain(word)


@contextmanager
def _metrics(port: int | None, address: str) -> Iterator[list[Display]]:
    if port is None:
        yield []
        return
    from ddlprof.live.metrics import served

    with served(port, address) as metrics:
        yield [metrics]


@contextmanager
def _otlp(url: str | None, observer: Observer) -> Iterator[list[Display]]:
    """Sends metrics while the run is watched. Problems are notes in the view of a terminal, else lines."""
    if url is None:
        yield []
        return
    from ddlprof.cli.screen import is_terminal
    from ddlprof.live.otlp import sending

    on_terminal = is_terminal(sys.stderr)
    with sending(url, (lambda problem: None) if on_terminal else complain) as (sender, problems):
        if on_terminal:
            observer.own_note = lambda: problems.last
        yield [sender]


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return True


def _say_why_it_hangs(run: str) -> None:
    from ddlprof.cli.screen import show
    from ddlprof.live.hang import look
    from ddlprof.report.hang.card import card

    found = look(run)
    show(card(found) if found is not None else "no rank says that it stands still\n")
    raise typer.Exit(_HANG_EXIT_CODE if found is not None and found.is_hang else 0)


def _print_once(observer: Observer, otlp: str | None) -> None:
    """Prints one line, and sends the metrics once. Raises UserError where they do not arrive."""
    from ddlprof.cli.screen import show
    from ddlprof.live.words import line

    while observer.follower.behind_bytes:  # only the last look is shown
        observer.follower.advance()
    snapshot = observer.look(time.time_ns())
    while snapshot.read_share < 1:
        snapshot = observer.look(time.time_ns())
    if otlp is None:
        show(f"{line(snapshot)}\n")
        return
    from ddlprof.live.otlp import sending

    with sending(otlp, lambda problem: None) as (sender, problems):
        show(f"{line(snapshot)}\n")
        sender.show(snapshot)
    if problems.last:
        raise UserError(problems.last)


@contextmanager
def _display() -> Iterator[tuple[Display, float]]:
    """Yields the display of the run, and the seconds between two updates."""
    from ddlprof.cli.screen import console_on, is_terminal, replacing
    from ddlprof.live.displays import Lines, Screen

    if not is_terminal(sys.stderr):
        yield Lines(replacing(sys.stderr)), _LINES_INTERVAL_S
        return
    for name in ("SIGTERM", "SIGHUP"):  # the terminal gets its first screen back
        if hasattr(signal, name) and signal.getsignal(getattr(signal, name)) != signal.SIG_IGN:  # not under nohup
            signal.signal(getattr(signal, name), lambda number, frame: sys.exit(_SIGNALLED + number))
    with Screen(console_on(sys.stderr), _HINT) as screen:
        yield screen, _SCREEN_INTERVAL_S
