"""Turns a workload and a catalogue into predicted step times and ranked plans. Never imports torch."""

from ddlprof.base.errors import DdlprofError
from recommender.coefficients import Coefficients
from recommender.errors import PredictionError
from recommender.estimate import Estimate, Range, StepTimes, Suggestion
from recommender.layout import Layout
from recommender.learned import Learned
from recommender.plans.plan import Plan
from recommender.plans.ranking import recommend
from recommender.predictor import Predictor, predict
from recommender.search.search import Predicts
from recommender.settings import Settings
from recommender.target import Target
from recommender.transformer_job import transformer
from recommender.workload import Measurement, Workload

__all__ = [
    "Coefficients",
    "DdlprofError",
    "Estimate",
    "Layout",
    "Learned",
    "Measurement",
    "Plan",
    "PredictionError",
    "Predictor",
    "Predicts",
    "Range",
    "Settings",
    "StepTimes",
    "Suggestion",
    "Target",
    "Workload",
    "predict",
    "recommend",
    "transformer",
]
