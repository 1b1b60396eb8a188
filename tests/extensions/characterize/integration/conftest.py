"""What these tests share with those of the core."""

from __future__ import annotations

from tests.integration.hooks.conftest import nothing_is_left

__all__ = ["nothing_is_left"]
