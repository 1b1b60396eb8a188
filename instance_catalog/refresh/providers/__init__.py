"""One file a cloud: what it is asked, and what its answers mean. `base` is what all have in common."""
