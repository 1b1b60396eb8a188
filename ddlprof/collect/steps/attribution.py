"""Turns events into step rows: a pure state machine without torch and files, which gets the events in order.

The time between two events is a slice, and each slice goes to exactly one class, so the classes add up to
the step by construction. On the CPU the events carry the training thread's clock; on an accelerator they carry
the device's, and the same rules hold: a wait for data during which the device stays busy is a slice of length 0.

Whether a batch feeds training or evaluation is known only when its forward comes, so slices since the last
batch request are kept in a `Segment` until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ddlprof.collect.steps import states
from ddlprof.collect.steps.boundaries import StepBoundaries
from ddlprof.collect.steps.gaps import Gaps
from ddlprof.collect.steps.loop import BEFORE_A_STEP
from ddlprof.collect.steps.no_grad import NoGradCalls, NoGradTimes
from ddlprof.collect.steps.open_step import OpenStep
from ddlprof.collect.steps.phases import Phases
from ddlprof.collect.steps.row import BACKWARD, FORWARD, OPTIMIZER, StepSpan, make_row
from ddlprof.collect.steps.spans import JobSpans
from ddlprof.collect.steps.sums import LoaderTotals, Passes, Roles, Segment, Sums, share_wait, wait_end
from ddlprof.model.events import Event, Kind
from ddlprof.model.records import CHECKPOINT, Flag, LoaderCost
from ddlprof.writing.writer import FinishedStep

_GAP, _ROUND, _OPTIMIZER_END, _COMM_END = (
    int(Kind.GAP),
    int(Kind.ITERATION),
    int(Kind.OPTIMIZER_END),
    int(Kind.COMM_END),
)
_MARKS = (_OPTIMIZER_END, _ROUND)
_BEGIN_STEPS = frozenset(
    map(int, (Kind.DATA_BEGIN, Kind.FORWARD_BEGIN, Kind.OPTIMIZER_BEGIN, Kind.BACKWARD_BEGIN, Kind.LOST))
)
_SEEN_NOTHING = NoGradTimes()

Handler = Callable[[int, Any, Any, Any], FinishedStep | None]
"""Takes the time and the payload of an event, and returns the step that it ends. Named after the kind of event."""


class StepAssembler(OpenStep):
    """Takes events by `feed`, which returns the steps that have ended; `finish` returns those still held back."""

    def __init__(self, origin: int, step_optimizer: str | None = None) -> None:
        super().__init__()
        self.origin = origin
        self.unmeasured: set[str] = set()
        """The classes whose hooks are not installed, such as `data`, `h2d` or `comm`."""
        self.peak_memory_bytes: int | None = None
        """The peak memory that is written into the steps that end from now on."""
        self.lost_steps = 0
        """The number of steps that could not be told, as some of their events were lost."""
        self.teaches = False
        """Whether a forward without gradients was for training."""
        self.evaluates_with_gradients: bool | None = None
        """Whether the trained model was evaluated with gradients; None: no forward with gradients was in training mode,
        so that those in eval mode may be the training."""
        self.evaluated_samples: int | None = 0
        """The most samples of a forward without gradients that evaluated; None: not known."""
        self.boundaries = StepBoundaries(step_optimizer)
        self.phases = Phases(self.boundaries)
        self.spans = JobSpans(origin)
        self._gaps = Gaps()
        self._roles = Roles()
        self._data_seen = False
        self._index = self._marks = 0
        self._start: int | None = None
        self._last = origin
        self._passes = Passes()
        self._loader_totals = LoaderTotals()
        self._comm_since = origin
        self._reached: set[Any] = set()  # streams whose collectives the clock's stream was ever seen to wait for
        self._trained_on: int | None = None  # the samples of the last training forward
        self._in_update: int | None = None  # the backward passes since an update began
        self.passes_in_update = 0
        """The most backward passes inside of an update."""
        self._maybe_evaluated: tuple[int, Any] | None = None  # when a batch for eval mode began, and its loader
        self._handlers: list[Handler] = [getattr(self, f"_{kind.name.lower()}") for kind in Kind]

    def feed(self, event: Event) -> Iterable[FinishedStep]:
        """Takes the next event, and returns the steps that are now known to have ended."""
        if event[0] == _GAP:
            self._gaps.look(event[2])  # now: what is learnt of one gap serves those before it that are held back
        if event[0] == _OPTIMIZER_END and self.boundaries.settled and not self._in_backward:
            self.boundaries.doubt(event)
        if self.boundaries.settled:
            step = self._take(event)
            return () if step is None else (step,)
        return self._all(self.boundaries.admit(event))

    def lags(self, ns: int) -> None:
        """Notes that the device was so many nanoseconds behind the host at some event of the step under way."""
        self._sums.device_lag_ns = max(ns, self._sums.device_lag_ns or 0)

    def finish(self) -> Iterator[FinishedStep]:
        """Called after the last event: releases held events, and ends the last round if rounds are steps."""
        yield from self._all(self.boundaries.settle())
        if self.boundaries.rounds is not None and self._passes.count:
            last = self._finish(self._last)
            if last is not None:
                yield last
        if self._maybe_evaluated is not None:
            self._evaluated(self._last)
        self._settle(None)  # what came after the last step
        self.spans.trained()

    def _all(self, events: Iterable[Event]) -> Iterator[FinishedStep]:
        return (step for event in events if (step := self._take(event)) is not None)

    def _take(self, event: Event) -> FinishedStep | None:
        kind, time, a, b, c = event
        if kind in _MARKS:
            self._marks += 1
        if self._start is None:
            self.spans.checkpoint(kind, time, 0, a)
            if kind not in _BEGIN_STEPS:
                return None
            self._start = self._last = time
        last = self._last
        time = max(time, last)
        if kind != _COMM_END or not self._state & states.COMM:
            self.bookings[self._state](time - last)
        step, self._last = self._handlers[kind](time, a, b, c), time
        return step

    def loader_cost(self) -> LoaderCost | None:
        """The cost so far of the batches that fed training; None if it is not known of any."""
        return self._loader_totals.cost(self._index)

    # -- slices ---------------------------------------------------------------------------------------------------

    def _settle(self, training: bool | None) -> None:
        """Books the segment, which fed training (True) or evaluation (False); None: its forwards and loader tell."""
        sums, segment = self._sums, self._segment
        if segment.no_grad:
            self._segment = Segment()
            no_grad = segment.no_grad.times(bool(training), segment.loader is None, self._index, self._trained_on)
            if no_grad.evaluates and (training is None or (not no_grad.teaching_ns and self._passes.unused > 1)):
                training = False  # the batch of the training forward came before this one
        else:
            self._segment, no_grad = Segment(no_grad=segment.no_grad), _SEEN_NOTHING
        if segment.loader is not None:
            if training is None:
                training = self._roles.get(segment.loader, True)
            else:
                self._roles[segment.loader] = training
        if training is False:
            sums.add_evaluated(segment)
            self._passes.unused = 0
        else:
            sums.add_trained(segment)
            self._loader_totals.add(segment.costs)
        if no_grad is not _SEEN_NOTHING:
            sums.add_no_grad(no_grad)
            self.parts.book_as(FORWARD, no_grad.teaching_ns)
            self.teaches |= no_grad.teaching_ns > 0
            if no_grad.evaluates:
                samples, most = segment.no_grad.evaluated(), self.evaluated_samples
                self.evaluated_samples = None if samples is None or most is None else max(samples, most)
        if segment.begin is not None and (training is False or no_grad.evaluates):
            self.spans.evaluation(segment.begin, segment.end)
        if training and self._maybe_evaluated is None:
            self.spans.trained()

    def _evaluated(self, time: int) -> None:
        """Called where no backward has followed a forward with gradients in eval mode: it was an evaluation."""
        assert self._maybe_evaluated is not None
        begin, loader = self._maybe_evaluated
        self._maybe_evaluated, self.evaluates_with_gradients = None, True
        if loader is not None:
            self._roles[loader] = False
        self.spans.evaluation(begin, time)
        self._sums.flags |= Flag.EVALUATION
        self._state &= ~states.TRAINING
        self._forwards_since_backward = self._passes.unused = 0

    # -- input ----------------------------------------------------------------------------------------------------

    def _data_begin(self, time: int, loader: Any, b: Any, c: Any) -> None:
        if self._maybe_evaluated is not None:
            self._evaluated(time)
        segment = self._segment
        if segment.loader != loader or segment.no_grad or segment.loader is None:
            self._settle(None)
            self._segment.loader, self._segment.begin = loader, time
        else:
            self._sums.other += segment.gap_ns
            segment.gap_ns = 0
        self._segment.delivered = False
        self._state |= states.DATA
        self._data_seen = True
        self._data_slice = 0
        self.spans.trained(CHECKPOINT)

    def _data_end(self, time: int, loader: Any, delivery: Any, samples: Any) -> None:
        segment = self._segment
        self._state &= ~states.DATA
        segment.end = time
        segment.delivered = samples != 0
        segment.samples += samples or 0
        if samples:
            self._passes.unused += 1
            self._passes.batch_samples = samples
        self._unclaimed_ns = 0
        if callable(delivery):
            delivery = delivery()
        if delivery is not None:
            segment.add_delivery(delivery, self._data_slice, samples)

    def _epoch(self, time: int, loader: Any, b: Any, c: Any) -> None:
        self._segment.epoch = True

    # -- model ----------------------------------------------------------------------------------------------------

    def _forward_begin(self, time: int, grad: Any, training_mode: Any, samples: Any) -> None:
        if self._state & states.DATA:
            return  # the data set calls a module of its own
        samples = samples() if callable(samples) else samples
        if not grad:
            trains = self._state & states.TRAINING
            if training_mode is None and (trains or not self._segment.delivered):
                return  # a compiled function without a batch: an update, a metric, an average of weights
            if trains and self._forwards_since_backward and self._segment.loader is None:
                return  # a teacher that follows the student
            self._state |= states.NO_GRAD_FORWARD
            if self._segment.begin is None:
                self._segment.begin = time
            self._segment.no_grad.begin(samples if isinstance(samples, NoGradCalls) else None, training_mode is False)
            return
        self._trained_on = samples or self._trained_on
        self._maybe_closure = False
        if training_mode:
            self._maybe_evaluated = None  # it was a teacher's
            self.evaluates_with_gradients = self.evaluates_with_gradients or False
        elif training_mode is False and self.evaluates_with_gradients is not None and self._segment.delivered:
            self._maybe_evaluated = self._segment.begin or time, self._segment.loader
        self._settle(True)
        self._count_early()
        self.parts.begin(FORWARD)
        self._state |= states.TRAINING
        self._saw_forward = True
        self._forwards_since_backward += 1
        first = self._forwards_since_backward == 1
        self._passes.forward(samples or 0, first)
        if first:
            self._sums.forward_samples += samples or 0

    def _forward_end(self, time: int, grad: Any, b: Any, c: Any) -> None:
        self._state &= ~states.NO_GRAD_FORWARD
        self._segment.end = time
        self._unclaimed_ns = 0

    def _backward_begin(self, time: int, unseen: Any, b: Any, c: Any) -> None:
        if self._maybe_closure:
            self._closure_begun()
        self._begin_training()
        self.parts.begin(BACKWARD)
        if self._maybe_evaluated is not None:
            self._maybe_evaluated = None
            self.spans.trained()
        if unseen:
            self.parts.cannot_tell()
        self._in_backward = True
        self._stepped_in_backward = False
        self._passes.backward(later=not self._forwards_since_backward)
        if self._in_update is not None:
            self._in_update += 1

    def _begin_training(self) -> None:
        """Begins computing if no forward was observed (a compiled function); it counts from the batch's delivery, or
        from where gaps show that the loss began."""
        if not self._state & states.TRAINING:
            if self._early_ns is None:
                self._sums.compute += self._segment.gap_ns
                if self._segment.gap_ns:
                    self.parts.cannot_tell()
                self._segment.gap_ns = 0
            if self._segment.delivered:
                self._settle(True)
            self._count_early()
            self._state |= states.TRAINING

    def _count_early(self) -> None:
        """Moves what was computed of the loss before any forward was seen from `other` to `compute`."""
        if self._early_ns is not None:
            moved = min(self._early_ns, self._sums.other)
            self._sums.other -= moved
            self._sums.compute += moved
            self.parts.begin(FORWARD)
            self.parts.book(moved)
            self._early_ns = None

    def _closure_begun(self) -> None:
        """The update computes the loss itself: what came between the batch and the update was not computing."""
        self._maybe_closure = False
        if self._segment.delivered:
            self._settle(True)

    def _backward_end(self, time: int, a: Any, b: Any, c: Any) -> FinishedStep | None:
        self._in_backward = False
        self.parts.end(BACKWARD)
        self._forwards_since_backward = 0
        self._unclaimed_ns = 0
        stepped, self._stepped_in_backward = self._stepped_in_backward, False
        return self._finish(time) if stepped and self.boundaries.anchor is None else None

    # -- optimizer ------------------------------------------------------------------------------------------------

    def _optimizer_begin(self, time: int, optimizer: Any, b: Any, c: Any) -> None:
        if not self._state & states.TRAINING:
            self._maybe_closure = True  # until a forward or a backward begins in it, or it ends without
            self._state |= states.TRAINING
        self._in_update = 0
        self.parts.begin(OPTIMIZER)

    def _optimizer_end(self, time: int, optimizer: Any, skipped: Any, first_seen: Any) -> FinishedStep | None:
        if first_seen is not None:
            self.boundaries.learn(optimizer, first_seen)
        if self._maybe_closure:  # the gradients are of something that was not observed
            self._maybe_closure = False
            self._state &= ~states.TRAINING
            self._begin_training()
        self.parts.end(OPTIMIZER)
        self.passes_in_update, self._in_update = max(self.passes_in_update, self._in_update or 0), None
        if self._in_backward:
            self._stepped_in_backward = True
            return None
        self._state &= states.TRAINING  # what lasts until now was left by an exception: its end is not known
        self._end_passes()
        self._unclaimed_ns = 0
        trained = self._sums.microbatches or self._saw_forward or not self._passes.total
        self.boundaries.made_again += first_seen is not None and first_seen.made_again
        if not self.boundaries.ends_step(optimizer) or not trained:  # the next part of an update in parts
            return None
        if skipped() if callable(skipped) else skipped:
            self._sums.flags |= Flag.SKIPPED
        self.phases.step_ended(self._index, optimizer)
        return self._finish(time)

    def _iteration(self, time: int, begun_by: Any, b: Any, c: Any) -> FinishedStep | None:
        return self._finish(time) if begun_by == self.boundaries.rounds else None

    def _end_passes(self) -> None:
        """Called when an optimizer has stepped: passes of two optimizers (of a GAN) do not accumulate gradients."""
        self._sums.forward_samples += self._passes.of_later_forwards()
        self._sums.microbatches = max(self._sums.microbatches, self._passes.end())

    def _gap(self, time: int, gap: Any, b: Any, c: Any) -> None:
        """Notes the idle time of a gap, which moves from `compute` to `other`; or what was computed in one before."""
        if not self._state & states.TRAINING:
            if gap.place[0] in BEFORE_A_STEP:
                self._early_ns = (self._early_ns or 0) + self._gaps.early_ns(gap)
            return
        idle = self._gaps.idle_ns(gap, claimed_ns=max(0, gap.wall_ns - self._unclaimed_ns))
        idle = min(idle, self._unclaimed_ns)
        self._sums.idle += idle
        self.parts.book_idle(idle)
        self._unclaimed_ns = 0

    # -- copies, communication, the rest --------------------------------------------------------------------------

    def _comm_begin(self, time: int, a: Any, b: Any, c: Any) -> None:
        self._state |= states.COMM
        self._comm_since = time

    def _comm_end(self, time: int, bounded: Any, waited: Any, reached: Any) -> None:
        """Ends a wait for collectives.

        `bounded`: see `wait_end`; copying after that end is `compute`. `waited`: the collectives that were waited for;
        None for all that were issued. `reached`: the streams on which they were issued.
        """
        self._reached.update(reached or ())
        if not self._state & states.COMM:
            return
        self._state &= ~states.COMM
        collectives = self._sums.collectives
        end = wait_end(collectives, bounded, self._last, time)
        self._sums.comm += end - self._last
        self.bookings[self._state](time - end)
        since = max(self._comm_since, self._start or 0)  # a step may have ended during the wait
        share_wait(collectives if waited is None else waited, waited is not None, self._comm_since, since, end)

    def _collective(self, time: int, record: Any, b: Any, c: Any) -> None:
        self._sums.collectives.append(record)

    def _unseen(self, time: int, count: int, b: Any, c: Any) -> None:
        self._sums.unobserved += count

    def _h2d_begin(self, time: int, size: Any, b: Any, c: Any) -> None:
        self._state |= states.H2D

    def _h2d_end(self, time: int, a: Any, b: Any, c: Any) -> None:
        self._state &= ~states.H2D

    def _checkpoint_begin(self, time: int, a: Any, b: Any, c: Any) -> None:
        self.spans.checkpoint(Kind.CHECKPOINT_BEGIN, time)
        self._state |= states.CHECKPOINT
        self._sums.flags |= Flag.CHECKPOINT

    def _checkpoint_end(self, time: int, written: Any, b: Any, c: Any) -> None:
        self.spans.checkpoint(Kind.CHECKPOINT_END, time, self._index, written)
        self._state &= ~states.CHECKPOINT

    def _zero_grad_begin(self, time: int, a: Any, b: Any, c: Any) -> None:
        self._state |= states.ZERO_GRAD

    def _zero_grad_end(self, time: int, a: Any, b: Any, c: Any) -> None:
        self._state &= ~states.ZERO_GRAD
        self._unclaimed_ns = 0

    def _compile(self, time: int, a: Any, b: Any, c: Any) -> None:
        self._sums.flags |= Flag.COMPILE

    def _traced(self, time: int, a: Any, b: Any, c: Any) -> None:
        self._sums.flags |= Flag.TRACED

    # -- the end of a step ----------------------------------------------------------------------------------------

    def _lost(self, time: int, updates: Any, marks: Any, first_seen: Any) -> None:
        """Begins anew after a gap. What follows is part of a step whose beginning is not known."""
        steps = self.boundaries.lost(updates, first_seen)
        self._index += steps
        self.lost_steps += steps
        self._marks, self._start = marks, time
        self._passes.end()
        self.spans.lost(time)
        self.forget()
        self._torn = True

    def _finish(self, time: int) -> FinishedStep | None:
        self._settle(None)
        self.spans.trained()
        self._end_passes()
        sums, start = self._sums, self._start
        assert start is not None
        if sums.collectives:
            sums.unawaited = sum(c.stream is not None and c.stream not in self._reached for c in sums.collectives)
        lacking = self.unmeasured if self._data_seen else {*self.unmeasured, "data"}
        sums.microbatches = sums.microbatches or int(self._saw_forward)  # gradients without a call of backward
        at = StepSpan(self._index, start - self.origin, time - start)
        row = make_row(at, sums, self.parts, lacking, self.peak_memory_bytes)
        step = FinishedStep(
            row, sums.collectives, start, self._saw_forward, sums.unobserved, self._marks, sums.unawaited
        )
        self._index += 1
        self._start = time
        self._sums = Sums()
        self._early_ns = None
        self._state &= ~states.TRAINING
        self._saw_forward = False
        self._forwards_since_backward = 0
        if self._torn:
            self._torn = False
            self.lost_steps += 1
            return None
        return step
