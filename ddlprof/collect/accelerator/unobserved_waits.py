"""Libraries whose C++ has the device wait without a call that a hook could see: named at the end of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator

_LIBRARIES = (
    (
        "transformer_engine.pytorch.module.base",
        "_ub_communicators",
        "comm",
        "not seen: transfers and waits of Transformer Engine's userbuffers; they are in compute",
    ),
    (
        "nvidia.dali.plugin.pytorch",
        "DALIGenericIterator",
        "data",
        "waits of the device for DALI's pipelines are not seen: they are in compute or h2d, and data is what the "
        "training thread waits",
    ),
)
"""A module, the name there that has a value where it is used, and a note."""


def in_use() -> Iterator[tuple[str, str]]:
    """A note for each that the script uses: its source and text."""
    for module, name, source, text in _LIBRARIES:
        if getattr(sys.modules.get(module), name, None):
            yield source, text
