"""Groups of worker processes on this machine that are started, watched and ended together."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

_POLL_S = 0.05


class WorkerFailed(Exception):
    """A worker ended too early or with an error. The text is the last line of its log, maybe empty."""


class WorkerProcesses:
    """One process for each list of arguments; each runs the same module. All have ended after the `with` block."""

    def __init__(
        self,
        module: str,
        arguments: Iterable[Sequence[str]],
        environment: Mapping[str, str],
        log: Path | None = None,
    ) -> None:
        """`environment`: variables added to those of this process.

        `log`: the file for all output. None: the caller exchanges lines with the workers, and their standard error is
        discarded.
        """
        self._commands = [[sys.executable, "-m", module, *each] for each in arguments]
        # Unbuffered, so that lines of the log are in the order of printing, with an error at the end.
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        self._log = log
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> WorkerProcesses:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _start(self) -> None:
        with ExitStack() as stack:
            log = None if self._log is None else stack.enter_context(self._log.open("wb"))
            for command in self._commands:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE if log is None else None,
                    stdout=subprocess.PIPE if log is None else log,
                    stderr=subprocess.DEVNULL if log is None else log,
                    env=self._environment,
                )
                self.processes.append(process)

    def _end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def wait(self, timeout_s: float) -> None:
        """Waits until all have ended.

        Raises `WorkerFailed` as soon as one fails, and `TimeoutError` after `timeout_s`.
        """
        until = time.monotonic() + timeout_s
        while any(process.poll() is None for process in self.processes):
            if any(process.poll() for process in self.processes):
                break
            if time.monotonic() > until:
                raise TimeoutError(f"the worker processes did not end within {timeout_s:.0f} s")
            time.sleep(_POLL_S)
        if any(process.returncode for process in self.processes):
            raise WorkerFailed(self.last_line())

    def last_line(self) -> str:
        """The last line of the log; empty if there is none."""
        text = "" if self._log is None else self._log.read_text(encoding="utf-8", errors="replace")
        return (text.strip().splitlines() or [""])[-1]

    def write_line(self, line: bytes) -> None:
        """Writes a line to the standard input of each worker."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(line + b"\n")
            process.stdin.flush()

    def read_lines(self) -> list[bytes]:
        """Waits for a line from the standard output of each worker. Raises `WorkerFailed` if one ends without it."""
        return [self._read_line(process) for process in self.processes]

    def _read_line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise WorkerFailed(self.last_line())
        return line
