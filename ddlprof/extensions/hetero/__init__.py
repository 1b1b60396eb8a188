"""One job on GPUs that are not alike: which GPUs to use, how to split the batch, how to exchange gradients.

A training calls `apply` to follow a plan of `ddlprof plan`.
"""

from ddlprof.extensions.hetero.training import apply

__all__ = ["apply"]
