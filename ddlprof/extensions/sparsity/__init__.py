"""The work of a training that zeros make unnecessary: `ddlprof sparsity`."""
