"""What hooks share with each other and keep while they go and come again: what is under way, and what was seen."""
