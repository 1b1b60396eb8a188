"""The goodput of a job over all its attempts: hours, dollars, and how often it should save."""
