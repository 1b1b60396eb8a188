"""One file for each cloud: what it is asked, and how its answers are read. `base` is common to all."""
