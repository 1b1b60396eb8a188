"""Plans for unequal GPUs: a table, JSON, the file that is applied, and a timeline."""
