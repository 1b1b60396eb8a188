"""The one place that starts real processes for tests: as from a terminal, from warm memory where that can be, and
ended with the test, whatever becomes of it."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.integration.fork_server import can_be_forked

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PATIENCE_S = 240
"""For a process to end, which takes seconds: only against hanging."""
MARK = "STARTED_BY_THE_TEST"
"""A variable by which the processes of a test are found, whoever started them."""
_SERVE = (
    "import sys; b = frozenset(sys.modules); sys.path.insert(0, sys.argv[2]); import fork_server; fork_server.main(b)"
)


class ForkServer:
    """The process that has torch in memory (`fork_server.py`); begins when it is first needed."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None
        # No library may start threads, which a fork would lose.
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self.environment["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, files: Sequence[int], order: tuple[list[str], str, dict[str, str]]) -> None:
        """Forks a child with these descriptors: standard input, output, error, and where its end is told."""
        if self.socket is None:
            self._start()
        assert self.socket is not None
        data = pickle.dumps(order)
        socket.send_fds(self.socket, [struct.pack("I", len(data))], files)
        self.socket.sendall(data)

    def _start(self) -> None:
        self.socket, theirs = socket.socketpair()
        number = theirs.fileno()
        with theirs, interrupts():
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(number), str(HERE)],
                pass_fds=[number], env=self.environment, start_new_session=True,
            )  # fmt: skip

    def close(self) -> None:
        if self.socket is not None and self._process is not None:
            self.socket.shutdown(socket.SHUT_RDWR)  # closing it is not enough: a forked process may have it, too
            self.socket.close()
            self._process.wait()


class Forked(subprocess.Popen[Any]):
    """A child of the server, which this process can treat as its own."""

    def __init__(self, server: ForkServer, words: Sequence[str], **options: Any) -> None:
        self._server = server
        super().__init__(words, **options)

    def _execute_child(self, words: Any, *others: Any) -> None:
        _, _, _, _, directory, environment, _, _, _, *pipes = others[:15]
        stdin, to_child, from_child, stdout, from_error, stderr = pipes
        ours, theirs = os.pipe()
        try:
            files = [number if number != -1 else standard for standard, number in enumerate((stdin, stdout, stderr))]
            self._server.ask([*files, theirs], (list(words[1:]), str(directory or os.getcwd()), dict(environment)))
        finally:
            os.close(theirs)
            for number, other in ((stdin, to_child), (stdout, from_child), (stderr, from_error)):
                if -1 not in (number, other):  # a pipe of ours
                    os.close(number)
        self._told = os.fdopen(ours)
        self.pid = int(self._told.readline())
        self._child_created = True

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if flags & os.WNOHANG and not select.select([self._told], [], [], 0)[0]:
            return 0, 0
        with self._told:
            return self.pid, int(self._told.readline() or signal.SIGKILL)

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and self._child_created:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


@contextmanager
def interrupts(ignored: bool = False) -> Iterator[None]:
    """What is started inside ends by SIGINT and SIGHUP, as from a terminal, or ignores them, as with `nohup ... &`."""
    kinds = [signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = [signal.signal(each, signal.SIG_IGN if ignored else signal.SIG_DFL) for each in kinds]
    try:
        yield
    finally:
        for each, handler in zip(kinds, before, strict=True):
            signal.signal(each, handler)


def until(condition: Callable[[], object], *processes: subprocess.Popen[Any]) -> None:
    """Waits for an event. Fails where the processes have all ended without it."""
    deadline = time.monotonic() + PATIENCE_S / 2  # and then the test is cleared away
    while not condition():
        ended = bool(processes) and all(process.poll() is not None for process in processes)
        assert not ended or condition(), [process.returncode for process in processes]
        assert time.monotonic() < deadline, "hangs"
        time.sleep(0.02)


def free_port() -> int:
    """Of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Processes:
    """Starts processes in one folder, each with a session and process group of its own, and ends them all."""

    def __init__(self, folder: Path, server: ForkServer) -> None:
        self._folder, self._server = folder, server
        self._mark = uuid.uuid4().hex
        self._started: list[subprocess.Popen[Any]] = []

    def start(
        self,
        *words: str,
        cold: bool = False,
        in_background: bool = False,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """`subprocess.Popen`; `env` comes on top of ours. Python's commands come from warm memory where they can,
        `cold` where the start itself is looked at. `in_background`: as by `nohup ... &`."""
        environment = {"PYTHONPATH": str(ROOT), **os.environ, MARK: self._mark, **(env or {})}
        options = {"cwd": self._folder, "env": environment, **options}
        warm = words[0] == sys.executable and not (cold or in_background) and hasattr(os, "fork")
        if warm and sys.platform != "darwin" and can_be_forked(list(words[1:]), environment, self._server.environment):
            process: subprocess.Popen[Any] = Forked(self._server, words, **options)
        else:
            with interrupts(ignored=in_background):
                process = subprocess.Popen(words, start_new_session=True, **options)
        self._started.append(process)
        return process

    def run(self, *words: str, stdin: bytes | str | None = None, **options: Any) -> subprocess.CompletedProcess[Any]:
        """`subprocess.run` with both outputs captured."""
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        with self.start(*words, **options) as process:
            output, errors = process.communicate(stdin, timeout=PATIENCE_S)
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def end(self) -> None:
        """Kills what is left of all that was started, and of what that started."""
        for process in self._started:
            with suppress(psutil.Error, OSError):  # one that is being started has no environment yet
                for child in psutil.Process(process.pid).children(recursive=True):
                    os.kill(child.pid, signal.SIGKILL)
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        for left in psutil.pids():
            with suppress(psutil.Error, OSError):
                if psutil.Process(left).environ().get(MARK) == self._mark:
                    os.kill(left, signal.SIGKILL)
        for process in self._started:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            process.wait(PATIENCE_S)
