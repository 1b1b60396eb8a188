"""Starting the user's training as `python SCRIPT` or `torchrun` would, and ending as it ends.

Standard library and `ddlprof.model` only; `ddlprof.collect` and torch are imported where they are needed.
"""
