"""All fitted coefficients as one object, so that a predictor with other coefficients uses none of the shipped ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ddlprof.base.typed import decode
from ddlprof.recommender.communication import coefficients as communication
from ddlprof.recommender.compute import micro_batch as compute


@dataclass(frozen=True)
class Coefficients:
    """What a `Predictor` computes with; `dataclasses.replace(Coefficients.shipped(), compute=...)` replaces a part."""

    compute: compute.Coefficients
    """The coefficients of computation on one GPU."""
    communication: communication.Coefficients
    """The coefficients of communication between GPUs."""

    @classmethod
    def shipped(cls) -> Coefficients:
        """The coefficients in the package, read once."""
        return cls(compute.shipped(), communication.shipped())

    def with_communication(self, content: Mapping[str, Any]) -> Coefficients:
        """The same, with the content of a file written by `scripts/fit/communication.py`."""
        return replace(self, communication=decode(communication.Coefficients, content))
