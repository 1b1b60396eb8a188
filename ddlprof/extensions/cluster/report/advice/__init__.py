"""Advice about the placement of jobs: for people, for Slurm and for Volcano."""
