"""torch.compile: what it does in this process, and keeping out of its way."""
