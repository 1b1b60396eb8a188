"""Starts the user's training as `python SCRIPT` or `torchrun` would, and ends as it ends.

Uses only the standard library, `ddlprof.base` and `ddlprof.model`. `ddlprof.collect` and torch are imported when
needed.
"""
