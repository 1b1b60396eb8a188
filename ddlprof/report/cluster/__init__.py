"""What `ddlprof cluster simulate` found, in several formats."""
