"""The helper thread turns the recorder's events into rows, writes them, and samples stacks and counters.

It only reads the training thread's objects, and it alone takes events and writes, up to the end. If it fails, the
training goes on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ddlprof.base.real_time import time
from ddlprof.collect import core
from ddlprof.collect.drops import DURATION, STACK, STEP
from ddlprof.collect.facts.counters import ContextSampler, PeakMemory
from ddlprof.collect.facts.graph_breaks import GraphBreaks
from ddlprof.collect.facts.recompilations import Recompilations
from ddlprof.collect.facts.switches import Switches
from ddlprof.collect.handover import Handover
from ddlprof.collect.process.frames import stack_of_thread
from ddlprof.collect.process.issuers import issuers_of
from ddlprof.collect.process.moments import Where, where
from ddlprof.collect.process.stack_schedule import StackSchedule
from ddlprof.collect.process.stacks import StackSampler
from ddlprof.collect.progress import WARMUP_STEPS
from ddlprof.collect.recorder import MOST_WAITING_BYTES, Recorder
from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.collect.steps.phases import LEFT_OUT as TOO_MANY_PHASES
from ddlprof.collect.steps.phases import MOST_PHASES
from ddlprof.collect.steps.spans import LEFT_OUT, MOST_SPANS
from ddlprof.collect.steps.sums import UNAWAITED, UNOBSERVED, place_collectives
from ddlprof.model.records import ComputeSamples, Flag, Overhead
from ddlprof.model.stack_samples import START_LOOK_S
from ddlprof.writing.writer import FinishedStep, RankWriter

if TYPE_CHECKING:
    from ddlprof.collect.accelerator.flight_recorder import FlightRecorder
    from ddlprof.collect.accelerator.windows import ProfilerWindows

_FIRST_WAKE_S = 0.05
"""Until the facts about the model have been evaluated, as a short training may drop it soon."""
_DRAIN_S = _CONTEXT_S = _POLL_S = 0.9
"""Drains, samples of counters and polls happen at the first wake-up after this time, so about once a second. Draining
many steps at once takes less time than draining a few steps many times."""
_SOON_UPDATES = 64
"""During the first 64 updates, and whenever somebody waits for the steps, the thread drains at every wake-up."""
_MOST_CHUNKS = 64
"""With more chunks than this, the thread drains at its next wake-up, so that short steps do not use up memory."""
_BURST_S, _DEVICE_BURST_S = 0.002, 0.0002
_GIVE_WAY_S = 0.001
"""After a burst of `_BURST_S`, the helper thread sleeps for `_GIVE_WAY_S`, so that the training thread gets the
interpreter. Long bursts cost less, but a device that waits for its next kernel launch waits until the burst ends."""
_MOST_CHUNKS_BEHIND = 4096
"""With more chunks than this, the helper thread no longer sleeps between bursts, because it would never catch up."""
_FIRST_UPDATES = 3
FIRST_UPDATE_STACKS = 4
"""The stack of every update is taken for the first 4 updates, then only at each power of two: another phase of the
training has another loop."""
_COLLECTIVES_WAIT_S = 2.0
_DEVICE_WAIT_S = 5.0
_STUCK_S, _END_S = 15.0, 25.0
"""At the end, a thread that takes no event in the first of these times is stuck. It never gets more than the second."""
LOST = "the helper thread was more than {mb} MB of events behind"
_CONTEXT_ROWS = 3600
"""After each 3600 context rows the time between two of them doubles, so that the disk usage stays bounded."""


class Helper:
    """Makes records of the recorder's events and writes them. `on_step` is called for each finished step."""

    def __init__(
        self,
        recorder: Recorder,
        assembler: StepAssembler,
        writer: RankWriter,
        context: ContextSampler | None,
        on_step: Callable[[FinishedStep], None],
    ) -> None:
        self.recorder = recorder
        self.assembler = assembler
        self.writer = writer
        self.context = context
        if context is not None:
            context.drops = recorder.drops
        self.on_step = on_step
        self.device_free = threading.Lock()
        """Held while a graph is captured: a query of an event in any thread would break the capture."""
        self.handover = Handover(recorder, assembler.lags, self.device_free)
        self.windows: ProfilerWindows | None = None
        self.flight_recorder: FlightRecorder | None = None
        self.poll: Callable[[], None] = lambda: None
        """Called about once a second."""
        self.is_awaited: Callable[[], bool] = lambda: False
        """Whether somebody waits for each step."""
        self.memory = PeakMemory()
        self.stacks = StackSampler()
        self.switches = Switches()
        self._recompilations = Recompilations()
        self._graph_breaks = GraphBreaks(self.stacks.places)
        self.steps_ns = self.other_ns = 0
        """The time of the latest steps, and that of it in which lines are looked for: `other` and `data`."""
        self._last_step: int | None = None
        self._pending: deque[tuple[float, FinishedStep]] = deque()
        self._cpu_ns = 0
        self.after_first_updates: Callable[[], None] = lambda: None
        """Called once, soon after the first 3 updates, to evaluate the facts about the model while it exists."""
        self._first_updates = True
        self.failed = False
        """Whether an error has ended the recording."""
        self.end_recording: Callable[[], None] = partial(setattr, recorder, "active", False)
        """Called after an error, so that nothing is collected any more."""
        self._schedule = StackSchedule()
        self._noted_unobserved = self._noted_unawaited = False
        self._context_rows = 0
        self._context_every = _CONTEXT_S
        self._stop = threading.Event()
        self._begin = time.perf_counter_ns()
        self._burst_ends = 0.0
        self._thread = threading.Thread(target=self._run, name="ddlprof", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """Ends the thread, once it has processed the remaining events. Returns whether it has ended.

        A thread that is stuck in a write or a call of the device may go on at any time: what it holds is still its own.
        """
        self._stop.set()
        if core.C is not None:
            core.C.wake()
        if self._thread.ident is None:
            self._end()
            return True
        deadline, taken = time.perf_counter() + _END_S, -1
        while self._thread.is_alive() and taken != self.recorder.taken and (left := deadline - time.perf_counter()) > 0:
            taken = self.recorder.taken
            self._thread.join(timeout=min(_STUCK_S, left))
        return not self._thread.is_alive()

    def where(self) -> str:
        """The line of Python in which the thread is."""
        stack = stack_of_thread(self._thread.ident or 0)
        return f"{os.path.basename(stack[0].code.co_filename)}:{stack[0].line()}" if stack else "unknown"

    def at_update(self, updates: int) -> None:
        """Runs in the training thread, between two steps."""
        if updates < FIRST_UPDATE_STACKS or updates & (updates - 1) == 0:
            self.stacks.at_update()
        if self.windows is not None:
            self.windows.at_update(updates)

    def next_update(self, updates: int) -> int:
        """The number of the next update for which `at_update` has to be called."""
        if self.windows is not None:
            return 0
        return updates + 1 if updates + 1 < FIRST_UPDATE_STACKS else 1 << updates.bit_length()

    def _run(self) -> None:
        sys.settrace(None)  # the script may have called threading.settrace: its tracers are not for our thread
        sys.setprofile(None)
        try:
            self._loop()
        except Exception as error:
            self._fail(error)
        self._end()

    def _loop(self) -> None:
        next_drain = next_poll = next_context = time.perf_counter()
        while not self._nap():
            now = time.perf_counter()
            self._begin_burst()
            if not self.recorder.boundaries:
                self._sample_start()
            elif self._schedule.is_due(now, self.other_ns, self.steps_ns):
                self._sample_stack()
            if self.recorder.workers_started:
                self._see_workers()
            drains, polls = now >= next_drain or self._drains_soon(), now >= next_poll
            if drains:
                next_drain = now + _DRAIN_S
                self._drain()
                self._give_way()
            if polls:
                next_poll = now + _POLL_S
                self.poll()
            if now >= next_context:
                next_context = now + self._context_every
                self._slow_records()
                self._give_way()
            if drains:
                self.writer.flush()

    def _end(self) -> None:
        """Processes the events that remain."""
        try:
            if not self.failed:
                self.recorder.hand_over_rest()  # with optimizer-in-backward, the end of a step
                self._await_device()
                self._drain(last=True)
                self._slow_records(last=True)
            self._write_drops()
            self.writer.flush()
            if self.context is not None:
                self.context.close()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Stops recording, and frees what is held for it; the training goes on."""
        self.failed = True
        self.recorder.close_queue()
        with suppress(Exception):  # writing may be what failed; if not, the steps before the error are kept
            while self._pending:
                self.writer.step(self._pending.popleft()[1])
        self._pending.clear()
        self.writer.note("helper", f"stopped recording: {type(error).__name__}: {error}")
        with suppress(Exception):
            self.writer.flush()  # now: nobody knows how the process will end
        self.assembler.boundaries.settle()  # holds events no more
        self.assembler.forget()
        self.end_recording()

    def _sample_stack(self) -> None:
        try:
            recent = self.recorder.recent()
            self.stacks.sample(self.recorder.thread, recent, self.recorder.marks)
            if where(recent) is not Where.OTHER:  # many switches are on around a forward and its backward only
                self.switches.look()
        except Exception as error:
            self.recorder.drops.add(STACK, error)

    def _sample_start(self) -> None:
        try:
            main = threading.main_thread().ident
            self.stacks.sample_start(self.recorder.thread or main, self.recorder.recent(), self.recorder.marks)
        except Exception as error:
            self.recorder.drops.add(STACK, error)

    def _see_workers(self) -> None:
        self.recorder.workers_started = False
        if self.context is not None:
            self.context.workers_started()

    def _pause(self) -> float:
        if not self.recorder.boundaries:
            return START_LOOK_S
        pause_s = self._schedule.pause_s(self.other_ns, self.steps_ns)
        return min(pause_s, _FIRST_WAKE_S) if self._first_updates else pause_s

    def _nap(self) -> bool:
        """Waits until it is time to wake up; returns whether the thread has to end."""
        if core.C is None:
            return time.wait(self._stop, self._pause())
        if not self._stop.is_set():
            core.C.nap(int(self._pause() * 1e6), self.recorder.thread == threading.main_thread().ident)
        return self._stop.is_set()

    def _drains_soon(self) -> bool:
        recorder = self.recorder
        return recorder.boundaries < _SOON_UPDATES or len(recorder.chunks) > _MOST_CHUNKS or self.is_awaited()

    # -- events ---------------------------------------------------------------------------------------------------

    def _drain(self, last: bool = False) -> None:
        if self.recorder.chunks or last:
            self._read_peak_memory()
        self._give_way()
        feed = self.assembler.feed
        for events in self.handover.take():
            for event in events:
                for step in feed(event):
                    self._add(step)
            self.recorder.rounds = self.assembler.boundaries.rounds
            if not last and time.perf_counter() > self._burst_ends:
                self._write_pending(last=False)
                self._give_way()
        if self._first_updates and self.recorder.boundaries >= _FIRST_UPDATES:
            self._first_updates = False
            self.after_first_updates()
        if last:
            for step in self.assembler.finish():
                self._add(step)
        self._write_spans()
        self._write_pending(last)

    def _give_way(self) -> None:
        """Sleeps after a long burst, because the training thread may be waiting for the interpreter's lock."""
        if time.perf_counter() <= self._burst_ends or threading.current_thread() is not self._thread:
            return
        if len(self.recorder.chunks) < _MOST_CHUNKS_BEHIND:
            time.wait(self._stop, _GIVE_WAY_S)
        self._begin_burst()

    def _begin_burst(self) -> None:
        burst_s = _BURST_S if self.recorder.device is None else _DEVICE_BURST_S
        self._burst_ends = time.perf_counter() + burst_s

    def _write_spans(self) -> None:
        spans, others = self.assembler.spans, self.recorder.spans
        while others:
            spans.add(*others.popleft())
        for span in spans.take():
            self.writer.context(span)
        for file in spans.take_files():
            self.writer.context(file)
        for phase in self.assembler.phases.take():
            self.writer.context(phase)
        if self.assembler.phases.number > MOST_PHASES:
            self.writer.note("phases", TOO_MANY_PHASES)  # written once
        for what in spans.left_out:
            self.writer.note("job", LEFT_OUT.format(what=what, most=MOST_SPANS))  # written once

    def _read_peak_memory(self) -> None:
        device = self.recorder.device
        if device is None:
            self.assembler.peak_memory_bytes = self.memory.read()
            return
        with self.handover.device_asked() as free:
            if free:
                self.assembler.peak_memory_bytes = self.memory.read(device)

    def _await_device(self) -> None:
        """Waits until the device has passed all events, at most `_DEVICE_WAIT_S`: it may hang."""
        deadline = time.perf_counter() + _DEVICE_WAIT_S
        chunks = self.recorder.chunks
        while not all(map(self.handover.is_passed, chunks)):  # the last one may be empty
            if time.perf_counter() > deadline:
                return
            time.sleep(0.01)

    def _add(self, step: FinishedStep) -> None:
        # Halving both sums gives recent steps more weight.
        if self.steps_ns > 4_000_000_000:
            self.steps_ns, self.other_ns = self.steps_ns // 2, self.other_ns // 2
        self.steps_ns += step.row.step_ns
        if step.collectives:
            step.issuers = issuers_of(step.collectives, self.stacks.places, self.stacks.update)
        self.other_ns += step.row.other_ns + (step.row.data_ns or 0)
        self._last_step = step.row.step
        self._pending.append((time.perf_counter(), step))
        samples = self.stacks.of_step(step.marks, step.row.flags, self.recorder.thread)
        if self.assembler.lost_steps:
            self._count_lost()  # the samples are of the lost steps, too
        else:
            self.writer.samples(step.row.step, samples.other)
            self.writer.samples(step.row.step, samples.compute, ComputeSamples)
        if self.windows is not None:
            self.windows.step_ended(step)
        if step.unobserved and not self._noted_unobserved:
            self._noted_unobserved = True
            self.writer.note("comm", UNOBSERVED.format(count=step.unobserved, step=step.row.step))
        if step.unawaited and not self._noted_unawaited:
            self._noted_unawaited = True
            self.writer.note("comm", UNAWAITED.format(count=step.unawaited, step=step.row.step))
        if step.row.step < WARMUP_STEPS:
            self._write_loader_cost()
        self.on_step(step)

    def _write_pending(self, last: bool) -> None:
        """Writes steps in order, each once its collectives have ended or `_COLLECTIVES_WAIT_S` have passed."""
        self._learn_durations(last)
        while self._pending:
            since, step = self._pending[0]
            open_ends = bool(step.collectives) and any(c.end is None for c in step.collectives)
            if open_ends and (self.windows is not None or self.flight_recorder is not None):
                open_ends = not place_collectives(step.collectives, step.start + step.row.step_ns)
            if not last and self.windows is not None and step.row.flags & Flag.TRACED and self.windows.busy():
                return
            if open_ends and not last and time.perf_counter() - since < _COLLECTIVES_WAIT_S:
                return
            self._pending.popleft()
            self._count_untimed(step)
            self.writer.step(step)

    def _count_lost(self) -> None:
        lost, self.assembler.lost_steps = self.assembler.lost_steps, 0
        if lost:
            self.recorder.drops.add(STEP, LOST.format(mb=MOST_WAITING_BYTES >> 20), lost)

    def _count_untimed(self, step: FinishedStep) -> None:
        if self.flight_recorder is not None:
            untimed = sum(each.duration is None and each.end is None for each in step.collectives)
            if untimed:
                self.recorder.drops.add(DURATION, "torch's Flight Recorder has no record of its own for it", untimed)

    def _learn_durations(self, last: bool) -> None:
        """Reads the durations of collectives from profiler windows and torch's Flight Recorder, if the user asked."""
        if self.windows is not None:
            for window in self.windows.take(last):
                self.writer.context(window)
        recorder, steps = self.flight_recorder, [step for _, step in self._pending]
        if recorder is None:
            return
        try:
            if recorder.due(steps, last):
                with self.handover.device_asked() as free:
                    if free:
                        recorder.fill(steps)
            if last and recorder.in_vain:
                self.writer.note("collectives", "not timed: torch's Flight Recorder told no duration")
        except Exception as error:  # fail open: no more durations
            self.flight_recorder = None
            self.writer.note("collectives", f"no more durations: {type(error).__name__}: {error}")

    # -- about once a second --------------------------------------------------------------------------------------

    def _slow_records(self, last: bool = False) -> None:
        row = self.context.sample() if self.context is not None else None
        if row is not None:
            self.writer.context(replace(row, **self.memory.last._asdict()))
            self._context_rows += 1
            owner = self.context.whose if self.context is not None else None
            if owner is not None and self.recorder.boundaries:
                self.writer.note("context", owner)  # written once
            if self._context_rows % _CONTEXT_ROWS == 0:
                self._context_every *= 2
        for reading in self.context.health(last) if self.context is not None else ():
            self.writer.context(reading)
        pauses = self.recorder.collector.news(time.perf_counter_ns() - self.writer.header.origin_ns)
        compiled = (*self._recompilations.news(), *self._graph_breaks.news())
        for record in (*((pauses,) if pauses is not None else ()), *compiled):
            self.writer.context(record)
        self.writer.context(self.cost())
        self._write_loader_cost()
        self._write_worker_lines()
        self._write_drops()

    def _write_drops(self) -> None:
        for value in self.recorder.training_loss.take():
            self.writer.context(value)
        self._count_lost()
        for drop in self.recorder.drops.take():
            self.writer.context(drop)

    def _write_worker_lines(self) -> None:
        samples = self.recorder.worker_lines.take()
        if samples and self._last_step is not None:
            self.writer.samples(self._last_step, samples)

    def _write_loader_cost(self) -> None:
        cost = self.assembler.loader_cost()
        if cost is not None:
            self.writer.context(cost)

    def cost(self) -> Overhead:
        """What ddlprof has cost the training so far."""
        if threading.current_thread() is self._thread:
            self._cpu_ns = time.thread_time_ns()
        recorder = self.recorder
        return Overhead(recorder.hook_ns, recorder.hook_steps, self._cpu_ns, time.perf_counter_ns() - self._begin)
