"""Facts about machines that can be rented, with their sources and dates. Imports nothing of ours."""
