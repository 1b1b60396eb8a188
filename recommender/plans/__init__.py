"""What could be rented for a job, ranked by predicted time and cost."""
