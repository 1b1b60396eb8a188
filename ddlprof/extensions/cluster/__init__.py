"""Many jobs on one cluster: policies that divide it, and a simulation of what each would do. Never runs a job."""
