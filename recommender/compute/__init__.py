"""The seconds and the memory that any one GPU needs for a micro-batch, with the coefficients beside the code."""
