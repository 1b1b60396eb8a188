"""One job on GPUs that are not alike: which of them to use, how to split the batch, how to exchange gradients.

`apply` is what a training calls to follow a plan of `ddlprof plan`.
"""

from ddlprof.hetero.training import apply

__all__ = ["apply"]
