"""What was asked of a job beside how it was measured, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {"grad_accum": "accumulation", "compiled": "torch.compile"}


def in_words(differences: Mapping[str, tuple[Any, Any]]) -> str:
    """`precision bf16 (in RUN: fp32), checkpointing yes (in RUN: not known)`."""
    return ", ".join(
        f"{_NAMES.get(name, name)} {_value(asked)} (in RUN: {_value(before)})"
        for name, (before, asked) in differences.items()
    )


def asked_in_words(differences: Mapping[str, tuple[Any, Any]]) -> str:
    """`precision bf16, checkpointing yes`."""
    return ", ".join(f"{_NAMES.get(name, name)} {_value(asked)}" for name, (_, asked) in differences.items())


def _value(value: Any) -> str:
    if value is None:
        return "not known"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
