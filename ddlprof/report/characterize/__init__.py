"""What `ddlprof characterize` found, as plain data and as a page."""
