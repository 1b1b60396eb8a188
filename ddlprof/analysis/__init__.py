"""What the records of a run mean: steady steps, parts of communication, means, verdict. Pure functions, no files."""
