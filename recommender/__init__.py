"""Workload and catalogue in, predicted step times and ranked plans out. Never imports torch."""

from recommender.errors import PredictionError
from recommender.estimate import Estimate, Range
from recommender.plan import Plan
from recommender.plans import recommend
from recommender.predict import Predictor, Suggestion, predict
from recommender.target import Target
from recommender.workload import Measurement, Workload

__all__ = [
    "Estimate",
    "Measurement",
    "Plan",
    "PredictionError",
    "Predictor",
    "Range",
    "Suggestion",
    "Target",
    "Workload",
    "predict",
    "recommend",
]
