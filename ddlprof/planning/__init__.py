"""The answers of commands such as `recommend`, `plan` and `features` that need several packages, for Python, too."""
