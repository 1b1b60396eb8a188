"""What this process tells of itself: clocks, threads, stacks, files and imports. Knows no torch."""
