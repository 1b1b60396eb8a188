"""All fitted coefficients as one object, so that a predictor with other coefficients uses none of the shipped ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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

    @classmethod
    def from_json(cls, compute_content: Mapping[str, Any], communication_content: Mapping[str, Any]) -> Coefficients:
        """Reads the contents of two files written by `scripts/fit/compute.py` and `scripts/fit/communication.py`."""
        return cls(
            compute.Coefficients.from_json(compute_content),
            decode(communication.Coefficients, dict(communication_content)),
        )
