"""The page of a run: `ddlprof report --format html`. One file a group of sections."""
