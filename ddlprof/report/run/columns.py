"""The columns of the tables of a run: their types, what they mean, and when they are empty.

The unit is the end of a column's name: `_s` seconds, `_bytes` bytes, `_gb_s` 1e9 bytes a second. Shares are between 0
and 1.
"""

from __future__ import annotations

from typing import NamedTuple

from ddlprof.model.annotations import StepColumn, annotated_with
from ddlprof.model.classes import CLASSES, MEANINGS, OPTIONAL, TIMES
from ddlprof.model.records import StepRow


class RunColumn(NamedTuple):
    type: type
    meaning: str
    empty: str = ""
    """When it is empty; without a text, never."""


Described = dict[str, RunColumn]

OF_STEP = {name: f"{name[:-3]}_s" if name.endswith("_ns") else name for name in annotated_with(StepRow, StepColumn)}
"""The columns of the fields of a step's record, but for its classes."""
_UNMATCHED = "the ranks' clocks or calls do not tell"
_OF_RANK = {
    "attempt": RunColumn(int, "how often the job's ranks had been started before"),
    "rank": RunColumn(int, "the number of the rank in its job"),
    "node": RunColumn(int, "the number of its machine"),
}


def _times(always: set[str]) -> Described:
    return {
        f"{name}_s": RunColumn(
            float, MEANINGS[name] or f"of it, {name.partition('_')[2]}", "" if name in always else "not measured"
        )
        for name in TIMES
    }


def _of_record() -> Described:
    return {
        OF_STEP[name]: RunColumn(float if OF_STEP[name].endswith("_s") else int, each.meaning, each.empty)
        for name, each in annotated_with(StepRow, StepColumn).items()
    }


def _steps() -> Described:
    own = _of_record()
    flags = own.pop("flags")._replace(type=str)
    first = {name: own.pop(name) for name in ("step", "start_s")}
    return {**_OF_RANK, **first, **_times({"step", *CLASSES} - set(OPTIONAL)), **own, "flags": flags}


_COLLECTIVES = {
    "attempt": _OF_RANK["attempt"],
    "rank": _OF_RANK["rank"],
    "step": RunColumn(int, "the step in which it began"),
    "group": RunColumn(str, "the process group; of point-to-point messages with sender and receiver"),
    "seq": RunColumn(int, "its number in its group, from 0"),
    "op": RunColumn(str, "the operation, such as allreduce"),
    "bytes": RunColumn(int, "the bytes of its tensors on this rank"),
    "ranks": RunColumn(int, "the number of ranks in the group"),
    "scope": RunColumn(str, "where it went: interconnect (inside a machine) or network", "not known"),
    "start_s": RunColumn(float, "when this rank issued it, counted from the start of the run"),
    "ready_s": RunColumn(float, "when its data were there, counted in the same way"),
    "duration_s": RunColumn(float, "from its start on this rank to its end", "its end was not measured"),
    "transfer_s": RunColumn(float, "of it, after the last rank had arrived: moving data", _UNMATCHED),
    "wait_s": RunColumn(float, "of it, waiting for the last rank to arrive", _UNMATCHED),
    "exposed_s": RunColumn(float, "the part for which computing waits; the rest is beside computing"),
    "busbw_gb_s": RunColumn(float, "bus bandwidth as NCCL's tests define it, over transfer_s", _UNMATCHED),
    "dimension": RunColumn(str, "the dimension of the parallel layout, such as data or tensor", "not known"),
}
_RANKS = {
    "attempt": _OF_RANK["attempt"],
    "rank": _OF_RANK["rank"],
    "host": RunColumn(str, "the name of its machine"),
    "node": _OF_RANK["node"],
    "device": RunColumn(str, "what it trained on: the model of a GPU, or cpu"),
    "status": RunColumn(str, "how it ended: ok, exception, exit, interrupt, stopped, or torn where it did not say so"),
    "complete": RunColumn(bool, "whether it said how it ended"),
    "steps": RunColumn(int, "the steps that ended"),
    "steady_steps": RunColumn(int, "of them, those in the means that follow"),
    **{name: each._replace(empty="not measured") for name, each in _times(set()).items()},
}
_SUMMARY = {
    "class": RunColumn(str, "step, a class, a part of one, or communication of one dimension (comm_tensor, ...)"),
    "mean_s": RunColumn(float, "the mean over the steady steps of all ranks", "not measured"),
    "share": RunColumn(float, "the mean as a share of the mean step", "not measured"),
    "median_s": RunColumn(float, "the median step's", "not measured"),
    "p95_s": RunColumn(float, "the 95th percentile", "not measured"),
}
_JOB = {
    "attempt": _OF_RANK["attempt"],
    "part": RunColumn(str, "a part of the wall time, see the page on the whole job"),
    "seconds": RunColumn(float, "its seconds", "not measured"),
    "share": RunColumn(float, "as a share of the wall time", "not measured"),
}
_RATES = {
    "rate": RunColumn(str, "samples_per_s, tokens_per_s, mfu, power_w, ...: the unit is the end of the name"),
    "value": RunColumn(float, "its value over the steady steps, of all ranks together unless per GPU", "not known"),
}
_PHASES = {
    "attempt": _OF_RANK["attempt"],
    "phase": RunColumn(int, "its number on the card; phases that train the same are one"),
    "first_step": RunColumn(int, "the step with which it began, for the first time"),
    "model": RunColumn(str, "the class of the model", "not known"),
    "optimizer": RunColumn(str, "the class of the optimizer"),
    "steps": RunColumn(int, "the steps of one rank"),
    "mean_s": RunColumn(float, "the mean of the steady ones, of all ranks", "it has none"),
    "share": RunColumn(float, "its share of the time of all steps"),
    "shown": RunColumn(bool, "whether the means of the other files are of it"),
}
RUN_COLUMNS: dict[str, Described] = {
    "summary": _SUMMARY,
    "ranks": _RANKS,
    "job": _JOB,
    "rates": _RATES,
    "phases": _PHASES,
    "collectives": _COLLECTIVES,
    "steps": _steps(),
}
"""The columns of every table in their order."""
