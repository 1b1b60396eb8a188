"""The device that the training computes on: found in the first steps; from then on its clock is that of the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from ddlprof.collect.accelerator.clock import UNSTAMPED, DeviceClock
from ddlprof.collect.accelerator.device_search import DeviceSearch
from ddlprof.collect.helper import Helper
from ddlprof.collect.install import Uninstall
from ddlprof.collect.recorder import FIRST_STEPS, Recorder
from ddlprof.model.options import Options
from ddlprof.torch_private.engine import no_torch_function

if TYPE_CHECKING:
    from ddlprof.collect.hooks.context import HookContext

Attempt = Callable[[str, Callable[[], Uninstall]], None]
"""The function `Hooking.attempt`."""
_TENSORS_LOOKED_AT = 64


class Device:
    """Does nothing where there is none."""

    def __init__(
        self,
        options: Options,
        recorder: Recorder,
        helper: Helper,
        found: Callable[[str], None],
        unmeasured: Callable[[str], None],
        attempt: Attempt,
    ) -> None:
        """`found`: called with the device's name, once its clock is that of the steps.

        `unmeasured`: called with the kind of a device that has no clock here.
        """
        self._options = options
        self._recorder = recorder
        self._helper = helper
        self._found = found
        self._unmeasured: Callable[[str], None] | None = unmeasured
        self._attempt = attempt
        self.search: DeviceSearch | None = None
        """Whether to look again after each update, in the training thread."""
        self._around: HookContext | None = None

    def before_group(self, torch: Any) -> None:
        """Sets what torch reads when the script makes its first process group."""
        if self._options.time_collectives:
            from ddlprof.collect.accelerator.flight_recorder import ask_for_timing

            ask_for_timing(torch)

    def begin(self, context: HookContext) -> None:
        """There may be one, from now on."""
        self._around = context
        if context.accelerator is not None:
            capturing, note = context.captures.under_way, self._recorder.note
            self.search = DeviceSearch(context.accelerator, capturing, self._change_over, note)

    def look(self, tensors: Iterable[Any]) -> None:
        """Looks at what is computed with, in the training thread."""
        if self._around is None or self._recorder.boundaries > FIRST_STEPS or not self._recorder.listens():
            return
        looked_at = list(islice(tensors, _TENSORS_LOOKED_AT))
        if self.search is not None:
            self.search.look(looked_at)
        self._look_for_others(looked_at, self._around)

    def _look_for_others(self, tensors: list[Any], context: HookContext) -> None:
        """Looks for a device that the training thread runs ahead of, and that nobody has timed steps on."""
        accelerator = context.accelerator
        timed = {"cpu", "meta", None if accelerator is None else accelerator.kind}
        try:
            with no_torch_function():  # of a tensor class of the script's
                kinds = (tensor.device.type for tensor in tensors if context.torch.is_tensor(tensor))
                other = next((kind for kind in kinds if kind not in timed), None)
        except Exception as error:
            self._recorder.note("device", f"not looked at: {type(error).__name__}: {error}")
            return
        if other is not None and self._unmeasured is not None:
            self._unmeasured(other)
            self._unmeasured = None

    def _change_over(self, clock: DeviceClock, name: str) -> None:
        self._found(name)
        self._recorder.use_device(clock, UNSTAMPED)
        if self._around is not None:
            self.look_closer(self._around)

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
