"""Modules of torch that a training may use in place of torch's own."""

from ddlprof.extensions.sparsity.nn.lstm import StructuredDropoutLSTM

__all__ = ["StructuredDropoutLSTM"]
