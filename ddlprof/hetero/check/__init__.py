"""Runs a plan on real processes of this machine, one of them emulated slow, and compares with what was predicted."""
