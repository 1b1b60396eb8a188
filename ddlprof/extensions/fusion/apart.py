"""Objects that live in a process of their own, so that what they call of the user's code leaves nothing here.

A counter of epochs, random numbers that were drawn or a loss with a warm-up are then as they were when the user's
modules had been imported, for each training anew.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import pickle
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from typing import Any

import torch

from ddlprof.base.errors import UserError
from ddlprof.extensions.fusion.random_state import Draws, present_draws, set_draws

FORK, SPAWN, HERE = "fork", "spawn", "here"
"""How an object gets its process: a copy of this one, a new one, or none, where neither can be had."""
_LONGEST_FOLDER = 70
"""Characters of the temporary folder with which the path of a socket in it is short enough."""
_TOLD_S = 0.1
"""Seconds between two reports of progress of a process."""
_END_S = 5.0
"""Seconds that a process has to end by itself."""
_CPU = torch.device("cpu")
Told = Callable[[int], None]


def way_of_processes(can_spawn: bool) -> str:
    """How objects get a process of their own here.

    A copy of a process that has used a GPU can use none, and copies are not safe on a Mac. `can_spawn`: whether all
    functions of the user can be imported by name.
    """
    if sys.platform == "linux" and not torch.cuda.is_available():
        return FORK
    return SPAWN if can_spawn else HERE


def apart(way: str, device: torch.device, make: Callable[..., Any], *given: Any) -> Remote:
    """The object that `make(*given)` returns, elsewhere. Random numbers begin there as they would go on here."""
    if way == HERE:
        return _Here(device, make, given)
    return _Process(way, device, make, given)


class _Here:
    """An object in this process. Only random numbers are its own."""

    def __init__(self, device: torch.device, make: Callable[..., Any], given: tuple[Any, ...]) -> None:
        self._device, self._draws, self._make, self._given = device, present_draws(device), make, given
        self._object: Any = None

    def call(self, name: str, *given: Any, told: Told | None = None) -> Any:
        before = present_draws(self._device)
        set_draws(self._draws, self._device)
        try:
            if self._object is None:
                self._object = self._make(*self._given)
            return getattr(self._object, name)(*given, *([] if told is None else [told]))
        finally:
            self._draws = present_draws(self._device)
            set_draws(before, self._device)

    def close(self) -> None:
        self._object = None


class _Process:
    """An object in a process of its own."""

    def __init__(self, way: str, device: torch.device, make: Callable[..., Any], given: tuple[Any, ...]) -> None:
        context = _context(way)
        self._pipe, other = context.Pipe()
        draws = present_draws(_CPU)
        if way == FORK:
            _end_threads_of_openmp()
        # No daemon: it may start workers of a DataLoader.
        self._process = context.Process(target=_serve, args=(other, self._pipe, draws, make, given))
        with warnings.catch_warnings():  # about other threads, of which torch's have ended
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        other.close()

    def call(self, name: str, *given: Any, told: Told | None = None) -> Any:
        """The result of a method; its last argument is `told`, if that is given. Raises what the method raises."""
        try:
            _send(self._pipe, (name, given, told is not None))
            while True:
                kind, found = pickle.loads(self._pipe.recv_bytes())
                if kind != "told":
                    break
                if told is not None:
                    told(found)
        except (EOFError, ConnectionError):
            self._process.join(_END_S)
            raise UserError(
                f"a process that trained ended early (exit status {self._process.exitcode}); if memory was short,"
                " give fewer --max-models"
            ) from None
        if kind == "raised":
            raise found
        return found

    def close(self) -> None:
        """Forgets the object, and ends its process."""
        with suppress(OSError):
            self._pipe.close()
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


Remote = _Here | _Process
"""An object elsewhere, whose methods are called by name."""


def _context(way: str) -> Any:
    """A new process is the copy of one that has imported torch and nothing of the user's, where there are copies."""
    if way != SPAWN or sys.platform != "linux" or len(tempfile.gettempdir()) > _LONGEST_FOLDER:
        return multiprocessing.get_context(way)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "ddlprof.extensions.fusion.planner"])
    return context


def _end_threads_of_openmp() -> None:
    """Ends the threads that compute, which begin again when needed; a copy would wait for them for ever.

    This is a function of OpenMP 5. Other libraries than GNU's do the same by themselves.
    """
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None)
    if pause is not None:
        pause(2)  # omp_pause_hard


def _send(pipe: Connection, what: Any) -> None:
    pipe.send_bytes(pickle.dumps(what))  # not pipe.send, which would put tensors into shared memory


def _serve(pipe: Connection, other: Connection, draws: Draws, make: Any, given: tuple[Any, ...]) -> None:
    """Answers calls until the other side ends. What the user's code prints is printed."""
    other.close()
    made: Any = None
    last = 0.0

    def told(done: int) -> None:
        nonlocal last
        if time.monotonic() - last > _TOLD_S:
            last = time.monotonic()
            _send(pipe, ("told", done))

    with suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            name, arguments, is_told = pickle.loads(pipe.recv_bytes())
            try:
                if made is None:
                    set_draws(draws, _CPU)  # Python draws others in a process that is a copy
                    made = make(*given)
                answer = "found", getattr(made, name)(*arguments, *([told] if is_told else []))
            except ConnectionError:
                raise
            except UserError as error:
                answer = "raised", error
            except Exception as error:
                answer = "raised", ExceptionWithTraceback(error, error.__traceback__)
            _send(pipe, answer)
