"""Histories of real clusters, as schedulers and published traces have them, read into one form."""
