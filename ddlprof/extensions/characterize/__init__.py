"""The differential experiments known from the literature: `ddlprof characterize`."""
