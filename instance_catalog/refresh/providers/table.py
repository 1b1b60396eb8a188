"""The clouds that a refresh can ask, one line each."""

from __future__ import annotations

from instance_catalog.refresh.providers.aws import Aws
from instance_catalog.refresh.providers.base import Connect

PROVIDERS: dict[str, Connect] = {
    Aws.name: Aws,
}
"""By the name that the catalogue has for the cloud. Their libraries are imported when one is made."""
