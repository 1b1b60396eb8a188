"""Analyses the records of a run: steady steps, parts of communication, means, verdict. Pure functions without files."""
