"""Notes of a run that the report says more about."""

from __future__ import annotations

NO_TORCH = "the script ended, and torch was never imported"
NO_BACKWARD = "the script ended; forwards were seen, but no backward and no update of an optimizer of torch"
