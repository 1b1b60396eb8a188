"""What a rank does with the other ranks once there is a process group, and the hooks of communication.

It agrees on the directory, times the links and installs the hooks, in this order and outside of any step. The training
waits a second or two at most. What is not done by then is left to the helper thread (`poll`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddlprof.base.real_time import time
from ddlprof.collect.job import directory as directories
from ddlprof.collect.job.rank_output import RankOutput
from ddlprof.collect.recorder import Recorder
from ddlprof.model.records import PROFILING

if TYPE_CHECKING:
    from ddlprof.collect.job.agreement import Agreement, Follow, Lead


class RankGroup:
    """What one process does together with the other ranks. Its methods raise nothing."""

    def __init__(
        self, rank_output: RankOutput, recorder: Recorder, calibrated: bool, install: Callable[[], None]
    ) -> None:
        """`install`: installs the hooks of communication."""
        self.in_group = False
        self._install = install
        self._rank_output = rank_output
        self._recorder = recorder
        self._calibrated = calibrated
        self._agreed: Agreement | None = None
        self._lead: Lead | None = None
        self._follow: Follow | None = None
        self._give_up_s = 0.0
        self._agreeing = threading.Lock()

    @property
    def undecided(self) -> bool:
        """Whether rank 0 has not yet told where this rank writes its files."""
        return self._follow is not None

    def on_process_group(self) -> None:
        """Called in the training thread when the default process group has been made."""
        note = self._rank_output.writer.note
        try:
            import torch.distributed as dist

            self._rank_output.join(dist.get_rank(), dist.get_world_size())
            if self._rank_output.world_size > 1 and not self.in_group:
                with self._agreeing:
                    self._agree(dist)
        except Exception as error:
            note("process_group", f"{type(error).__name__}: {error}")
        again, self.in_group = self.in_group, True
        if not again and self._recorder.active:
            if self._calibrated and self._rank_output.world_size > 1:
                self._calibrate()
            self.install()

    def install(self) -> None:
        """Installs the hooks of communication if torch.distributed is available."""
        if self.in_group:
            self._install()

    # -- agreement ------------------------------------------------------------------------------------------------

    def _agree(self, dist: Any) -> None:
        """Agrees with the other ranks on directory, job and attempt, which rank 0 proposes."""
        rank_output = self._rank_output
        if rank_output.rank == 0 and rank_output.directory is None:  # by the environment this process was another rank
            return
        from ddlprof.collect.job.agreement import LATE_S, Agreement, Follow, Lead, shared_store

        self._give_up_s = time.perf_counter() + LATE_S
        store = shared_store(dist)
        if rank_output.rank == 0:
            proposal = Agreement(str(rank_output.directory), rank_output.header.job_id, rank_output.header.attempt)
            self._lead = Lead(store, rank_output.world_size, proposal)
            self._settle(self._lead.agree())
            if not self._lead.silent:
                self._lead = None  # also drops the store, which holds a port
        else:
            free_attempt = directories.free_attempt(rank_output.directory) if rank_output.directory else 0
            self._follow = Follow(store, rank_output.rank, free_attempt)
            self._settle(self._follow.agree())

    def _settle(self, agreed: Agreement | None) -> None:
        if agreed is not None:
            self._agreed, self._follow = agreed, None
            self._rank_output.agree(agreed)

    def poll(self, last: bool = False) -> None:
        """Called about once a second in the helper thread: answers ranks that came late, or reports them."""
        if self._agreeing.acquire(blocking=False):
            try:
                self._tend(last)
            finally:
                self._agreeing.release()

    def _tend(self, last: bool) -> None:
        if self._lead is None and self._follow is None:
            return
        import torch.distributed as dist

        over = last or time.perf_counter() > self._give_up_s or not dist.is_initialized()
        try:
            if self._lead is not None:
                self._lead.poll()
            elif self._follow is not None:
                self._settle(self._follow.poll())
        except Exception:  # the store is closed: the script has ended its group, or another rank has ended
            over = True
        if over or (self._lead is not None and not self._lead.silent):
            self._end_agreement()

    def _end_agreement(self) -> None:
        note, world_size = self._rank_output.writer.note, self._rank_output.world_size
        if self._lead is not None and self._lead.silent:
            there = world_size - self._lead.silent
            note("ranks", f"{there} of {world_size} ranks run under ddlprof: start the others with it, too")
        if self._follow is not None:
            note("ranks", "rank 0 does not run under ddlprof: start it with ddlprof, too")
        self._lead = self._follow = None

    # -- calibration ----------------------------------------------------------------------------------------------

    def _calibrate(self) -> None:
        """Times transfers inside this machine, before the training and before the hooks."""
        rank_output, begin = self._rank_output, time.perf_counter_ns()
        try:
            import torch
            import torch.distributed as dist

            from ddlprof.collect.job import calibration
            from ddlprof.collect.job.calibration import read_clocks

            if self._agreed is None:
                raise RuntimeError("rank 0 is not run by ddlprof")
            store = self._agreed.store(dist)
            nodes = calibration.exchange_nodes(dist, store, rank_output.header.node_id)
            rank_output.beside = [
                each for each, node in enumerate(nodes) if node == nodes[rank_output.rank] and each != rank_output.rank
            ]
            for reading in read_clocks(rank_output.rank, store, nodes):
                rank_output.writer.context(reading)
            points = calibration.calibrate(dist, torch, store, nodes)
        except Exception as error:  # interconnect and network are then not told apart
            rank_output.writer.note("calibration", f"not done: {type(error).__name__}: {error}")
            return
        finally:
            self._recorder.spans.append((PROFILING, begin, time.perf_counter_ns()))
        for point in points:
            rank_output.writer.context(point)
        if points and rank_output.manifest is not None:
            rank_output.manifest.calibration = {
                "ranks": points[0].ranks,
                "seconds": round((time.perf_counter_ns() - begin) / 1e9, 3),
            }
