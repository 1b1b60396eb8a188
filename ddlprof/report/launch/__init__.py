"""A layout as the file that a training framework is launched with: one file for each framework."""
