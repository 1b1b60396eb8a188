"""All fitted coefficients as one object, so that a predictor with other coefficients uses none of the shipped ones."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.recommender.communication import coefficients as communication
from ddlprof.recommender.compute import micro_batch as compute


@dataclass(frozen=True)
class Coefficients:
    """What a `Predictor` computes with; `dataclasses.replace(Coefficients.shipped(), compute=...)` replaces a part."""

    compute: compute.ComputeCoefficients
    """The coefficients of computation on one GPU."""
    communication: communication.CommunicationCoefficients
    """The coefficients of communication between GPUs."""

    @classmethod
    def shipped(cls) -> Coefficients:
        """The coefficients in the package, read once."""
        return cls(compute.shipped(), communication.shipped())
