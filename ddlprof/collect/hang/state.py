"""Puts together what this rank does: its `RankState`."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ddlprof.base.guarded import attempt
from ddlprof.base.real_time import time
from ddlprof.collect.hang import processes
from ddlprof.collect.hang.doing import Passed, doing, group_states, in_distributed
from ddlprof.collect.hang.watch import Quiet
from ddlprof.collect.process.frames import StackFrame, stack_of_thread
from ddlprof.collect.process.stacks import CodeLocator
from ddlprof.model.events import Event
from ddlprof.model.hang import TRAINS, RankState, ThreadState
from ddlprof.model.rank_ends import header_of

if TYPE_CHECKING:
    from ddlprof.collect.helper import Helper
    from ddlprof.collect.job.rank_output import RankOutput
    from ddlprof.collect.seen_groups import SeenGroups

_MOST_THREADS, _MOST_LINES = 16, 40
_MOST_READ = 64
_LONGEST_ERROR = 500


class StateMaker:
    """Makes the states of one rank. `groups` gives the groups that the hooks have seen, and their dimensions."""

    def __init__(
        self, rank_output: RankOutput, helper: Helper, groups: Callable[[], tuple[SeenGroups | None, dict[str, str]]]
    ) -> None:
        self._rank_output = rank_output
        self._helper = helper
        self._groups = groups
        self._before: tuple[float, processes.Usage] | None = None
        self._peers = Peers(rank_output)

    @property
    def folder(self) -> Path | None:
        """The folder of this rank's files; None while it is not known or does not exist."""
        directory = self._rank_output.directory
        folder = None if directory is None else directory / f"attempt-{self._rank_output.header.attempt}"
        return folder if folder is not None and folder.is_dir() else None

    def begin_look(self) -> None:
        """Notes what the rank has used so far."""
        self._before = time.perf_counter(), processes.usage()

    def state(self, quiet: Quiet) -> RankState:
        """The state of this rank now."""
        recorder, header = self._helper.recorder, self._rank_output.header
        stack = stack_of_thread(recorder.thread)
        passed = attempt(self._device_passed)
        seen, dimensions = self._groups()
        cores, io_bytes_per_s = self._used()
        now_ns = time.perf_counter_ns()
        return RankState(
            rank=header.rank,
            world_size=header.world_size,
            attempt=header.attempt,
            host=header.host,
            pid=header.pid,
            unix_ns=time.time_ns(),
            first_unix_ns=quiet.first_unix_ns,
            answers_s=quiet.answers_s,
            status=TRAINS,
            stands=quiet.stands,
            quiet_s=quiet.quiet_s,
            since_step_s=quiet.since_step_s,
            limit_s=quiet.limit_s,
            step=quiet.steps,
            doing=doing(recorder.recent(), stack),
            thread=self._thread("training", stack, recorder.thread),
            groups=group_states(seen, dimensions, now_ns, passed) if seen is not None else [],
            threads=self._others(recorder.thread),
            children=processes.child_states(),
            cores=cores,
            io_bytes_per_s=io_bytes_per_s,
            device="" if passed is None else "idle" if passed.all else "waits",
            full_disks=processes.full_disks(self._used_folders()),
            peers=attempt(lambda: self._peers.cannot_run(self.folder)) or {},
        )

    # -- threads --------------------------------------------------------------------------------------------------

    def _thread(self, name: str, stack: list[StackFrame], ident: int) -> ThreadState:
        places: CodeLocator = self._helper.stacks.places
        found, native = places.find(places.inside(stack, [])), _native_id(ident)
        state, waits_in = processes.thread_state(native)
        lines = places.lines(stack[:_MOST_LINES])
        return ThreadState(name, found.text if found else "", places.calls(stack), lines, state, waits_in)

    def _others(self, training: int) -> list[ThreadState]:
        """The other threads that are in the user's code."""
        found = []
        for thread in threading.enumerate():
            ident = thread.ident
            if ident is None or ident in (training, threading.get_ident()):
                continue
            stack = stack_of_thread(ident)
            if self._helper.stacks.places.has_users(stack):
                found.append(self._thread(thread.name, stack, ident))
        return found[:_MOST_THREADS]

    # -- resources ------------------------------------------------------------------------------------------------

    def _used(self) -> tuple[float | None, float | None]:
        """The cores and bytes a second that this process and its children used since the look before."""
        now, usage, before = time.perf_counter(), processes.usage(), self._before
        if before is None or now - before[0] < 0.2:
            return None, None
        self._before = now, usage
        seconds = now - before[0]
        cores, io_bytes = usage.cpu_s - before[1].cpu_s, usage.io_bytes - before[1].io_bytes
        return max(cores, 0.0) / seconds, max(io_bytes, 0) / seconds  # less, where a child has ended

    def _used_folders(self) -> list[str]:
        saves_to = self._helper.recorder.saves_to
        saved = os.path.dirname(os.path.abspath(saves_to)) if saves_to is not None else ""
        return [
            os.fsdecode(saved),
            str(self._rank_output.directory or ""),
            os.getcwd(),
            os.environ.get("TMPDIR", "/tmp"),
        ]

    def _device_passed(self) -> Passed | None:
        """What the device has passed of the events that wait for it; None without a device."""
        recorder = self._helper.recorder
        if recorder.device is None:
            return None
        events: list[Event] = [event for chunk in list(recorder.chunks) for event in chunk]
        return Passed([*events, *list(recorder.events)], self._helper.handover.is_passed)


