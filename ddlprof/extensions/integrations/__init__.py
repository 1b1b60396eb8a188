"""The classes of finished runs as scalars in other people's tools; each needs its own package, imported on use.

While a run trains, `ddlprof.recent_means()` has what a training loop logs with the logger that it has anyway.
"""
