"""Which work of a training its zeros make unnecessary, and which part of that can be saved today."""
