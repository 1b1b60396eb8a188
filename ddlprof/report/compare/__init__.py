"""What `ddlprof compare` says of two runs, or of two groups of runs."""
