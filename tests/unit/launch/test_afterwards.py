"""After the end of a training nothing changes its exit code: each function called then fails, one at a time, in each
way."""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import ddlprof
from ddlprof.base.errors import UserError
from ddlprof.launch import afterwards as module
from ddlprof.launch import child, command, ending, terminal, torchrun
from ddlprof.launch.afterwards import EndTask, LastResort, afterwards
from ddlprof.model import codec
from ddlprof.model.options import Options
from ddlprof.model.records import End, RankHeader

pytestmark = pytest.mark.skipif(os.name == "nt", reason="forks, and POSIX signals")

CODE = 5
"""The exit code of the training."""
PATIENCE_S = 60.0
HANG_S = 1000.0
"""Far longer than the test may take."""
PACKAGE = os.path.join(os.path.dirname(ddlprof.__file__), "")


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(HANG_S)


def hang() -> None:
    if signal.getitimer(signal.ITIMER_REAL)[0]:  # the limit is near; without one there is no end
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(HANG_S)


def failing(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


FAULTS: list[Callable[[], None]] = [
    *map(failing, (OSError(28, "full"), ValueError("x"), MemoryError(), RecursionError(), UserError("x"))),
    *map(failing, (KeyboardInterrupt(), SystemExit(9), GeneratorExit())),
    interrupt,
    hang,
]


ENTERED = [each.__code__ for each in (ending.Ending.note, ending.Ending.prepare, ending.Ending.finish)]


class Fault:
    """A tracer: a function of ddlprof fails when it is first called. Those of the guard itself do not count."""

    def __init__(self, function: list[Any] | None, act: Callable[[], None]) -> None:
        self.called: list[list[Any]] = []
        """All functions so far, by file, line and name."""
        self._function = function
        self._act = act

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        entered = code in ENTERED or (code.co_name == "finish" and code.co_filename == child.__file__)
        counts = code.co_filename.startswith(PACKAGE) and code.co_filename != module.__file__ and not entered
        if event == "call" and counts:
            function = [code.co_filename, code.co_firstlineno, code.co_name]
            if function == self._function:
                sys.settrace(None)
                self._act()
            if self._function is None and function not in self.called:
                self.called.append(function)


def in_fork(work: Callable[[], int]) -> int:
    """The exit code of the work in a process of its own."""
    process = os.fork()
    if not process:
        code = 99
        try:
            faulthandler.dump_traceback_later(PATIENCE_S, exit=True, file=os.fdopen(os.dup(2), "w"))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def every_function_fails(end: Callable[[Fault], int], kinds: list[Callable[[], None]], every: int = 1) -> int:
    """Lets one function after the other fail when it is first called, or each n-th; returns how many there were."""

    def fails(function: list[Any] | None, kind: Callable[[], None]) -> int:
        fault = Fault(function, kind)
        try:
            code = end(fault)
        finally:
            sys.settrace(None)
        if function is None:
            Path("called").write_text(json.dumps(fault.called))
        return code

    assert in_fork(lambda: fails(None, hang)) == CODE
    functions = json.loads(Path("called").read_text())
    for number, function in enumerate(functions[::every]):
        kind = kinds[number % len(kinds)]
        assert in_fork(partial(fails, function, kind)) == CODE, (function, kind)
    return len(functions)


NIGHTLY = [pytest.mark.slow, pytest.mark.nightly]


@pytest.fixture(
    params=[0, 5, *(pytest.param(first, marks=NIGHTLY) for first in (2, 7))], ids=lambda first: f"from-{first}"
)
def kinds(request: pytest.FixtureRequest) -> list[Callable[[], None]]:
    """All ways to fail. They take turns, beginning with another in each test."""
    return FAULTS[request.param :] + FAULTS[: request.param]


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The card is not shown, ranks whose last record was lost are not waited for, and Ctrl-C is not ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    monkeypatch.setattr(terminal.await_ranks, "__defaults__", (1, 0.01))
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0))
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    yield
    signal.signal(signal.SIGINT, before)


def leave_a_rank(directory: Path) -> None:
    header = RankHeader(0, 1, 0, 0, "here", "", os.getpid(), "cpu", "host", 0, 0)
    (directory / "attempt-0").mkdir(parents=True)
    text = codec.encode_header(header) + codec.encode(End("ok", 0, 1))
    (directory / "attempt-0" / "rank-0.jsonl").write_text(text)


class View:
    def end(self) -> None:
        pass


@pytest.mark.parametrize("trained", [True, False])
def test_a_command(trained: bool, kinds: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "start_view", lambda *_: View())

    def end(fault: Fault) -> int:
        def run_words(*_: object) -> int:
            if trained:
                leave_a_rank(Path(f"run-{os.getpid()}"))
            sys.settrace(fault)
            return CODE

        command.run_words = run_words  # type: ignore[assignment]  # in a process of its own
        return command.run_command(["torchrun", "x.py"], Options(out=f"run-{os.getpid()}", live=True))

    assert every_function_fails(end, kinds) > 2


