"""One profiled process: installs the hooks when torch is there, runs the helper thread, and takes everything back.

`start` comes before the user's script and `finish` after it. After `start` nothing here raises.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddlprof.collect import directory as directories
from ddlprof.collect.agreement import Agreement, follow, lead, shared_store
from ddlprof.collect.attribution import StepAssembler
from ddlprof.collect.context import ContextSampler
from ddlprof.collect.facts import new_manifest, update_manifest
from ddlprof.collect.helper import Helper
from ddlprof.collect.hooks import Uninstall
from ddlprof.collect.input import Input
from ddlprof.collect.on_import import after_import
from ddlprof.collect.probe import Probe
from ddlprof.collect.real_time import time
from ddlprof.collect.recorder import Recorder
from ddlprof.collect.sums import Step
from ddlprof.collect.topology import node_identity
from ddlprof.collect.untraced import leave_to_python
from ddlprof.collect.writer import RankWriter
from ddlprof.model.errors import UserError, complain
from ddlprof.model.experiment import Experiment
from ddlprof.model.manifest import Manifest
from ddlprof.model.options import Options
from ddlprof.model.reads import reads_name
from ddlprof.model.records import End, Flag, RankHeader

_SEARCH_STEPS = 3
"""Outermost modules are looked for during so many steps."""
_SEARCHES = 5
_LEARN_AT_STEP = 3
_UNUSUAL = Flag.EPOCH_START | Flag.EVALUATION | Flag.CHECKPOINT | Flag.COMPILE | Flag.TRACED
WARMUP_STEPS = 20
"""`--stop-after` counts after these: as many as the analysis ever takes for warm-up."""


def _environment(name: str, default: int = 0) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default


class Session:
    """Made by `start`."""

    def __init__(self, options: Options, name: str, argv: list[str]) -> None:
        self.options = options
        self.experiment = Experiment.from_environment()
        self.pid = os.getpid()
        self.rank = _environment("RANK")
        self.world_size = max(1, _environment("WORLD_SIZE", 1))
        self.origin_ns, origin_unix_ns = time.perf_counter_ns(), time.time_ns()
        start = directories.Start.from_environment()
        attempt, job_id = start.restarts, options.job_id or ""  # unless rank 0 says otherwise
        self.directory: Path | None = None
        self.manifest: Manifest | None = None
        self._agreement: Agreement | None = None
        if self.rank == 0:
            claim = directories.claim(options, name, start)
            self.directory, attempt, job_id = claim.path, claim.attempt, claim.job_id
            directories.create(self.directory)
            self.manifest = new_manifest(name, argv, job_id, self.world_size, origin_unix_ns)
            directories.write_manifest(self.manifest, self.directory)
        elif options.out:
            self.directory = Path(options.out).absolute()
        self.header = RankHeader(
            rank=self.rank,
            world_size=self.world_size,
            local_rank=_environment("LOCAL_RANK"),
            attempt=attempt,
            host=socket.gethostname(),
            node_id=node_identity(),
            pid=self.pid,
            device="cpu",
            clock="host",
            origin_ns=self.origin_ns,
            origin_unix_ns=origin_unix_ns,
            job_id=job_id,
            launcher=start.launcher,
        )
        self.recorder = Recorder()
        self.probe = Probe(self.recorder)
        self.assembler = StepAssembler(self.origin_ns, options.step_optimizer)
        self.writer = RankWriter(self.header)
        self.helper = Helper(
            self.recorder, self.assembler, self.writer, ContextSampler(self.origin_ns), self._on_step
        )  # fmt: skip
        self._uninstalls: list[Uninstall] = []
        self._modules: Any = None
        self.input = Input(self.recorder, self.probe.iterated, options.data_calls)
        self._in_group = False
        self._searches = 1
        self._search_until = _SEARCH_STEPS
        self._at_next_update: deque[Callable[[], None]] = deque()
        self.recorder.at_update = self._at_update
        self.recorder.note = self.writer.note
        self._steps = self._steady = 0
        self._over = self._warned = False

    # -- hooks ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Called right after the script's first `import torch`: a script without it gets no second thread."""
        try:
            self.install()
            self.helper.start()
        except Exception as error:  # fail open: it would be an error of that import
            self.uninstall()
            self.writer.note("hooks", f"nothing is measured: {type(error).__name__}: {error}")

    def install(self) -> None:
        """Installs all hooks."""
        import torch

        from ddlprof.collect.hooks import backward, checkpoint, compiled, copies, graphs, module, operators, optimizer
        from ddlprof.collect.hooks.process_group import install as install_process_group

        leave_to_python(torch)
        probe = self.probe

        def modules() -> Uninstall:
            self._modules = module.install(self.recorder, self._training_forward)
            uninstall: Uninstall = self._modules.uninstall
            return uninstall

        steps = optimizer.Steps(self.recorder)
        self._try("data", self.input.install)
        self._try("module", modules)
        self._try("optimizer", lambda: optimizer.install(self.recorder, steps))
        self._try("compiled", lambda: compiled.install(self._modules, steps))
        self.assembler.boundaries.optimizer_exists = optimizer.exists
        self._try("checkpoint", lambda: checkpoint.install(self.recorder))
        self._try("process_group", lambda: install_process_group(self._on_process_group))
        self._backward_over: Callable[[], None] = lambda: None

        def after_each() -> None:
            self._backward_over()

        self._try("backward", lambda: backward.install(self.recorder, probe.backward_begin, after_each))
        self._try("operators", lambda: operators.install(self.recorder.loop))
        if torch.version.cuda or torch.version.hip:
            self._try("h2d", lambda: copies.install(self.recorder, torch))
            self._try("graphs", lambda: graphs.install(torch, self.helper.device_free))
        experiment = self.experiment
        if experiment is not None:
            self._try("experiment", lambda: self._install_experiment(experiment))

    def _install_experiment(self, experiment: Experiment) -> Uninstall:
        """Comes last: it counts on the hooks of the loader and the optimizer."""
        import torch

        from ddlprof.collect.experiment import install

        leave_to_python(torch)
        reads = (self.directory or Path()) / reads_name(self.rank)
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
        if self._in_group and self.world_size > 1:
            self._try("comm", self._install_collectives)
        if known:
            for module in known:
                self._modules.adopt(module)
            self._modules.settle()

    def _training_forward(self, module: Any) -> None:
        if self.header.clock == "host" and self.recorder.boundaries <= _SEARCH_STEPS:
            self._look_for_device()
        self.probe.training_forward(module)

    def _look_for_device(self) -> None:
        """Changes over to the device's clock once the script uses one."""
        import torch

        if torch.cuda.is_initialized():
            from ddlprof.collect.device import UNSTAMPED, cuda_clock
            from ddlprof.collect.windows import cuda_windows

            try:
                clock = cuda_clock(torch)
                name = torch.cuda.get_device_name()
            except Exception as error:
                self.writer.note("device", f"not measured: {type(error).__name__}: {error}")
                return
            self.header = self.writer.header = replace(self.header, device=name, clock="device")
            self.helper.device = clock
            self.recorder.unstamped = UNSTAMPED
            self.recorder.clock = clock
            self.recorder.loop.gaps = False  # what the host does between two calls, the device need not notice
            self.helper.windows = cuda_windows(self.recorder, torch)

    # -- distributed jobs -----------------------------------------------------------------------------------------

    def _on_process_group(self) -> None:
        """After init_process_group, in the training thread."""
        try:
            import torch.distributed as dist

            if self._over or os.getpid() != self.pid:
                return
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
            self.header = self.writer.header = replace(self.header, rank=self.rank, world_size=self.world_size)
            if self.world_size > 1 and not self._in_group:
                self._agree(dist)
        except Exception as error:
            self.writer.note("process_group", f"{type(error).__name__}: {error}")
        again, self._in_group = self._in_group, self.world_size > 1
        if self._in_group and not again and self.recorder.active:
            if self.options.calibrate:
                self._calibrate()
            self._try("comm", self._install_collectives)

    def _calibrate(self) -> None:
        """Before the training, and before the hooks: times transfers inside this machine."""
        begin = time.perf_counter()
        try:
            import torch
            import torch.distributed as dist

            from ddlprof.collect import calibration
            from ddlprof.collect.clock_reading import read_clocks

            if self._agreement is None:
                raise RuntimeError("rank 0 is not run by ddlprof")
            store = self._agreement.store(dist)
            nodes = calibration.exchange_nodes(dist, store, self.header.node_id)
            for reading in read_clocks(self.rank, store, nodes):
                self.writer.context(reading)
            rungs = calibration.calibrate(dist, torch, store, nodes)
        except Exception as error:  # fail open: interconnect and network are then not told apart
            self.writer.note("calibration", f"not done: {type(error).__name__}: {error}")
            return
        for rung in rungs:
            self.writer.context(rung)
        if rungs and self.manifest is not None:
            self.manifest.calibration = {"ranks": rungs[0].ranks, "seconds": round(time.perf_counter() - begin, 3)}

    def _agree(self, dist: Any) -> None:
        """On directory, job and attempt: rank 0 proposes."""
        if self.rank == 0 and self.directory is None:  # the environment gave this process another rank
            return
        store = shared_store(dist)
        if self.rank == 0:
            proposal = Agreement(str(self.directory), self.header.job_id, self.header.attempt)
            agreed: Agreement | None = lead(store, self.world_size, proposal)
        else:
            agreed = follow(store, self.rank, directories.free_attempt(self.directory) if self.directory else 0)
        if agreed is None:
            return
        self._agreement = agreed
        self.header = self.writer.header = replace(self.header, attempt=agreed.attempt, job_id=agreed.job_id)
        if self.directory is None:
            self.directory = Path(agreed.directory)
        if self.manifest is not None:
            self.manifest.job_id, self.manifest.world_size = agreed.job_id, self.world_size

    def _install_collectives(self) -> Uninstall:
        import torch

        from ddlprof.collect.hooks import collectives

        leave_to_python(torch)
        uninstall, self._backward_over = collectives.install(self.recorder)
        return uninstall

    # -- the helper thread's calls --------------------------------------------------------------------------------

    def _on_step(self, step: Step) -> None:
        self._steps += 1
        if self._steps == 1:
            self._open()
        if self._modules is not None and self.recorder.boundaries >= self._search_until:
            self._tend_search(step)
        if self._steps == _LEARN_AT_STEP:
            self._learn(step)
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
        self.helper.at_update(updates)

    def _open(self) -> None:
        """Begins to write this rank's files."""
        if self.directory is None:
            self.writer.failure = "the run directory is not known, as no process group was initialised"
        else:
            try:
                if self.manifest is None and self.header.job_id:
                    directories.require_same_job(self.directory, self.header.job_id)
                self.writer.open(self.directory)
            except UserError as error:
                self.writer.failure = str(error)
            except OSError as error:
                self.writer.failure = f"{self.directory}: {error.strerror or error}"
        if self.writer.failure:
            self._warn(f"{self.writer.failure}: rank {self.rank} is not recorded; the training goes on")

    def _learn(self, step: Step | None) -> None:
        if self.manifest is not None and self.directory is not None:
            try:
                update_manifest(self.manifest, self.probe, self.assembler, step.row if step else None)
                directories.write_manifest(self.manifest, self.directory)
            except Exception as error:
                self.writer.note("manifest", f"{type(error).__name__}: {error}")

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self, status: str, exit_code: int) -> None:
        """Writes what is left. Does nothing in a forked child."""
        if os.getpid() != self.pid or self._over:
            return
        self._over = True
        stopped = self.options.stop_after is not None and self._steady >= self.options.stop_after
        self.uninstall()
        self.helper.stop()
        if not self._steps:
            self._open()
        self._learn(None)
        self._say_what_ends_a_step()
        if self.recorder.failure:
            self.writer.note("recorder", f"stopped recording: {self.recorder.failure}")
        for message in self.input.close():
            self.writer.note("data", message)
        if self.recorder.lost:
            self.writer.note("recorder", f"events lost, as the helper thread got no time: {self.recorder.lost}")
        end = time.perf_counter_ns() - self.origin_ns
        self.writer.context(End("stopped" if stopped and status == "ok" else status, exit_code, end))
        self.writer.close()
        if self.writer.failure and not self._warned:
            self._warn(f"{self.writer.failure}; the last steps are not recorded")

    def _say_what_ends_a_step(self) -> None:
        note = self.assembler.boundaries.note()
        if note is not None:
            self.writer.note("optimizer", note)

    def forked(self) -> None:
        """In a child made by fork: the hooks it inherited do nothing."""
        self.recorder.active = False

    def _warn(self, message: str) -> None:
        self._warned = True
        if not self.options.quiet:
            complain(message)


def start(options: Options, name: str, argv: list[str]) -> Session:
    """Begins to profile this process. `name`: short name of the job; `argv`: the script and its arguments.

    Raises UserError where the run directory cannot be used.
    """
    session = Session(options, name, argv)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=session.forked)
    session.input.watch()
    after_import("torch", session.begin)
    return session
