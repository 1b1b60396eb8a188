"""A plan with a layout as the file that a framework starts it with: one file for each."""
