"""Learns corrections of the shipped coefficients from a team's own jobs: `judge.learn`."""
