"""The machines that could be rented for a job, ranked by predicted time and cost."""
