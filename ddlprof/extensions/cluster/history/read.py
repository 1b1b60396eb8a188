"""Reads histories of all kinds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from ddlprof.base.errors import UserError
from ddlprof.extensions.cluster.history import kubernetes, named, sacct
from ddlprof.extensions.cluster.history.past import KeptHistory, PastJob, kept, with_unique_names


def read_history(
    kind: str, paths: Sequence[Path], columns: Mapping[str, str] | None = None, queues: Collection[str] = ()
) -> KeptHistory:
    """The jobs in files of one kind, such as `sacct`, that can be simulated, and what was left out.

    `columns` names those of a CSV file by what they hold; `queues` are the only ones that are kept. Raises UserError in
    a line that names file and line.
    """
    jobs, left_out = _read(kind, paths, columns or {})
    found = kept(with_unique_names(jobs), frozenset(queues))
    found.left_out.update(left_out)
    if not found.jobs:
        why = "; ".join(found.notes())
        raise UserError(f"{', '.join(map(str, paths))}: no job ran on GPUs and ended{f' ({why})' if why else ''}")
    return found


def _read(kind: str, paths: Sequence[Path], columns: Mapping[str, str]) -> tuple[list[PastJob], Mapping[str, int]]:
    if kind == "kubernetes":
        return kubernetes.read(paths)
    if kind == "sacct":
        return sacct.read(paths)
    return [job for path in paths for job in named.read(path, columns)], {}
