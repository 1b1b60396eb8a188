"""What is said of a field of a record where it is declared, once: what its column means, and who may see its values.

The unit is the end of the name, and a field that may be None has columns that may be empty: not measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

_T = TypeVar("_T")


@dataclass(frozen=True)
class SharedAs:
    """How `ddlprof share` makes the values of a field fit for anybody: a key of `sharing.allowed.Fits`.

    Fields without it are left out.
    """

    how: str


Shared = Annotated[_T, SharedAs("number")]
"""The type of a field of numbers, which are shared as they are."""


@dataclass(frozen=True)
class StepColumn:
    """Makes a field of a step's record a column of `steps.csv`. Those of the classes of a step have theirs already."""

    meaning: str
    empty: str = ""
    """When it is empty; without a text, never."""


def annotated_with(record: type[Any], kind: type[_T]) -> dict[str, _T]:
    """The fields of a record that have an annotation of this kind, and what it says."""
    hints = get_type_hints(record, include_extras=True)
    return {
        name: each
        for name, hint in hints.items()
        for each in getattr(hint, "__metadata__", ())
        if isinstance(each, kind)
    }
