"""What the host of a GPU takes to launch the operators of a step: how fast it is, and the seconds that follow.

Eager training in PyTorch is bound by one thread of Python where operators are small. Nothing that counts a model tells
how fast that thread is on another machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddlprof.base.units import significant
from ddlprof.instance_catalog import Catalog, Gpu
from ddlprof.instance_catalog.processors import single_thread_speed
from ddlprof.model.operators import CAST
from ddlprof.recommender.compute.kernel_time import Array, OperatorTable
from ddlprof.recommender.compute.operator_coefficients import HostCoefficients
from ddlprof.recommender.workload import Measurement

TYPICAL_LAUNCH_US = 30.0
"""From one small operator to the next in forward: twice the 15 us of a fast host. With these, forward passes in Kineto
traces of TraceLens take 1.1 to 2.7 times what is expected (H100, B200, MI300X; without the profiler's own time), and
LoRA of Qwen-1.8B on 256 tokens, which waits for its host, 2.1 times (A100)."""
_TYPICAL_SPEED = 3.5
"""What those hosts are taken for, as in `single_thread_speed`: between Cascade Lake and Sapphire Rapids."""
_PROBED_US = 10.0
"""What `ddlprof probe` finds on a processor of typical speed: 5.8 us on one of Zen 5 at about 4.1 GHz (November 2026),
with 1.17 times the instructions a clock of Zen 4 by AMD."""
_TIMED_US = 2.6
"""What a run times on one (`Measurement.launch_us`): 0.26 of the figure of a probe, whose operators are modules. Both
on one EPYC of the family Genoa (2.6 and 10.0 us, torch 2.13 on one thread, November 2026)."""
_SLOWER, _SLOWER_PROBED = 2.0, 1.5
"""How many times slower a host may be that was not measured, within an interval of 80 %: other jobs, virtual machines
and older Python slow it down, nothing makes it much faster. A statement, not a fit."""
_OF_A_TENSOR = {"_foreach_": 0.4, "_fused_": 0.25}
"""What the update of one tensor takes in Python, over one small operator in forward: torch 2.13's AdamW on a processor,
2.0 us with calls of `torch._foreach_*` left out and 1.4 us fused, where such an operator takes 5.7 us."""
CHECKPOINT_OPERATORS = 20.0
"""What torch's checkpointing of one block takes in Python beyond computing it again, in small operators: 19 to 21 by
reentrant checkpointing, of blocks of 12 operators on a processor (torch 2.13, November 2026: states of generators, an
autograd function, and a backward within backward). Without reentrance, hooks on saved tensors take more."""


@dataclass(frozen=True)
class Again:
    """What checkpointing computes again in backward, which Python launches as in forward."""

    calls: Array
    """How many calls of each operator."""
    blocks: float


@dataclass(frozen=True)
class Host:
    """How fast the host of a machine launches operators."""

    launch_us: float = TYPICAL_LAUNCH_US
    """Microseconds from one small operator to the next in the forward pass of a model."""
    slower: float = _SLOWER
    """How many times as long it may take; 1: it is known."""
    source: str = "typical, not measured"

    @property
    def text(self) -> str:
        """In words, for the basis of an estimate."""
        allowed = f", up to {self.slower:g} times as long is allowed for" if self.slower > 1 else ""
        return f"{significant(self.launch_us, 2)} us an operator ({self.source}{allowed})"


TYPICAL = Host()


def host_of(
    catalog: Catalog,
    gpu: Gpu | None,
    cpu_model: str | None,
    asked_us: float | None,
    runs: Sequence[Measurement] = (),
) -> Host:
    """The host of a machine: as asked for, as `ddlprof probe` measured it beside this GPU, as a run of the job or else
    a probe timed any processor (scaled by the speed of a thread), or a typical one of this processor."""
    if asked_us is not None:
        return Host(asked_us, 1.0, "as asked for")
    probed = catalog.reached_by(gpu.gpu_model) if gpu else None
    if probed is not None and probed.launch_us:
        return Host(probed.launch_us, 1.0, "measured by ddlprof probe")
    slow = _TYPICAL_SPEED / (single_thread_speed(cpu_model) or _TYPICAL_SPEED)
    for times, processor, how in (*_timed(runs), *_probed(catalog)):
        speed, source = single_thread_speed(processor), f"from {how} on {processor}"
        if speed is not None:
            return Host(TYPICAL_LAUNCH_US * slow * times * speed / _TYPICAL_SPEED, _SLOWER_PROBED, source)
        # Its thread may be fast or slow: what it took is no reason to expect less than is typical.
        return Host(TYPICAL_LAUNCH_US * slow * max(times, 1.0), _SLOWER, f"{source}, whose speed is not known")
    if slow == 1:
        return TYPICAL
    return Host(TYPICAL_LAUNCH_US * slow, _SLOWER, f"typical of {cpu_model}, not measured")


def _timed(runs: Sequence[Measurement]) -> list[tuple[float, str, str]]:
    """What hosts of runs took over what is typical, on which processor, and how it is known."""
    return [
        (run.launch_us / _TIMED_US, run.cpu_model or "a processor without a name", "the run")
        for run in runs
        if run.launch_us
    ]


def _probed(catalog: Catalog) -> list[tuple[float, str, str]]:
    """The same of probes without a GPU, the newest first."""
    gpus = {row.gpu_model for row in catalog.gpus}
    rows = sorted(catalog.reached, key=lambda row: row.measured_at, reverse=True)
    return [
        (row.launch_us / _PROBED_US, row.gpu_model, "ddlprof probe")
        for row in rows
        if row.launch_us and row.gpu_model not in gpus
    ]


def dispatch_seconds(
    table: OperatorTable, fitted: HostCoefficients, compiled: bool, launch_us: float, again: Again | None = None
) -> Array:
    """The host's seconds for all calls of each operator. Views are dispatched, too, at a third of the cost.

    No line of Python calls autocast's casts, which are taken for a half: on a processor (torch 2.13) one takes 0.64 of
    `tensor.to(bfloat16)`.
    """
    by_phase = {"forward": fitted.forward_s, "backward": fitted.backward_s, "optimizer": fitted.optimizer_s}
    seconds = np.array([by_phase.get(str(phase), fitted.forward_s) for phase in table.phase.tolist()])
    seconds = seconds * (launch_us * 1e-6 / fitted.forward_s) * (fitted.compiled if compiled else 1.0)
    each = np.where(table.launches > 0, np.maximum(1.0, table.launches / 2), 1 / 3)
    casts = np.isin(table.names, CAST) & (table.launches > 0)
    each = np.where(casts, table.launches / 2, each)
    dispatch_s: Array = each * table.count * seconds
    if again is None or compiled:  # one graph launches all of backward
        return dispatch_s
    forward_s = launch_us * 1e-6
    around_s = again.blocks * CHECKPOINT_OPERATORS * forward_s / max(float(again.calls.sum()), 1.0)
    return dispatch_s + again.calls * (each * (forward_s - seconds) + around_s)


def update_seconds(table: OperatorTable, launch_us: float) -> Array:
    """What Python takes beside that for the tensors of an update."""
    shares = [
        next((share for start, share in _OF_A_TENSOR.items() if kind == "optimizer" and name.startswith(start)), 0.0)
        for name, kind in zip(table.names, table.kind.tolist(), strict=True)
    ]
    return np.array(shares) * table.sizes[:, 1] * table.count * launch_us * 1e-6
