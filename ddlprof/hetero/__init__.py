"""One job on unequal GPUs: which of them, how the batch is split, how each gradient is reduced, in which order."""
