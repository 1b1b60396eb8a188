"""Waiting for data: the hooks of loaders and data calls, and what is known of a batch when a wait ends."""
