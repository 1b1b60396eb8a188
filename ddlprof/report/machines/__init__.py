"""The catalogue for people and programs: its list, one machine, and what a refresh changed."""
