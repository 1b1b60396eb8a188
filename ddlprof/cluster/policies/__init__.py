"""One file for each policy; `ddlprof.cluster.registry` knows them by name."""
