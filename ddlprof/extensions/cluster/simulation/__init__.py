"""The clock that moves jobs through a cluster, and the metrics of the outcome."""
