"""Asks torch.compile now and then why it has compiled a function again."""

from __future__ import annotations

import re

from ddlprof.model.records import RecompileReason
from ddlprof.torch_private.compile import recompile_reasons

_LONGEST = 200
_MOST = 20


class Recompilations:
    """`news` gives each kind of reason once; reasons that differ in their numbers are of one kind."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def news(self) -> list[RecompileReason]:
        """The reasons of kinds that were not told yet."""
        found = []
        for text in recompile_reasons():
            reason = _first_guard(text)
            kind = re.sub(r"\d+", "", reason)
            if reason and kind not in self._told and len(self._told) < _MOST:
                found.append(RecompileReason(len(self._told), reason))
                self._told.add(kind)
        return found


def _first_guard(text: str) -> str:
    """The guard that failed first, without the number of the compilation and the place in the sources."""
    line = next(iter(text.strip().splitlines()), "")
    line = re.sub(r"^\d+/\d+: ", "", line).partition("  #")[0]
    return " ".join(line.split())[:_LONGEST]
