"""The device: its clock, what its streams carry, and what its profiler and flight recorder tell."""
