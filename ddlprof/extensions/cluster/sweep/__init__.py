"""Many simulations at once: policies against each other, over loads, seeds and shares of predictable jobs."""
