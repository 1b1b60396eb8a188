"""The clouds that a refresh can ask, one line each."""

from __future__ import annotations

from instance_catalog.refresh.providers.aws import Aws
from instance_catalog.refresh.providers.base import Connect

PROVIDERS: dict[str, Connect] = {
    Aws.name: Aws,
}
"""The providers by the catalogue's name of the cloud. A provider imports its libraries when it is made."""
