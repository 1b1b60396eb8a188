"""What all other packages use: errors, text, units, files, and checked reading. Standard library only."""
