"""A plan as the file that asks for its machines and starts the job there: one file for each engine."""