class Peers:
    """The other ranks of the attempt on this machine, and what its kernel says of their processes.

    A rank's file tells its machine and process, and is read once. Where it is not known which ranks are here, the files
    of the nearest numbers are read first, 64 at a look: most launchers number the ranks of a machine in a row.
    """

    def __init__(self, rank_output: RankOutput) -> None:
        self._rank_output = rank_output
        self._pids: dict[int, int] = {}
        """The processes of the ranks on this machine."""
        self._unread: deque[int] | None = None

    def cannot_run(self, folder: Path | None) -> dict[str, str]:
        """By rank: `stopped`, `gone`, `zombie` or `disk`. `folder`: that of the attempt, if there is one."""
        if folder is None:
            return {}
        if self._unread is None:
            own, beside = self._rank_output.rank, self._rank_output.beside
            others = set(range(self._rank_output.world_size) if beside is None else beside) - {own}
            self._unread = deque(sorted(others, key=lambda rank: (abs(rank - own), rank)))
        for _ in range(min(_MOST_READ, len(self._unread))):
            rank = self._unread.popleft()
            if not self._read(folder, rank):
                self._unread.append(rank)
        states = {str(rank): processes.process_state(pid) for rank, pid in sorted(self._pids.items())}
        return {rank: state for rank, state in states.items() if state}

    def _read(self, folder: Path, rank: int) -> bool:
        """Reads where a rank runs; returns whether its file could be read."""
        try:
            header = header_of(folder / f"rank-{rank}.jsonl")
            if header.node_id == self._rank_output.header.node_id:
                self._pids[rank] = int(header.pid)
        except (OSError, ValueError, TypeError):  # it has written none yet
            return False
        return True


def _native_id(ident: int) -> int | None:
    return next((thread.native_id for thread in threading.enumerate() if thread.ident == ident), None)


def how_it_failed(error: BaseException, places: CodeLocator) -> dict[str, Any]:
    """The fields of the state of a rank that this exception ended: what it says, and the user's line it came from."""
    stack = _stack_of(error.__traceback__)
    found = places.find(places.inside(stack, []))
    thread = ThreadState(
        "training", found.text if found else "", places.calls(stack), places.lines(stack[:_MOST_LINES])
    )
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    return {"error": text[:_LONGEST_ERROR], "error_in_collective": in_distributed(stack), "thread": thread}


def _stack_of(trace: TracebackType | None) -> list[StackFrame]:
    """The stack of an exception, innermost frame first."""
    levels = []
    while trace is not None:
        frame = trace.tb_frame
        levels.append(StackFrame(frame.f_code, trace.tb_lasti, str(frame.f_globals.get("__name__", ""))))
        trace = trace.tb_next
    return levels[::-1]
