"""Reads the operators of a step from a run's files. As everywhere, nothing in the file is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddlprof.base.reading import NOT_NEGATIVE, ReadingError, decode, versioned_object
from ddlprof.model.manifest import OPERATORS_NAME, Manifest
from ddlprof.model.operators import OPERATORS_SCHEMA, Operator, StepOperators
from ddlprof.model.records import Note
from ddlprof.store.parts import RunPart

MAX_BYTES = 8 << 20
"""The largest file in bytes: several times the size of the longest record."""
_WITHOUT = ": the operators of its step are not known"


@dataclass(frozen=True)
class _File:
    """The fields of the file; see `OperatorsFile`."""

    job_id: str
    schema: int
    step: StepOperators
    operators: tuple[Operator, ...]


def read_operators(parts: Sequence[RunPart], manifest: Manifest | None) -> tuple[StepOperators | None, list[Note]]:
    """The operators of a step of the manifest's job, with notes on files left out.

    The operators are None if no file has those of this job.
    """
    found: StepOperators | None = None
    notes: list[Note] = []
    for part in parts:
        if part.operators is None or manifest is None or found is not None:
            continue
        try:
            job_id, step = _decoded(next(part.folder.contents([part.operators])))
        except ValueError as error:
            notes.append(Note(OPERATORS_NAME, f"unreadable ({error}){_WITHOUT}"))
            continue
        if job_id == manifest.job_id:
            found = step
        else:
            notes.append(Note(OPERATORS_NAME, f"belongs to another job and is left out{_WITHOUT}"))
    return found, notes


def _decoded(content: bytes | ReadingError) -> tuple[str, StepOperators]:
    """The job's id and its operators. Raises ValueError if the file is damaged or of a newer version."""
    value = versioned_object(content, OPERATORS_SCHEMA, MAX_BYTES)
    if isinstance(step := value.get("step"), dict):
        value["step"] = {**step, "operators": []}
    file = decode(_File, value, numbers_are=NOT_NEGATIVE)
    step = replace(file.step, operators=file.operators)
    step.require_consistent()
    return file.job_id, step
