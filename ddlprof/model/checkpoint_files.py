"""Which checkpoints a rank wrote and read, so that it is known where a job went on after it had been interrupted."""

from __future__ import annotations

from dataclasses import dataclass

SAVED, LOADED = WHATS = ("saved", "loaded")
MOST_LOADED = 200
"""The most files that are noted as read: a model may be in hundreds of them."""


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A checkpoint that this rank wrote, or read before its first step. Names are hashes, which tell nobody a path."""

    what: str
    """One of `WHATS`."""
    step: int
    """The steps that this rank had done in this attempt."""
    place: str
    """A hash of the absolute path; empty if unknown."""
    file: str
    """A hash of what a file keeps when it is renamed: its number, size and time of writing. Empty if unknown."""
    told: int | None = None
    """The step that the content names itself, such as `global_step`; None: none, or it was not looked for."""
