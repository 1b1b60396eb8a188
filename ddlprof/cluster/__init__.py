"""Many jobs on one cluster: policies that share it out, and a simulation of what each would do. Never runs a job."""
