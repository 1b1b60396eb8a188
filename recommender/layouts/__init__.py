"""Predicts the time and the memory of a transformer that is divided over many GPUs."""
