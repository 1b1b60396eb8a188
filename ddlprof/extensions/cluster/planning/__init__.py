"""What the commands answer, for Python too."""
