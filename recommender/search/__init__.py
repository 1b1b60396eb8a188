"""Searches the layouts of a transformer over many GPUs for the fastest on each machine."""
