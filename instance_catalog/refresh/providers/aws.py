"""Calls to AWS: the session, the clients, and one function for each kind of answer. boto3 is imported lazily.

The configuration is boto3's own (profiles, environment, `AWS_ENDPOINT_URL`), and `AWS_REGION` as in AWS's other tools.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from instance_catalog.errors import CatalogError
from instance_catalog.refresh.providers import aws_answers as answers
from instance_catalog.refresh.providers.aws_failures import NO_CREDENTIALS, CallFailed, explained, unknown

GPU_TYPES = ("g*", "p*")
"""AWS's families with NVIDIA GPUs; answers are filtered by manufacturer all the same."""
ATTEMPTS = 4
"""For one page, where the configuration has no `max_attempts`; with boto3's growing waits in between, 7 s at most."""
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
_PRICING_REGIONS = {"ap": "ap-south-1", "eu": "eu-central-1"}  # any of them knows the prices of all regions
_PRICING_REGION = "us-east-1"
_SHORT_PAGE = 100  # DescribeInstanceTypes and GetProducts allow no more
_LONG_PAGE = 1000
_PRODUCTS = {
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
_MACHINES = (
    {"productFamily": "Compute Instance", "tenancy": "Shared"},
    {"productFamily": "Compute Instance (bare metal)", "tenancy": "Dedicated"},
)


class Clients(Protocol):
    """Makes a boto3 client: `clients("ec2", "us-east-1")`. Called from several threads."""

    def __call__(self, service: str, region: str, /) -> Any: ...


class Aws:
    """The user's AWS configuration."""

    def __init__(self, profile: str | None = None) -> None:
        """Raises CatalogError for an unknown profile, a damaged configuration, and for missing credentials."""
        import boto3
        import botocore.session

        try:
            with explained("credentials", read="the AWS configuration"):
                settings = botocore.session.Session(profile=profile)
                self._session = boto3.session.Session(botocore_session=settings)
                self._attempts = settings.get_config_variable("max_attempts") or ATTEMPTS
                credentials = self._session.get_credentials()
                if credentials is not None:
                    credentials.get_frozen_credentials()  # a login that has ended says so here
        except CallFailed as failure:
            raise CatalogError(str(failure)) from None
        if credentials is None:
            raise CatalogError(NO_CREDENTIALS)
        self._lock = threading.Lock()

    def regions(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """Those, once each; without any, the configured one. Raises CatalogError for none and for unknown names."""
        default = os.environ.get("AWS_REGION") or self._session.region_name
        chosen = tuple(dict.fromkeys(wanted or ([default] if default else [])))
        if not chosen:
            raise CatalogError("no region: give one, or set AWS_REGION")
        partitions = self._session.get_available_partitions()
        known = [name for part in partitions for name in self._session.get_available_regions("ec2", part)]
        for name in chosen:
            if name not in known:
                raise CatalogError(unknown("region", name, known))
        return chosen

    def client(self, service: str, region: str, /) -> Any:
        """A client that waits and tries again where AWS limits the rate."""
        from botocore.config import Config

        config = Config(
            retries={"mode": "standard", "total_max_attempts": self._attempts},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
        )
        with self._lock:  # sessions are not thread-safe, clients are
            return self._session.client(service, region_name=region, config=config)


def instance_types(ec2: Any, names: Sequence[str]) -> list[answers.TypeAnswer]:
    """The types with NVIDIA GPUs on offer in the client's region. `names` may hold `*` and `?`."""
    with explained("ec2:DescribeInstanceTypes"):
        pages = ec2.get_paginator("describe_instance_types").paginate(
            Filters=[{"Name": "instance-type", "Values": list(names)}], PaginationConfig={"PageSize": _SHORT_PAGE}
        )
        found = [answers.parse_type(entry) for page in pages for entry in page["InstanceTypes"]]
        return [answer for answer in found if answer is not None]


def offerings(ec2: Any) -> set[str]:
    """Names of all types on offer in the client's region: a page, so that nothing is gained by asking for less."""
    with explained("ec2:DescribeInstanceTypeOfferings"):
        pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="region", PaginationConfig={"PageSize": _LONG_PAGE}
        )
        return {entry["InstanceType"] for page in pages for entry in page["InstanceTypeOfferings"]}


def spot(ec2: Any, types: Sequence[str], now: datetime) -> dict[str, float]:
    """USD per hour of spot machines in the client's region, by type; see `answers.parse_spot`."""
    if not types:
        return {}  # an empty list would mean all types
    with explained("ec2:DescribeSpotPriceHistory"):
        pages = ec2.get_paginator("describe_spot_price_history").paginate(
            InstanceTypes=sorted(types),
            ProductDescriptions=["Linux/UNIX"],
            StartTime=now,
            PaginationConfig={"PageSize": _LONG_PAGE},
        )
        return answers.parse_spot(entry for page in pages for entry in page["SpotPriceHistory"])


def on_demand(pricing: Any, region: str) -> dict[str, float]:
    """USD per hour of on-demand machines in `region`, by type; of all types that have a price there."""
    prices: dict[str, float] = {}
    with explained("pricing:GetProducts"):
        for machines in _MACHINES:
            pages = pricing.get_paginator("get_products").paginate(
                ServiceCode="AmazonEC2",
                Filters=_terms({"regionCode": region, **_PRODUCTS, **machines}),
                FormatVersion="aws_v1",
                PaginationConfig={"PageSize": _SHORT_PAGE},
            )
            prices |= answers.parse_on_demand(text for page in pages for text in page["PriceList"])
    return prices


def pricing_region(region: str) -> str:
    """Where to ask for a region's prices: the price list has few endpoints."""
    return _PRICING_REGIONS.get(region.partition("-")[0], _PRICING_REGION)


def _terms(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in values.items()]
