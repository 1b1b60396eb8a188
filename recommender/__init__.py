"""Turns a workload and a catalogue into predicted step times and ranked plans. Never imports torch."""

from ddlprof.base import old_names
from ddlprof.base.errors import DdlprofError
from ddlprof.recommender.coefficients import Coefficients
from ddlprof.recommender.errors import PredictionError
from ddlprof.recommender.estimate import Estimate, Range, StepTimes, Suggestion
from ddlprof.recommender.layout import Layout
from ddlprof.recommender.learned import Learned
from ddlprof.recommender.plans.plan import Plan
from ddlprof.recommender.plans.ranking import recommend
from ddlprof.recommender.predictor import Predictor, Predicts, predict
from ddlprof.recommender.settings import Settings
from ddlprof.recommender.target import Target
from ddlprof.recommender.transformer_job import transformer
from ddlprof.recommender.workload import Measurement, Workload

if __name__ in old_names.OLD:  # from a checkout, whose folders are at the top
    old_names.replace(__name__)

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
