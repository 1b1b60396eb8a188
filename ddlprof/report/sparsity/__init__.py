"""The result of `ddlprof sparsity`, for people and for programs."""
