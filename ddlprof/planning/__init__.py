"""The answers of `recommend`, `predict`, `elastic` and `cluster` that need several packages, for Python and the CLI."""
