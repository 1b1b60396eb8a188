"""Workload and catalogue in, predicted step times and ranked plans out. Never imports torch."""

from recommender.workload import Measurement, Workload

__all__ = ["Measurement", "Workload"]
