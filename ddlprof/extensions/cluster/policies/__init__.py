"""One file for each policy; `ddlprof.extensions.cluster.policy` knows them by name."""
