"""What `ddlprof fuse` shows: a page, JSON, and a CSV file of the trials."""
