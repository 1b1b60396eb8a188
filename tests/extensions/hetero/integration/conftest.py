"""What these tests share with those of the core."""

from __future__ import annotations

from tests.integration.dist.conftest import job

__all__ = ["job"]
