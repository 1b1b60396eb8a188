"""How certain a counted share is."""

from __future__ import annotations

from math import sqrt

from ddlprof.analysis.thresholds import STANDARD_ERRORS


def lowest_share(count: int, of: int, correlation: float = 0.0) -> float:
    """The lower end of Wilson's interval: it holds for few counts and for shares near 0 and 1, too.

    Where each observation resembles the one before it (`correlation`), as many count as are worth an independent one.
    """
    if not of:
        return 0.0
    share, square = count / of, STANDARD_ERRORS**2
    independent = of * (1 - min(correlation, 0.99)) / (1 + correlation)
    middle = share + square / (2 * independent)
    half = STANDARD_ERRORS * sqrt(share * (1 - share) / independent + square / (4 * independent**2))
    return max(0.0, (middle - half) / (1 + square / independent))
