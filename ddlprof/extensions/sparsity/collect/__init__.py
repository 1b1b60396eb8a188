"""Counts the zeros that a training multiplies with, on some of its steps, for `ddlprof sparsity`."""
