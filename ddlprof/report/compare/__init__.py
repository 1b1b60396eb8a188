"""The output of `ddlprof compare` for two runs, or two groups of runs."""
