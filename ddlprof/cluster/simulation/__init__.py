"""The clock that moves jobs through a cluster, and what came of it."""
