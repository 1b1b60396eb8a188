"""The rules of the diagnosis, as data: `apply` has all of them, and applies them to a run's facts."""
