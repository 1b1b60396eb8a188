"""How many tokens each rank sent to the experts of others, in a few steps: what all-to-alls of uneven parts tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ddlprof.model.annotations import Shared, SharedAs


@dataclass(frozen=True, slots=True)
class RoutedTokens:
    """The uneven all-to-alls that a rank took part in during one step, in one group."""

    step: Shared[int]
    """The number of updates before it."""
    group: Annotated[str, SharedAs("group")]
    ranks: Shared[int]
    """The ranks of the group."""
    rows: Annotated[str, SharedAs("list")]
    """The rows that came to this rank and those that left it, for each all-to-all in order, as `96/64,64/96`."""


def written(rows: list[tuple[int, int]]) -> str:
    """The text of `RoutedTokens.rows`."""
    return ",".join(f"{came}/{left}" for came, left in rows)


def read_rows(text: str) -> list[tuple[int, int]]:
    """The pairs in such a text. Raises ValueError if it is another one."""
    pairs = [each.split("/") for each in text.split(",")] if text else []
    return [(int(came), int(left)) for came, left in pairs]
