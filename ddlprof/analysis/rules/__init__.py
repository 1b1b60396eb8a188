"""The rules of the diagnosis, as data: `table.RULES` has all of them, `judge.judge` applies them to a run's facts."""
