"""Corrections from residuals, without judging them.

Computation: a ridge regression on the logarithm of measured over predicted, so that few runs are pulled to the shipped
prediction. Communication: what jobs on one kind of machine have in common, with the shipped prior as that of their mean
(Morris, "Parametric Empirical Bayes Inference", Journal of the American Statistical Association 78, 1983).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ddlprof.extensions.learn.cases import ComputePoint, CorrectionKind
from ddlprof.recommender.communication.job_parameters import JobFit
from ddlprof.recommender.compute.correction import FEATURES, ComputeCorrection
from ddlprof.recommender.compute.step_parts import Array
from ddlprof.recommender.learned import LinkCorrection

STRENGTHS = (0.3, 1.0, 3.0, 10.0)
"""The strengths of the shipped prior that the regression chooses from: at 1, one job moves the factor of its GPU two
thirds of the way."""
_OF_GPU, _OF_JOBS = 0.21, 0.6
"""A priori, the standard deviation of the logarithm of what is common to the jobs on a GPU, and of what is a job's own.
"""
_SEARCH_FROM, _FOLDS = 5, 5
"""The jobs from which the strength is chosen by jobs left out, and the parts they are left out in."""
_UNITS = np.array([2.0, 2.0, 1.0])
"""How much features (`FEATURES`) differ between jobs, about."""
_OWN = np.array([1.0, *[0.7] * len(FEATURES)])
"""The prior of what is a GPU's own, as a share of that of what GPUs have in common: its factor, and its slopes."""
_PASSES = 5
_PRIOR_JOBS = 3.0
"""The weight of the shipped spread between jobs, in jobs."""
_LEAST_SD, _MOST_SD = 0.03, 2.0


def compute_corrections(points: Sequence[ComputePoint], jobs: Sequence[int]) -> list[ComputeCorrection]:
    """A correction for each GPU and precision, from points of one knowledge; `jobs` is the job of each point."""
    cells = sorted({point.cell for point in points})
    here = {cell: np.array([point.cell == cell for point in points]) for cell in cells}
    features = np.array([point.features for point in points])
    middle = features.mean(axis=0)
    common = np.hstack([np.ones((len(points), 1)), (features - middle) / _UNITS])
    design = np.hstack([common, *(common * _OWN * here[cell][:, None] for cell in cells)])
    ratios, of = np.array([point.log_ratio for point in points]), np.array(jobs)
    # Every job counts once on each GPU, however many steps of it were measured.
    weights = np.array([1.0 / np.sum(here[p.cell] & (of == job)) for p, job in zip(points, of, strict=True)])
    numbers = _ridge(design, ratios, weights, of).reshape(len(cells) + 1, -1)
    left = ratios - design @ numbers.ravel()
    found = []
    for cell, own in zip(cells, numbers[1:], strict=True):
        mine, line = here[cell], numbers[0] + own * _OWN
        sd = float(np.sqrt(np.average(left[mine] ** 2, weights=weights[mine])))
        found.append(
            ComputeCorrection(
                *cell,
                log_factor=float(line[0]), slopes=_floats(line[1:] / _UNITS), middle=_floats(middle),
                low=_floats(features[mine].min(axis=0)), high=_floats(features[mine].max(axis=0)),
                sd=min(max(sd, _LEAST_SD), _MOST_SD), jobs=len(set(of[mine].tolist())),
            )
        )  # fmt: skip
    return found


def _ridge(design: Array, ratios: Array, weights: Array, jobs: Array) -> Array:
    """The numbers of the regression, which are 0 a priori."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV, GroupKFold

    count = len(set(jobs.tolist()))
    model: Any = Ridge(alpha=_usual_strength(ratios, jobs), fit_intercept=False)
    if count >= _SEARCH_FROM:
        folds = GroupKFold(min(count, _FOLDS))
        model = GridSearchCV(model, {"alpha": STRENGTHS}, cv=folds, scoring="neg_mean_absolute_error")
        model.fit(design, ratios, groups=jobs, sample_weight=weights)
        return np.asarray(model.best_estimator_.coef_)
    return np.asarray(model.fit(design, ratios, sample_weight=weights).coef_)


def _usual_strength(ratios: Array, jobs: Array) -> float:
    """The strength where the jobs are too few to try: their spread, pulled to the usual one, over that of GPUs."""
    means = np.array([ratios[jobs == job].mean() for job in sorted(set(jobs.tolist()))])
    spread = (_OF_JOBS**2 + np.sum((means - means.mean()) ** 2)) / len(means)
    return float(spread / _OF_GPU**2)


def link_correction(kind: CorrectionKind, fits: Sequence[JobFit]) -> LinkCorrection:
    """What the jobs have in common: the mean of their parameters and its spread, both pulled to the shipped prior."""
    uncertain = np.array([fit.prior.sd for fit in fits])
    of_mean, spread = uncertain.mean(axis=0), uncertain.mean(axis=0)
    shift = np.zeros(len(of_mean))
    for _ in range(_PASSES):
        away, variance = [], []
        for fit in fits:
            mean = tuple(np.array(fit.prior.mean) + shift)
            again = JobFit(replace(fit.prior, mean=mean, sd=tuple(spread)), fit.observations)
            away.append(again.z - np.array(fit.prior.mean))
            variance.append(np.diag(again.covariance))
        shift = np.sum(away, axis=0) / spread**2 / (1 / of_mean**2 + len(fits) / spread**2)
        seen = np.sum((np.array(away) - shift) ** 2 + np.array(variance), axis=0)
        spread = np.sqrt((_PRIOR_JOBS * of_mean**2 + seen) / (_PRIOR_JOBS + len(fits)))
    unknown = 1 / (1 / of_mean**2 + len(fits) / spread**2)
    placings = [seen.placing for fit in fits for seen in fit.observations]
    return LinkCorrection(
        *kind,
        shift=_floats(shift), sd=_floats(np.sqrt(spread**2 + unknown)), widen=1.0,
        most_gpus=max(at.most for at in placings), most_nodes=max(at.nodes for at in placings), jobs=len(fits),
    )  # fmt: skip


def _floats(numbers: Array) -> tuple[float, ...]:
    return tuple(float(f"{number:.6g}") for number in numbers)
