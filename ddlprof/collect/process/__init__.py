"""What is measured of this process without torch: clocks, overhead, stacks, files and imports."""
