"""Finds the device that the training computes on, in the first steps; from then on its clock times the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from ddlprof.collect.accelerator import known
from ddlprof.collect.accelerator.clock import UNSTAMPED, DeviceClock
from ddlprof.collect.accelerator.protocol import Accelerator
from ddlprof.collect.helper import Helper
from ddlprof.collect.install import Uninstall
from ddlprof.collect.recorder import FIRST_STEPS, Recorder
from ddlprof.model.options import Options
from ddlprof.torch_private.engine import no_torch_function

MOST_MOVES = 8
"""After so many moves between streams, the clock stays on the last one."""
_UNSEEN = "copies between them are not told apart"


class DeviceSearch:
    """Which device and stream the training computes on: those of the parameters, not the ones current at import.

    A script may name `cuda:1` without making it current, and warm up on a side stream before it captures a graph. So
    the first steps look at each forward, backward and update, later ones once a step, and the clock follows.
    In the training thread. `found` is called once, with the first clock and the device's name.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        capturing: Callable[[], bool],
        found: Callable[[DeviceClock, str], None],
        note: Callable[[str, str], None],
    ) -> None:
        """`capturing` returns whether a graph is being captured, during which the device must not be queried."""
        self.clock: DeviceClock | None = None
        self._accelerator = accelerator
        self._capturing = capturing
        self._found = found
        self._note = note
        self._device: Any = None
        self._known: set[Any] = set()
        self._moves = 0
        self._failed = self._said_several = False
        self.why_not = ""
        """Why the device, which was found, has no clock that can be read; empty if it has one."""

    def look(self, tensors: Iterable[Any]) -> None:
        """Looks at parameters, or at what a backward begins with."""
        try:
            if not self._failed and self._accelerator.in_use():
                with no_torch_function():  # of a tensor class of the script's
                    devices = self._devices(tensors)
                if devices:
                    # A loss on the last of a model's devices does not take the clock there.
                    self._follow(devices[0] if devices[0] not in self._known else self._device)
                    self._known.update(devices)
                if len(devices) > 1 and not self._said_several:
                    self._said_several = True
                    others = ", ".join(map(str, devices[1:]))
                    self._note(
                        "device", f"the timeline is that of {devices[0]}; the model is on {others}, too: {_UNSEEN}"
                    )
        except Exception as error:
            self._give_up(error)

    def look_again(self) -> None:
        """Looks after an update whether the training has moved to another stream."""
        try:
            if self._device is not None and not self._failed:
                self._follow(self._device)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        reason = f"not measured: {type(error).__name__}: {error}"
        if self.clock is None:
            self.why_not = reason
        else:
            self._note("device", reason)

    def _follow(self, device: Any) -> None:
        if self._capturing():
            return
        stream = self._accelerator.current_stream(device)
        if self.clock is None:
            self._device = device
            self.clock = DeviceClock(self._accelerator.driver(device), stream, self._capturing)
            self._found(self.clock, self._accelerator.name(device))
            if lacking := self._accelerator.lacking():
                self._note("device", lacking)
        elif self._moves < MOST_MOVES and (device != self._device or stream != self.clock.stream):
            self._moves += 1
            if self._moves == 1:
                what = "another stream" if device == self._device else f"{device}, after {self._device}"
                self._note("device", f"the training moved to {what}: steps before that may be those of the first")
            self.clock.follow(stream, None if device == self._device else self._accelerator.driver(device))
            self._device = device

    def _devices(self, tensors: Iterable[Any]) -> list[Any]:
        """The devices of the tensors, the one with most tensors first."""
        counts: dict[Any, int] = {}
        for tensor in tensors:
            if self._accelerator.holds(tensor):
                counts[tensor.device] = counts.get(tensor.device, 0) + 1
        return sorted(counts, key=lambda device: (-counts[device], device.index or 0))


if TYPE_CHECKING:
    from ddlprof.collect.hooks.context import HookContext

Attempt = Callable[[str, Callable[[], Uninstall]], object]
"""The type of `Hooking.attempt`."""
_TENSORS_LOOKED_AT = 64