def test_a_launcher(kinds: list[Callable[[], None]], monkeypatch: pytest.MonkeyPatch) -> None:
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")
    monkeypatch.setattr(errors, "record", lambda run: run)
    monkeypatch.setattr(terminal, "start_view", lambda *_: View())
    arguments = Namespace(
        no_python=False, run_path=False, training_script="train.py", training_script_args=[], module=False,
        nproc_per_node="2", nnodes="1",
    )  # fmt: skip

    def end(fault: Fault) -> int:
        def fail(_: Namespace) -> None:
            sys.settrace(fault)
            raise RuntimeError

        launcher: Any = SimpleNamespace(determine_local_world_size=int, parse_min_max_nnodes=lambda _: (1, 1), run=fail)
        code = torchrun._launch(launcher, arguments, Options(out=f"run-{os.getpid()}", live=True))
        return CODE if code == 1 else code

    assert every_function_fails(end, kinds) > 2


@pytest.mark.parametrize(
    ("how", "begin", "every"),
    [
        ("program", 0, 15),
        pytest.param("program", 0, 5, marks=pytest.mark.slow),
        *(
            pytest.param(how, n, 1, marks=NIGHTLY)
            for how in ("program", "child") for n in (0, 4, 8)
        ),
    ],
)  # fmt: skip
def test_the_process_that_trains(how: str, begin: int, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a session as it is made for a script, which has not imported torch."""
    from ddlprof.collect.session import start

    monkeypatch.setenv("LOCAL_WORLD_SIZE", "abc")

    def end(fault: Fault) -> int:
        options = Options(out=f"run-{os.getpid()}", calibrate=False)
        over = ending.Ending(options, start(options, "train", ["train.py"]), View())  # type: ignore[arg-type]
        finish = over.finish
        if how == "child":
            monkeypatch.setattr(atexit, "register", registered.append)
            child._finish_at_end(over)
            finish = registered[-1]
        sys.settrace(fault)
        over.note(SystemExit(CODE))
        over.prepare()
        finish()
        return over.exit_code

    registered: list[Callable[[], None]] = []
    assert every_function_fails(end, FAULTS[begin:] + FAULTS[:begin], every) > 50


def step(work: Callable[[], object], limit_s: float = HANG_S) -> EndTask:
    return EndTask("it is not done", limit_s, work, lambda: Path("-run"))


@pytest.fixture
def kept_signals() -> Any:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (failing(ValueError("two\nlines")), "ValueError: two"),
        (failing(UserError("do this")), "it is not done: do this;"),
        (hang, "not done in 1000 s"),
        (interrupt, "stopped by SIGINT"),
    ],
)
def test_what_fails_is_one_line(fault: Callable[[], None], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    done: list[int] = []
    afterwards(0, [step(fault), step(lambda: done.append(1))], quiet=False)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("ddlprof: it is not done: ")
    assert says in line
    assert line.endswith("; show it with: ddlprof report ./-run")
    assert done == ([] if fault is interrupt else [1])  # somebody wants it to end
    afterwards(0, [step(fault)], quiet=True)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("kept_signals")
def test_a_work_that_swallows_everything_cannot_swallow_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    def stubborn() -> None:
        while True:
            with suppress(Exception):
                time.sleep(HANG_S)

    afterwards(0, [step(stubborn, 0.2)], quiet=False)
    assert "not done in 0.2 s" in capsys.readouterr().err


def test_signals_are_the_scripts_again() -> None:
    def handler(*_: object) -> None:
        pass

    def work() -> int:
        signal.signal(signal.SIGTERM, handler)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        seen: list[Any] = []
        afterwards(0, [step(lambda: seen.append(signal.getsignal(signal.SIGHUP)))], quiet=True, restore=True)
        return CODE if seen == [signal.SIG_IGN] and signal.getsignal(signal.SIGTERM) is handler else 1

    assert in_fork(work) == CODE


def test_a_call_that_no_signal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a library that waits for a dead machine: the process ends with the training's exit code."""
    monkeypatch.setattr(module, "_GRACE_S", 0.2)

    def work() -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # the main thread is deaf
        afterwards(CODE, [step(hang, 0.2)], quiet=True, last_resort=LastResort())
        return 1

    assert in_fork(work) == CODE


def test_outside_of_the_main_thread(capsys: pytest.CaptureFixture[str]) -> None:
    """Where there are no signals, and no end but that of the process."""
    thread = threading.Thread(target=afterwards, args=(0, [step(failing(ValueError("x")))], False))
    thread.start()
    thread.join()
    assert "it is not done: ValueError: x" in capsys.readouterr().err
