"""Sees that the training stands still, and writes what this rank does then; in the helper thread, without torch."""
