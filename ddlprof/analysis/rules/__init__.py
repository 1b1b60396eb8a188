"""The rules of the diagnosis. `apply` lists all of them and applies them to the facts of a run."""
