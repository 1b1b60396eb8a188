"""The session of one profiled process: it installs the hooks, runs the helper thread, and removes both at the end.

`start` is called before the user's script and `Session.finish` after it. Once `start` has returned, nothing in here
raises an error into the script.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlprof.base.real_process import getpid
from ddlprof.base.real_time import time
from ddlprof.collect import current
from ddlprof.collect.accelerator import known
from ddlprof.collect.accelerator.known import ON_THE_HOST
from ddlprof.collect.compiler import leave_to_python
from ddlprof.collect.current import RecentSteps
from ddlprof.collect.device import DeviceTiming
from ddlprof.collect.facts.counters import ContextSampler
from ddlprof.collect.hang.rank import Hangs
from ddlprof.collect.helper import FIRST_UPDATE_STACKS, Helper
from ddlprof.collect.install import Hooking, Uninstall, sweep
from ddlprof.collect.job.rank_group import RankGroup
from ddlprof.collect.job.rank_output import RankOutput
from ddlprof.collect.loader.amounts import BatchAmounts
from ddlprof.collect.loader.input import Input
from ddlprof.collect.process.clocks import age_ns
from ddlprof.collect.process.on_import import after_import
from ddlprof.collect.progress import RankProgress
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.steps.attribution import StepAssembler
from ddlprof.model.events import Kind
from ddlprof.model.options import AddedHooks, Options, ParentRun
from ddlprof.model.records import NO_BACKWARD, NO_TORCH, PROFILING, End, JobSpan, StepRow
from ddlprof.writing.writer import FinishedStep

if TYPE_CHECKING:
    from ddlprof.collect.facts.group_dimensions import GroupDimensions
    from ddlprof.collect.facts.model_inspector import ModelInspector
    from ddlprof.collect.hooks.context import HookContext
    from ddlprof.collect.inspection import ModuleSearch
    from ddlprof.collect.seen_groups import SeenGroups
    from ddlprof.operators.parallel import Parallelism


NOT_ENDED = (
    "the helper thread did not end with the script, it was at {line}: at most the first {steps} steps are recorded, of "
    "{updates} updates"
)


class Session:
    """Decides when each part of the profiler begins, pauses, resumes and ends; the parts do the work.

    `start` makes it.
    """

    def __init__(
        self, options: Options, name: str, argv: list[str], job: ParentRun | None = None, whole_process: bool = False
    ) -> None:
        self.options = options
        self.added = job.added if job else AddedHooks.from_environment()
        self.pid = getpid()
        age = age_ns() if whole_process else None
        self.rank_output = RankOutput(options, name, argv, job)
        self.writer = self.rank_output.writer
        self.rank_output.change(age_ns=age, spans=True)
        self.recorder = Recorder()
        self.recorder.note = self.writer.note
        self.recorder.record = self.writer.context
        self.recorder.at_update = self._at_update
        origin_ns = self.rank_output.origin_ns
        self.assembler = StepAssembler(origin_ns, options.step_optimizer)
        self.input = Input(
            self.recorder, self._iterated, options.data_calls, lambda batch: self.inspector.loaded(batch)
        )
        context = ContextSampler(origin_ns, time.perf_counter_ns)
        self.helper = Helper(self.recorder, self.assembler, self.writer, context, self._step_ended)
        self.hooking = Hooking(self.recorder, self.assembler.unmeasured.add)
        self.rank_group = RankGroup(self.rank_output, self.recorder, options.calibrate, self._install_in_group)
        self.device = DeviceTiming(
            options, self.recorder, self.helper, self._on_device, self._on_unknown_device, self._on_late_accelerator,
            self.hooking.attempt,
        )  # fmt: skip
        self.hangs = Hangs(options, self.rank_output, self.helper, self._groups_seen)
        self.progress = RankProgress(
            options, self.rank_output, self.rank_group, self._learn, lambda: self.later(self.uninstall)
        )
        self.helper.poll = self._poll
        self.helper.end_recording = lambda: self.later(self._end_recording)
        self.helper.after_first_updates = self._after_first_updates
        self.amounts = BatchAmounts(self.recorder, origin_ns)
        self.module_search: ModuleSearch | None = None
        self.recent = RecentSteps()
        self.helper.is_awaited = lambda: options.stop_after is not None or self.recent.asked
        self.groups: GroupDimensions | None = None
        self.context: HookContext | None = None
        """What the hooks are given; None until torch is imported, like `module_search` and `groups`."""
        self.on_forked_group: Callable[[], None] = lambda: None
        """Called in a forked child process when it creates a process group."""
        self._at_next_update: deque[Callable[[], None]] = deque()
        self._begun = self._over = self._has_learned = False

    @cached_property
    def inspector(self) -> ModelInspector:
        """Collects facts about the model. Made after torch is imported, so that other scripts do not import it."""
        from ddlprof.collect.facts.model_inspector import ModelInspector

        inspector = ModelInspector(self.recorder)
        inspector.switches = self.helper.switches
        return inspector

    # -- hooks ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Installs the hooks and starts the helper thread. Called right after the script's first `import torch`."""
        if getpid() != self.pid:
            return
        self._begun = True
        try:
            self.install()
            self.helper.start()
        except Exception as error:  # fail open: it would be an error of that import
            self.uninstall()
            self.writer.note("hooks", f"nothing is measured: {type(error).__name__}: {error}")

    def install(self) -> None:
        """Installs all hooks."""
        from ddlprof.collect.hooks import table

        context = self.context = self.context or self._make_context()
        self.hangs.watch.active = True
        leave_to_python(context.torch)  # what is imported later marks itself
        self.hooking.install([("data", lambda context: self.input.install(context.torch)), *table.EVERYWHERE], context)
        if context.accelerator is not None:
            self.hooking.install(table.ON_AN_ACCELERATOR, context)
        if self.added is not None:  # they may rely on the hooks of the loader and the optimizer
            self.hooking.install([(self.added.name, self._install_added)], context)

    def _install_added(self, context: HookContext) -> Uninstall:
        assert self.added is not None
        module = import_module(self.added.module)
        found: Uninstall = module.install(context, self.added.settings, self.directory or Path(), self.rank_output.rank)
        return found

    def _make_context(self) -> HookContext:
        import torch

        from ddlprof.collect.facts import manifest  # noqa: F401  # imported here, as the helper thread will need it
        from ddlprof.collect.facts.group_dimensions import GroupDimensions
        from ddlprof.collect.hooks.optimizers import optimizer_exists
        from ddlprof.collect.hooks.table import hook_context
        from ddlprof.collect.inspection import ModelInspection, ModuleSearch
        from ddlprof.torch_private.engine import recorded_operations

        self.module_search = ModuleSearch()
        self.device.before_group(torch)
        self.assembler.boundaries.optimizer_exists = optimizer_exists
        context = hook_context(
            torch,
            self.recorder,
            known.at_start(torch),
            ModelInspection(self.inspector, self.device, self.recorder.loop, recorded_operations(torch), self.amounts),
            self.helper.device_free,
            self.later,
            self.assembler.unmeasured.add,
            self.on_process_group,
        )
        self.device.begin(context)
        self.groups = GroupDimensions(context.groups)
        return context

    def _install_in_group(self) -> None:
        from ddlprof.collect.hooks import table

        if self.context is not None:
            self.hooking.install(table.IN_A_GROUP, self.context)

    def uninstall(self) -> None:
        """Removes all hooks."""
        self.hangs.watch.active = False
        self.hooking.uninstall()
        sweep()

    def pause(self) -> None:
        """Removes all hooks until `resume`. Call it between two steps."""
        self.uninstall()

    def _end_recording(self) -> None:
        self.recorder.active = False
        self.uninstall()

    def resume(self) -> None:
        """Installs all hooks again, also on the modules and loader iterators that were found before.

        Does nothing after an error of the helper thread, which would take no events.
        """
        if self.helper.failed:
            return
        self.recorder.active = True
        self.install()
        self.rank_group.install()

    def on_process_group(self) -> None:
        """Called in the training thread when the default process group has been created.

        In a forked child it is the first sign that the child trains.
        """
        if getpid() != self.pid:
            self.on_forked_group()
        elif not self._over:
            self.rank_group.on_process_group()

    # -- between two steps ----------------------------------------------------------------------------------------

    def later(self, work: Callable[[], None]) -> None:
        """Has the training thread do some work between two steps.

        Other threads must not install or remove patches, because the training thread may be compiling.
        """
        self._at_next_update.append(work)
        self.recorder.next_update = 0

    def _at_update(self, updates: int) -> None:
        try:
            while self._at_next_update:
                self.recorder.charge(self._at_next_update.popleft())
        except Exception as error:
            self.writer.note("update", f"{type(error).__name__}: {error}")
        if self.device.search is not None:
            self.device.search.look_again()
        self.helper.at_update(updates)
        if (updates < FIRST_UPDATE_STACKS or updates & (updates - 1) == 0) and "torch" in sys.modules:
            self.inspector.at_update(updates)
        if updates >= self.amounts.due and self.context is not None:
            self.amounts.at_update(updates, self.context.modules)
        due = min(self.helper.next_update(updates), self.amounts.due)
        self.recorder.next_update = 0 if self.device.search is not None else due
        if self._at_next_update:  # another thread has added work in the meantime
            self.recorder.next_update = 0

    def _iterated(self, loader: Any) -> None:
        self.inspector.iterated(loader)

    # -- the helper thread's calls --------------------------------------------------------------------------------

    def _step_ended(self, step: FinishedStep) -> None:
        self.recent.add(step.row)
        if self.context is not None and self.module_search is not None:
            self.module_search.step_ended(step, self.context)
        self.progress.step_ended(step)
        self.hangs.step_ended(step.row.step_ns)

    def _after_first_updates(self) -> None:
        self._learn()
        try:
            self.amounts.begin(self.inspector.text)
        except Exception as error:  # fail open
            self.inspector.failed("tokens", error)

    def _groups_seen(self) -> tuple[SeenGroups | None, dict[str, str]]:
        seen = self.context.groups if self.context is not None else None
        return seen, self.groups.told if self.groups is not None else {}

    def _learn(self, row: StepRow | None = None) -> None:
        """Writes what is known so far to the manifest. `row`: the record of a step with a typical batch."""
        self._has_learned = True
        inspector = None
        try:
            inspector = self.inspector if "torch" in sys.modules else None
        except Exception as error:  # fail open: it could not be imported
            self.writer.note("manifest", f"{type(error).__name__}: {error}")
        self.rank_output.learn(inspector, self.assembler, row, self._learn_groups(inspector))

    def _learn_groups(self, inspector: ModelInspector | None) -> Parallelism | None:
        """Writes which dimensions of the layout the process groups belong to; returns how the ranks share the work."""
        if inspector is None or self.groups is None:
            return None
        try:
            names = list(self.assembler.boundaries.names.values())
            found = self.groups.learn(inspector, names, self.rank_output.world_size)
            for facts in self.groups.news():
                self.writer.context(facts)
            first = inspector.parts.repeats.take_first()
            if first is not None:
                self.writer.context(first)
            return found
        except Exception as error:
            inspector.failed("groups", error)
            return None

    def _poll(self) -> None:
        self.progress.poll()
        self.hangs.poll()
        if self._has_learned and self.groups is not None and self.groups.is_due:
            self._learn_groups(self.inspector)

    def _on_device(self, name: str) -> None:
        self.rank_output.change(device=name, clock="device")

    def _on_late_accelerator(self) -> None:
        """Installs, between two steps, the hooks of an accelerator that was registered after torch's import."""
        from ddlprof.collect.hooks import table

        if self.context is not None:
            self.later(partial(self.hooking.install, table.ON_AN_ACCELERATOR, self.context))

    def _on_unknown_device(self, kind: str, what: str) -> None:
        """Marks the classes as unmeasured that the host's clock cannot measure on such a device."""
        self.rank_output.change(device=kind)
        self.assembler.unmeasured.update(("compute", "h2d", "comm"))
        self.recorder.loop.gaps = False
        self.writer.note("device", f"{what}: {ON_THE_HOST}")

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self, status: str, exit_code: int, replaced: bool = False) -> None:
        """Removes the hooks, writes the remaining records and closes the files. Does nothing in a forked child.

        `replaced`: the process becomes another program, which begins the run if there is no step to keep.
        """
        if getpid() != self.pid or self._over:
            return
        self._over = True
        current.end(self)
        begin = time.perf_counter_ns()
        how = "stopped" if self.progress.stopped and status == "ok" else status
        self.hangs.ended(status)
        self.uninstall()
        if not self.helper.stop():
            self._leave_helper(how, exit_code)
            return
        self.progress.poll(last=True)
        if not self.progress.steps:
            if replaced or self.rank_output.left_to_others():
                return
            self.progress.open(last=True)
        if self.progress.steps and status == "ok":
            self.rank_output.time_launches()
        self._learn()
        self._note_what_is_missing()
        end = time.perf_counter_ns() - self.rank_output.origin_ns
        begin -= self.rank_output.origin_ns
        self.writer.context(JobSpan(PROFILING, begin, end - begin))
        ended = End(how, exit_code, end)
        self.writer.context(ended)
        self.writer.close()
        self.rank_output.told_end(ended)
        self.progress.closed()

    def _leave_helper(self, status: str, exit_code: int) -> None:
        """Leaves the helper thread with all that it holds, as it did not end, and says what may be missing."""
        from ddlprof.collect.job.unfinished import leave_word
        from ddlprof.model.unfinished import Unfinished

        self.recorder.active = False
        end = time.perf_counter_ns() - self.rank_output.origin_ns
        message = NOT_ENDED.format(
            line=self.helper.where(), steps=self.progress.steps, updates=self.recorder.boundaries
        )
        leave_word(self.rank_output, Unfinished(status, exit_code, end, message), self.options.quiet)

    def _note_what_is_missing(self) -> None:
        note = self.assembler.boundaries.note()
        if note is not None:
            self.writer.note("optimizer", note)
        elif not self.progress.steps and not self._begun:
            self.writer.note("steps", NO_TORCH)
        elif not self.progress.steps and self._only_forwards():
            self.writer.note("steps", NO_BACKWARD)
        if self.recorder.failure:
            self.writer.note("recorder", f"stopped recording: {self.recorder.failure}")
        for message in self.input.close():
            self.writer.note("data", message)
        if self.recorder.device is not None:
            for source, text in known.unobserved_waits():
                self.writer.note(source, text)

    def _only_forwards(self) -> bool:
        return self.recorder.holds(Kind.FORWARD_BEGIN) and not self.recorder.holds(Kind.BACKWARD_BEGIN)

    @property
    def rank(self) -> int:
        """The rank of this process, or 0 while it is not known."""
        return self.rank_output.rank

    @property
    def directory(self) -> Path | None:
        """The run directory; None while it is not known."""
        return self.rank_output.directory

    @property
    def begun(self) -> bool:
        """Whether the script has imported torch, so that the hooks are installed."""
        return self._begun

    def forked(self) -> None:
        """Runs in a forked child process, where it turns off the inherited hooks."""
        self.recorder.active = False
        self.hangs.forked()


def start(
    options: Options, name: str, argv: list[str], job: ParentRun | None = None, whole_process: bool = False
) -> Session:
    """Begins to profile this process. `name`: short name of the job; `argv`: the script and its arguments.

    `job`: the run that this process was started in, if any. `whole_process`: the process runs only this script, so the
    job began when the process did. Raises `UserError` if the run directory cannot be used.
    """
    session = Session(options, name, argv, job, whole_process)
    session.input.watch()
    current.begin(session)
    after_import("torch", session.begin)
    return session
