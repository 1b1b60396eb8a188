"""What everything else stands on: errors, text, units, files, and checked reading. Standard library only."""
