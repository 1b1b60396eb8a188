"""Writes the files of a rank: for a training that is measured, and for traces that are imported."""
