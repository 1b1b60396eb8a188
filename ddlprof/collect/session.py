"""One profiled process: installs the hooks when torch is there, runs the helper thread, and takes everything back.

`start` comes before the user's script and `finish` after it. After `start` nothing here raises.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddlprof.collect.accelerator.clock import UNSTAMPED, DeviceClock
from ddlprof.collect.accelerator.device_search import DeviceSearch
from ddlprof.collect.compiler.untraced import leave_to_python
from ddlprof.collect.facts.machine import ContextSampler
from ddlprof.collect.facts.probe import Probe
from ddlprof.collect.helper import Helper
from ddlprof.collect.hooks.parameters import own_parameters
from ddlprof.collect.install import Uninstall
from ddlprof.collect.job.place import Place
from ddlprof.collect.job.team import Team
from ddlprof.collect.loader.input import Input
from ddlprof.collect.process.on_import import after_import
from ddlprof.collect.process.real_time import time
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.collect.steps.sums import Step
from ddlprof.model.errors import complain
from ddlprof.model.experiment import Experiment
from ddlprof.model.job import Job
from ddlprof.model.options import Options
from ddlprof.model.reads import reads_name
from ddlprof.model.records import End, Flag

_SEARCH_STEPS = 3
"""Outermost modules are looked for during so many steps."""
_SEARCHES = 5
_LEARN_AT_STEP = 3
_UNUSUAL = Flag.EPOCH_START | Flag.EVALUATION | Flag.CHECKPOINT | Flag.COMPILE | Flag.TRACED
WARMUP_STEPS = 20
"""`--stop-after` counts after these: as many as the analysis ever takes for warm-up."""


class Session:
    """Made by `start`."""

    def __init__(self, options: Options, name: str, argv: list[str], job: Job | None = None) -> None:
        self.options = options
        self.experiment = job.experiment if job else Experiment.from_environment()
        self.pid = os.getpid()
        self.place = Place(options, name, argv, job)
        self.writer = self.place.writer
        self.recorder = Recorder()
        self.probe = Probe(self.recorder)
        origin_ns = self.place.origin_ns
        self.assembler = StepAssembler(origin_ns, options.step_optimizer)
        self.helper = Helper(self.recorder, self.assembler, self.writer, ContextSampler(origin_ns), self._on_step)
        self.team = Team(self.place, self.recorder, options.calibrate)
        self.helper.tend = self._tend
        self.helper.after_first_updates = lambda: self.place.learn(self.probe, self.assembler, None)
        self.on_forked_group: Callable[[], None] = lambda: None
        """Called in a child made by fork that has made a process group."""
        self._uninstalls: list[Uninstall] = []
        self._modules: Any = None
        self.input = Input(self.recorder, self.probe.iterated, options.data_calls)
        self._search: DeviceSearch | None = None
        self._searches = 1
        self._search_until = _SEARCH_STEPS
        self._at_next_update: deque[Callable[[], None]] = deque()
        self.recorder.at_update = self._at_update
        self.recorder.note = self.writer.note
        self._steps = self._steady = 0
        self._begun = self._opened = self._over = self._warned = False

    # -- hooks ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Called right after the script's first `import torch`: a script without it gets no second thread."""
        if os.getpid() != self.pid:
            return
        self._begun = True
        try:
            if self.options.time_collectives:
                self._ask_for_timing()
            self.install()
            self.helper.start()
        except Exception as error:  # fail open: it would be an error of that import
            self.uninstall()
            self.writer.note("hooks", f"nothing is measured: {type(error).__name__}: {error}")

    def _ask_for_timing(self) -> None:
        import torch

        from ddlprof.collect.accelerator.flight_recorder import ask_for_timing

        ask_for_timing(torch)

    def install(self) -> None:
        """Installs all hooks."""
        import torch

        from ddlprof.collect.hooks import backward, checkpoint, compiled, copies, graphs, module, operators, optimizer
        from ddlprof.collect.hooks import zero_grad as zeroing
        from ddlprof.collect.hooks.optimizer import parameters_of
        from ddlprof.collect.hooks.process_group import install as install_process_group

        leave_to_python(torch)

        def modules() -> Uninstall:
            self._modules = module.install(self.recorder, self._training_forward)
            uninstall: Uninstall = self._modules.uninstall
            return uninstall

        steps = optimizer.Steps(self.recorder, lambda optimizer: self._look_for_device(parameters_of(optimizer)))
        self._try("data", self.input.install)
        self._try("module", modules)
        self._try("optimizer", lambda: optimizer.install(self.recorder, steps))
        self._try("compiled", lambda: compiled.install(self._modules, steps))
        self.assembler.boundaries.optimizer_exists = optimizer.exists
        self._try("zero_grad", lambda: zeroing.install(self.recorder))
        self._try("checkpoint", lambda: checkpoint.install(self.recorder))
        self._try("process_group", lambda: install_process_group(self.on_process_group))

        def after_each() -> None:
            self.team.backward_over()

        self._try("backward", lambda: backward.install(self.recorder, self._backward_begin, after_each))
        self._try("operators", lambda: operators.install(self.recorder))
        if torch.version.cuda or torch.version.hip:
            later, unmeasured = self._at_next_update.append, lambda: self.assembler.unmeasured.add("h2d")
            captures = graphs.Captures(self.recorder, torch, self.helper.device_free, self.writer.note)
            if self._search is None:
                self._search = DeviceSearch(torch, self._on_device, self.writer.note)
            self._search.capturing = captures.under_way
            self._try("streams", lambda: self._install_streams(torch, later))
            streams = self.team.streams
            on_clock, noted = (streams.on_clock_stream, streams.note) if streams else (None, lambda stream, what: None)
            self._try("h2d", lambda: copies.install(self.recorder, torch, later, on_clock, noted, unmeasured))
            self._try("graphs", lambda: graphs.install(torch, captures))
        experiment = self.experiment
        if experiment is not None:
            self._try("experiment", lambda: self._install_experiment(experiment))

    def _install_streams(self, torch: Any, later: Callable[[Callable[[], None]], None]) -> Uninstall:
        from ddlprof.collect.hooks import streams

        unmeasured = lambda: self.assembler.unmeasured.add("comm")  # noqa: E731
        uninstall, self.team.streams = streams.install(self.recorder, torch, later, unmeasured)
        return uninstall

    def _install_experiment(self, experiment: Experiment) -> Uninstall:
        """Comes last: it counts on the hooks of the loader and the optimizer."""
        import torch

        from ddlprof.collect.experiment.setup import install

        leave_to_python(torch)
        reads = (self.directory or Path()) / reads_name(self.place.rank)
        return install(experiment, self.recorder, WARMUP_STEPS + experiment.steps, reads)

    def _try(self, name: str, install: Callable[[], Uninstall]) -> None:
        try:
            self._uninstalls.append(install())
        except Exception as error:  # fail open: the training goes on, the report says what was not measured
            self.assembler.unmeasured.add(name)
            self.writer.note(name, f"not measured: {type(error).__name__}: {error}")

    def uninstall(self) -> None:
        """Takes all hooks back."""
        self.recorder.active = False
        while self._uninstalls:
            with suppress(Exception):  # the others go all the same
                self._uninstalls.pop()()

    def pause(self) -> None:
        """Takes all hooks back until `resume`; to be called between two steps."""
        self.uninstall()

    def resume(self) -> None:
        """Installs all hooks again, for the modules and loader iterations that are known."""
        known = list(self._modules.seen) if self._modules is not None else []
        self.recorder.active = True
        self.install()
        self.team.install(self._try)
        if known:
            for module in known:
                self._modules.adopt(module)
            self._modules.settle()

    def _training_forward(self, module: Any) -> None:
        if module is not None:
            self._look_for_device(own_parameters(module))
        self.probe.training_forward(module)

    def _backward_begin(self, roots: Any, nested: bool, kept: bool) -> None:
        self._look_for_device(roots if issubclass(type(roots), (list, tuple)) else [roots])
        self.probe.backward_begin(roots, nested, kept)

    def _look_for_device(self, tensors: Iterable[Any]) -> None:
        """In the first steps, until each of them has found what it computes on."""
        if self._search is not None and self.recorder.boundaries <= _SEARCH_STEPS and self.recorder.listens():
            self._search.look(tensors)

    def _on_device(self, clock: DeviceClock, name: str) -> None:
        """Changes over to the device's clock."""
        import torch

        self.place.change(device=name, clock="device")
        self.helper.device = clock
        self.recorder.unstamped = UNSTAMPED
        self.recorder.clock = clock
        self.recorder.loop.gaps = False  # what the host does between two calls, the device need not notice
        self._look_closer(torch)

    def _look_closer(self, torch: Any) -> None:
        """What the user asked to be told of the device besides, and what it costs."""
        if self.options.profiler_windows:
            self._try("windows", lambda: self._profiler_windows(torch))
        if self.options.time_collectives:
            from ddlprof.collect.accelerator import flight_recorder

            try:
                self.helper.flight_recorder = flight_recorder.of_torch(torch)
            except Exception as error:
                self.writer.note("collectives", f"not timed: {error}")

    def _profiler_windows(self, torch: Any) -> Uninstall:
        from ddlprof.collect.accelerator import kineto

        most, clock, free = self.options.profiler_windows, self.recorder.clock, self.helper.device_free
        self.helper.windows, uninstall = kineto.install(torch, self.recorder, most, clock, self.writer.note, free)
        return uninstall

    # -- the other ranks ------------------------------------------------------------------------------------------

    def on_process_group(self) -> None:
        """When there is a default group, in the training thread; in a forked child, this is its first sign of life."""
        if os.getpid() != self.pid:
            self.on_forked_group()
        elif not self._over:
            self.team.on_process_group(self._try)

    # -- the helper thread's calls --------------------------------------------------------------------------------

    def _on_step(self, step: Step) -> None:
        self._steps += 1
        if self._steps == 1:
            self._open()
        if self._modules is not None and self.recorder.boundaries >= self._search_until:
            self._tend_search(step)
        if self._steps == _LEARN_AT_STEP:
            self.place.learn(self.probe, self.assembler, step.row)
        if self._steps > WARMUP_STEPS and not step.row.flags & _UNUSUAL:
            self._steady += 1
            if self._steady == self.options.stop_after:
                self._at_next_update.append(self.uninstall)

    def _tend_search(self, step: Step) -> None:
        """Ends the search for outermost modules, or begins another where the model's forward was not seen."""
        if self._modules.searching:
            self._at_next_update.append(self._modules.settle)
        elif step.row.microbatches and not step.saw_forward and self._searches < _SEARCHES:
            self._searches += 1  # another model is trained now
            self._at_next_update.append(self._modules.search)
        else:
            return
        self._search_until = self.recorder.boundaries + _SEARCH_STEPS

    def _at_update(self, updates: int) -> None:
        """In the training thread, between two steps: while it compiles, no other thread may change a patch."""
        try:
            while self._at_next_update:
                self.recorder.charge(self._at_next_update.popleft())
        except Exception as error:
            self.writer.note("update", f"{type(error).__name__}: {error}")
        if self._search is not None:
            self._search.look_again()
        self.helper.at_update(updates)

    def _tend(self, last: bool = False) -> None:
        """About once a second in the helper thread, and at the end."""
        self.team.tend(last)
        if not self._opened and self._steps:
            self._open()

    def _open(self) -> None:
        """Begins to write this rank's files, unless rank 0 has still to tell where."""
        if self.team.undecided:
            return
        self._opened = True
        self.place.open()
        if self.writer.failure:
            self._warn(f"{self.writer.failure}: rank {self.place.rank} is not recorded; the training goes on")

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self, status: str, exit_code: int) -> None:
        """Writes what is left. Does nothing in a forked child."""
        if os.getpid() != self.pid or self._over:
            return
        self._over = True
        stopped = self.options.stop_after is not None and self._steady >= self.options.stop_after
        self.uninstall()
        self.helper.stop()
        self._tend(last=True)
        if not self._steps:
            if self.place.left_to_others():
                return
            self._open()
        self.place.learn(self.probe, self.assembler, None)
        self._say_what_ends_a_step()
        if self.recorder.failure:
            self.writer.note("recorder", f"stopped recording: {self.recorder.failure}")
        for message in self.input.close():
            self.writer.note("data", message)
        if self.recorder.lost:
            self.writer.note("recorder", f"events lost, as the helper thread got no time: {self.recorder.lost}")
        end = time.perf_counter_ns() - self.place.origin_ns
        self.writer.context(End("stopped" if stopped and status == "ok" else status, exit_code, end))
        self.writer.close()
        if self.writer.failure and not self._warned:
            self._warn(f"{self.writer.failure}; the last steps are not recorded")

    def _say_what_ends_a_step(self) -> None:
        note = self.assembler.boundaries.note()
        if note is not None:
            self.writer.note("optimizer", note)

    @property
    def rank(self) -> int:
        """As far as it is known."""
        return self.place.rank

    @property
    def directory(self) -> Path | None:
        """The run directory, None where it is not known."""
        return self.place.directory

    @property
    def begun(self) -> bool:
        """The hooks are installed: the script has imported torch."""
        return self._begun

    def forked(self) -> None:
        """In a child made by fork: the hooks it inherited do nothing."""
        self.recorder.active = False

    def _warn(self, message: str) -> None:
        self._warned = True
        if not self.options.quiet:
            complain(message)


def start(options: Options, name: str, argv: list[str], job: Job | None = None) -> Session:
    """Begins to profile this process. `name`: short name of the job; `argv`: the script and its arguments.

    `job`: the run that this process was started in. Raises UserError where the run directory cannot be used.
    """
    session = Session(options, name, argv, job)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=session.forked)
    session.input.watch()
    after_import("torch", session.begin)
    return session
