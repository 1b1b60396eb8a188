"""Seconds and memory that one GPU needs for a micro-batch, on any GPU, with the coefficients beside."""
