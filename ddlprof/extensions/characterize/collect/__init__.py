"""What makes a run one of `ddlprof characterize`: replayed or watched input, and an end after some steps."""
