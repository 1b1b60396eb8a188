"""This process among the others: its rank and machine, the run directory they share, and what they agree on."""