class DeviceTiming:
    """Changes the steps over to the clock of the device, if there is one."""

    def __init__(
        self,
        options: Options,
        recorder: Recorder,
        helper: Helper,
        found: Callable[[str], None],
        unmeasured: Callable[[str, str], None],
        adopted: Callable[[], None],
        attempt: Attempt,
    ) -> None:
        """`found`: called with the device's name, once its clock is that of the steps.

        `unmeasured`: called with the kind of a device that has no clock here, and what there is to say of it.
        `adopted`: called when the context has got an accelerator that it did not have at the start.
        """
        self._options = options
        self._recorder = recorder
        self._helper = helper
        self._found = found
        self._unmeasured: Callable[[str, str], None] | None = unmeasured
        self._adopted = adopted
        self._attempt = attempt
        self.search: DeviceSearch | None = None
        """Looks again after each update, in the training thread; None without an accelerator."""
        self._context: HookContext | None = None

    def before_group(self, torch: Any) -> None:
        """Sets what torch reads when the script makes its first process group."""
        if self._options.time_collectives:
            from ddlprof.collect.accelerator.flight_recorder import ask_for_timing

            ask_for_timing(torch)

    def begin(self, context: HookContext) -> None:
        """Begins to look for a device: torch and its accelerator are known now."""
        self._context = context
        if context.accelerator is not None:
            self._search_for(context.accelerator, context)

    def _search_for(self, accelerator: Accelerator, context: HookContext) -> None:
        capturing, note = context.captures.in_flight, self._recorder.note
        self.search = DeviceSearch(accelerator, capturing, self._change_over, note)

    def look(self, tensors: Iterable[Any]) -> None:
        """Looks at what is computed with, in the training thread."""
        if self._context is None or self._recorder.boundaries > FIRST_STEPS or not self._recorder.listens():
            return
        looked_at = list(islice(tensors, _TENSORS_LOOKED_AT))
        try:
            other = self._other_kind(looked_at, self._context)
            if other is not None and self._adopt(other, self._context):
                other = None
        except Exception as error:
            self._recorder.note("device", f"not looked at: {type(error).__name__}: {error}")
            other = None
        reason = other
        if self.search is not None:
            self.search.look(looked_at)
            if self.search.why_not and self._context.accelerator is not None:
                other, reason = self._context.accelerator.kind, self.search.why_not
        if other is not None and reason is not None and self._unmeasured is not None:
            self._unmeasured(other, reason)
            self._unmeasured = None

    def _other_kind(self, tensors: list[Any], context: HookContext) -> str | None:
        """A kind of device among the tensors' that is not the accelerator's, and ahead of which the training runs."""
        accelerator = context.accelerator
        timed = {"cpu", "meta", None if accelerator is None else accelerator.kind}
        with no_torch_function():  # of a tensor class of the script's
            kinds = (tensor.device.type for tensor in tensors if context.torch.is_tensor(tensor))
            return next((kind for kind in kinds if kind not in timed), None)

    def _adopt(self, kind: str, context: HookContext) -> bool:
        """Takes an accelerator that was not there or not known to be used when torch was imported, if that is it."""
        if self.search is not None and self.search.clock is not None:
            return False
        accelerator = known.of_torch(context.torch)
        if accelerator is None or accelerator.kind != kind:
            return False
        accelerator.see()
        context.adopt(accelerator)
        self._search_for(accelerator, context)
        self._adopted()
        return True

    def _change_over(self, clock: DeviceClock, name: str) -> None:
        self._found(name)
        self._recorder.use_device(clock, UNSTAMPED)
        if self._context is not None:
            self.look_closer(self._context)

    def look_closer(self, context: HookContext) -> None:
        """Starts to look at what the user asked for besides, at a cost."""
        if self._options.profiler_windows:
            self._attempt("windows", lambda: self._windows(context))
        if self._options.time_collectives:
            from ddlprof.collect.accelerator import flight_recorder

            try:
                self._helper.flight_recorder = flight_recorder.of_torch(context.torch)
            except Exception as error:
                self._recorder.note("collectives", f"not timed: {error}")

    def _windows(self, context: HookContext) -> Uninstall:
        from ddlprof.collect.accelerator.windows import ProfilerWindows

        profiler = None if context.accelerator is None else context.accelerator.profiler()
        if profiler is None:
            raise RuntimeError("torch has no profiler of this device")
        most, recorder = self._options.profiler_windows, self._recorder
        windows = ProfilerWindows(recorder, profiler, most, recorder.clock, recorder.note, self._helper.device_free)
        self._helper.windows = windows
        return windows.install()
