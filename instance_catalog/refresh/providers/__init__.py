"""One file a cloud: what it is asked, and what its answers mean."""
