"""Accelerators: their clock, streams, profiler and counters, and the durations in NCCL's flight recorder."""
