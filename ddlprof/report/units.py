"""Times, sizes and shares as reports show them: see `ddlprof.model.units`, which the rules of the analysis use too."""

from ddlprof.model.units import (
    Scale,
    ago,
    count,
    either,
    gib,
    listed,
    long_time,
    percent,
    ranges,
    scale_for,
    scaled,
    significant,
)

__all__ = [
    "Scale",
    "ago",
    "count",
    "either",
    "gib",
    "listed",
    "long_time",
    "percent",
    "ranges",
    "scale_for",
    "scaled",
    "significant",
]
