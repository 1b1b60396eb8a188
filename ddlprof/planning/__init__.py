"""What `recommend`, `predict`, `elastic` and `cluster` answer beyond one package, for Python as for the commands."""
