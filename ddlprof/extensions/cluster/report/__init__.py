"""The results of `ddlprof cluster simulate` in several formats."""
