"""Where this process records: its rank, its files in the run directory and, for rank 0, the manifest.

The process that `ddlprof run` starts chooses the directory. Processes started by the script or a launcher are told of
it. As they may not be trainings, they write nothing before they have made a process group or trained a step.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import UserError
from ddlprof.base.guarded import attempt
from ddlprof.base.real_process import getpid
from ddlprof.base.real_time import time
from ddlprof.collect.facts.counters import peak_rss_bytes
from ddlprof.collect.facts.machine import PACKAGES, host_facts, versions
from ddlprof.collect.facts.redact import redact
from ddlprof.collect.job import directory as directories
from ddlprof.collect.job import environment
from ddlprof.collect.job.environment import node_identity
from ddlprof.model.manifest import Manifest
from ddlprof.model.options import Options, ParentRun
from ddlprof.model.records import End, RankHeader, StepRow
from ddlprof.model.unwritten_end import unwritten_end_name
from ddlprof.writing.writer import RankWriter, rank_files

if TYPE_CHECKING:
    from ddlprof.collect.facts.model_inspector import ModelInspector
    from ddlprof.collect.job.agreement import Agreement
    from ddlprof.collect.steps.attribution import StepAssembler
    from ddlprof.operators.parallel import Parallelism

_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EINTR, errno.EAGAIN)
"""Errors of file systems that may be over a little later."""
_MOST_TRIES = 10
"""How often files are tried to be opened, about once a second."""


class RankOutput:
    """Where one process records. `job`: the run in which this process was started; None in the first process.

    Raises UserError if the directory cannot be used.
    """

    def __init__(self, options: Options, name: str, argv: list[str], job: ParentRun | None) -> None:
        self.inherited = job is not None
        self.grouped = False
        """Whether the process belongs to a process group."""
        self.beside: list[int] | None = None
        """The other ranks on this machine; None if they are not known."""
        self._opened = self._has_operators = False
        self._tries = 0
        self.origin_ns, origin_unix_ns = time.perf_counter_ns(), time.time_ns()
        start = environment.ElasticLaunch.from_environment()
        job_id = job.job_id if job else options.job_id or ""  # rank 0 may choose another one
        out = job.directory if job else options.out
        self.directory = Path(out).absolute() if out else None
        self.manifest: Manifest | None = None
        self._name, self._argv, self._chosen = name, argv, not out
        header = RankHeader(
            rank=environment.rank(),
            world_size=environment.world_size(),
            local_rank=environment.local_rank(),
            attempt=start.restarts,
            host=socket.gethostname(),
            node_id=node_identity(),
            pid=getpid(),
            device="cpu",
            clock="host",
            origin_ns=self.origin_ns,
            origin_unix_ns=origin_unix_ns,
            job_id=job_id,
            launcher=start.launcher,
        )
        self.writer = RankWriter(header)
        if self.rank == 0 and job is None:
            claim = directories.claim(options, name, start)
            self.directory = claim.path
            self.change(attempt=claim.attempt, job_id=claim.job_id)
            directories.create(self.directory)
            self._new_manifest()
            self._write_manifest()

    @property
    def header(self) -> RankHeader:
        """The header as it is written, or will be written."""
        return self.writer.header

    @property
    def rank(self) -> int:
        """The rank as far as it is known now."""
        return self.header.rank

    @property
    def world_size(self) -> int:
        """The world size as far as it is known now."""
        return self.header.world_size

    def change(self, **fields: Any) -> None:
        """Changes fields of the header, before it is written."""
        self.writer.header = replace(self.header, **fields)

    def join(self, rank: int, world_size: int) -> None:
        """Takes rank and world size from the process group."""
        self.grouped = True
        if self._opened:
            return
        self.change(rank=rank, world_size=world_size)
        if rank != 0:
            self._give_up_manifest()
        elif self.directory is not None:
            if self.inherited:
                self.change(attempt=directories.free_attempt(self.directory))
            if self.manifest is None:
                self._new_manifest()

    def agree(self, agreed: Agreement) -> None:
        """Takes over the agreement of the ranks."""
        self.change(attempt=agreed.attempt, job_id=agreed.job_id)
        if self.directory is None:
            self.directory = Path(agreed.directory)
        if self.manifest is not None:
            self.manifest.job_id, self.manifest.world_size = agreed.job_id, self.world_size

    def open(self, last: bool = False) -> bool:
        """Opens this rank's files. `writer.failure` says why if that fails.

        Returns False if it may succeed a little later, as on a file system that is away for a moment; not at the `last`
        try.
        """
        self._opened = True
        self._tries += 1
        try:
            self._open()
        except UserError as error:
            self.writer.failure = str(error)
        except OSError as error:
            if error.errno in _PASSING and not last and self._tries < _MOST_TRIES:
                return False
            self.writer.failure = f"{self.directory}: {error.strerror or error}"
        return True

    def _open(self) -> None:
        if self.directory is None:
            why = "rank 0 is not run by ddlprof" if self.grouped else "no process group was initialised"
            raise UserError(f"the run directory is not known, as {why}")
        if self.manifest is None and self.header.job_id:
            directories.require_same_job(self.directory, self.header.job_id)
        if self._taken() and self.world_size == 1 and (self.grouped or not self.inherited):
            self.change(attempt=directories.free_attempt(self.directory))  # another process was first
        if self._taken() and directories.is_of_this_process(self.directory, self.header):
            self.change(attempt=directories.free_attempt(self.directory))  # before it became the present program
        try:
            self.writer.open(self.directory)
        except FileExistsError:
            if self.grouped or not self.inherited:
                raise
            raise UserError("another process of this run trains, too, and they are not of one process group") from None
        if self.rank == 0 and self.inherited:
            if self.manifest is None:
                self._new_manifest()
            self._write_manifest()

    def told_end(self, end: End) -> None:
        """Called when the files are closed: on a full disk, a name says how the rank ended."""
        if self.directory is not None and (self.writer.failure or "").startswith(_FULL):
            text, _ = rank_files(self.directory, self.header.attempt, self.rank)
            with suppress(OSError):
                if text.stat().st_size:
                    text.with_name(unwritten_end_name(self.rank, end)).touch()

    def learn(
        self,
        probe: ModelInspector | None,
        assembler: StepAssembler,
        row: StepRow | None,
        parallelism: Parallelism | None = None,
    ) -> None:
        """Updates rank 0's manifest with what is known now. `probe`: None before the script has imported torch."""
        if self.manifest is not None and self.directory is not None:
            try:
                self.manifest.training.peak_process_memory_bytes = peak_rss_bytes()
                if probe is not None:
                    from ddlprof.collect.facts.manifest import update_manifest

                    update_manifest(self.manifest, probe, assembler, row, parallelism)
                self._write_manifest()
                if probe is not None:
                    self._write_operators(probe)
            except Exception as error:
                self.writer.note("manifest", f"{type(error).__name__}: {error}")
        if row is not None and probe is not None:
            probe.forget_graphs()

    def time_launches(self) -> None:
        """Times how fast this host launches operators, for rank 0's manifest. The training has ended."""
        torch = sys.modules.get("torch")
        if self.manifest is not None and torch is not None:
            from ddlprof.collect.facts.launches import launch_us

            self.manifest.training.launch_us = attempt(lambda: launch_us(torch))

    def left_to_others(self) -> bool:
        """Whether a process that trained no step has nothing to record, as another process of the run trains."""
        if self.grouped:
            return False
        return self.inherited or self._taken()

    def _taken(self) -> bool:
        """Whether another process of this run is rank 0."""
        files = rank_files(self.directory or Path(), self.header.attempt, 0)
        return self.rank == 0 and any(file.exists() for file in files)

    def _new_manifest(self) -> None:
        """Makes the manifest before the script runs. `facts.manifest` adds what is learned from the training."""
        header = self.header
        self.manifest = Manifest(
            name=self._name,
            argv=[*self._argv[:1], *redact(self._argv[1:])],  # the script is no secret
            job_id=header.job_id,
            created_unix_ns=time.time_ns(),
            world_size=header.world_size,
            origin_unix_ns=header.origin_unix_ns,
            working_directory=os.getcwd(),
            versions=versions(PACKAGES),
            host=host_facts(),
        )

    def _write_manifest(self) -> None:
        if self.manifest is not None and self.directory is not None:
            directories.write_manifest(self.manifest, self.directory)

    def _write_operators(self, probe: ModelInspector) -> None:
        """Writes the operators, once, as soon as everything is known that they are computed from."""
        if self._has_operators or self.manifest is None or self.directory is None:
            return
        try:
            from ddlprof.collect.facts.manifest import step_record
            from ddlprof.model.operators import OperatorsFile

            step = step_record(probe, self.manifest)
            if step is not None:
                OperatorsFile(self.manifest.job_id, step).write(self.directory)
                self._has_operators = True
        except Exception as error:
            probe.failed("operators", error)

    def _give_up_manifest(self) -> None:
        """Drops the manifest: this process turned out not to be rank 0."""
        if self.manifest is not None and self.directory is not None and not self.inherited:
            directories.remove_unused(self.directory)
            if self._chosen:
                self.directory = None
        self.manifest = None
