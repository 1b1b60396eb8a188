"""One file for each policy; `ddlprof.cluster.policy` knows them by name."""
