"""The record of a step from its sums: what was not measured is None, and its time is in `other`."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from ddlprof.collect.steps.compute_parts import ComputeParts
from ddlprof.collect.steps.gaps import LEAST_IDLE_SHARE
from ddlprof.collect.steps.sums import Sums
from ddlprof.model.records import StepRow


class Span(NamedTuple):
    """Which step it is, and when it was."""

    number: int
    start_ns: int
    step_ns: int


def make_row(
    span: Span, sums: Sums, parts: ComputeParts, unmeasured: Set[str], peak_memory_bytes: int | None
) -> StepRow:
    """`parts` are taken: they begin anew. `unmeasured`: classes whose hooks are not installed, or saw nothing."""
    step_ns = span.step_ns
    data = None if "data" in unmeasured else sums.data
    h2d = None if "h2d" in unmeasured else sums.h2d
    comm = None if "comm" in unmeasured or sums.unseen or sums.unawaited else sums.comm
    without_idle = sums.idle >= LEAST_IDLE_SHARE * step_ns
    compute = None if "compute" in unmeasured else sums.compute - (sums.idle if without_idle else 0)
    taken = parts.take(without_idle)
    forward, backward, optimizer = taken if taken is not None and compute is not None else (None, None, None)
    split = data is not None and (sums.split_seen or data == 0)
    # A wait in which a step ended counts in the next.
    fetch = min(int(sums.data_fetch), sums.data) if split else None
    other = step_ns - (compute or 0) - (data or 0) - (h2d or 0) - (comm or 0)
    return StepRow(
        step=span.number,
        start_ns=span.start_ns,
        step_ns=step_ns,
        compute_ns=compute,
        compute_forward_ns=forward,
        compute_backward_ns=backward,
        compute_optimizer_ns=optimizer,
        data_ns=data,
        data_fetch_ns=fetch,
        data_prep_ns=min(int(sums.data_prep), sums.data - (fetch or 0)) if split else None,
        h2d_ns=h2d,
        comm_ns=comm,
        other_ns=other,
        rollout_ns=min(sums.rollout, other),
        microbatches=sums.microbatches,
        samples=sums.samples or sums.forward_samples or None,
        flags=int(sums.flags),
        peak_memory_bytes=peak_memory_bytes,
        device_lag_ns=sums.device_lag_ns,
    )
