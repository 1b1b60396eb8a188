"""Runs a plan on two processes of this machine, one of them artificially slow, and compares with the prediction."""
