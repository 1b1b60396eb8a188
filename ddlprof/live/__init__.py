"""A run while it trains: follows its growing files and shows where it is. Only reads; in a process of its own."""
