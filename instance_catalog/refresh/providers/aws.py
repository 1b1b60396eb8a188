"""AWS: the user's session, its clients, and one method for each kind of answer. boto3 is imported lazily.

The configuration is boto3's own (profiles, environment, `AWS_ENDPOINT_URL`), and `AWS_REGION` as in AWS's other tools.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ddlprof.instance_catalog.errors import CatalogError
from ddlprof.instance_catalog.refresh.providers import aws_answers as answers
from ddlprof.instance_catalog.refresh.providers.aws_answers import NO_CREDENTIALS, explained
from ddlprof.instance_catalog.refresh.providers.base import Allowance, CallFailed, TypeAnswer, unknown

ATTEMPTS = 4
"""Attempts for a page if the configuration has no `max_attempts`. With boto3's waits between them at most 7 s."""
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S: float = 15
"""The longest wait in seconds between two parts of an answer. An endpoint silent for longer is not asked again."""
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


Clients = Callable[[str, str], Any]
"""Makes a boto3 client: `clients("ec2", "us-east-1")`. Called from several threads."""


class Aws:
    """The user's AWS configuration, and the calls that are made with it."""

    name = "aws"
    gpu_types: tuple[str, ...] = ("g*", "p*")
    """The families with NVIDIA GPUs. Answers are also filtered by manufacturer."""
    sources: Mapping[str, str] = {
        "types": "EC2 DescribeInstanceTypes",
        "on_demand": "Pricing GetProducts",
        "spot": "EC2 DescribeSpotPriceHistory (lowest zone)",
    }
    endpoints: Mapping[str, str] = {"types": "ec2", "offerings": "ec2", "on_demand": "pricing", "spot": "ec2"}

    def __init__(self, profile: str | None = None, clients: Clients | None = None) -> None:
        """`clients`: makes clients for all regions, instead of the configuration and `profile`.

        Raises CatalogError for an unknown profile, a damaged configuration, or missing credentials.
        """
        self._clients = clients
        if clients is None:
            self._sign_in(profile)

    def _sign_in(self, profile: str | None) -> None:
        import boto3
        import botocore.session

        try:
            with explained("credentials", read="the AWS configuration"):
                settings = botocore.session.Session(profile=profile)
                self._session = boto3.session.Session(botocore_session=settings)
                self._attempts = settings.get_config_variable("max_attempts") or ATTEMPTS
                credentials = self._session.get_credentials()
                if credentials is not None:
                    credentials.get_frozen_credentials()  # raises if a login has expired
        except CallFailed as failure:
            raise CatalogError(str(failure)) from None
        if credentials is None:
            raise CatalogError(NO_CREDENTIALS)
        self._lock = threading.Lock()

    def regions(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The named regions, each once, or else the configured one.

        Raises CatalogError for unknown names or no region.
        """
        if self._clients is not None:
            return tuple(wanted)
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

    def types(self, region: str, names: Sequence[str], allowance: Allowance) -> list[TypeAnswer]:
        """The types with NVIDIA GPUs on offer in a region. `names` may hold `*` and `?`."""
        with explained("ec2:DescribeInstanceTypes"):
            pages = self._pages("ec2", region, allowance, "describe_instance_types", {
                "Filters": [{"Name": "instance-type", "Values": list(names)}],
                "PaginationConfig": {"PageSize": _SHORT_PAGE},
            })  # fmt: skip
            found = [answers.parse_type(entry) for page in pages for entry in page["InstanceTypes"]]
            return [answer for answer in found if answer is not None]

    def offerings(self, region: str, allowance: Allowance) -> set[str]:
        """The names of all types on offer in a region. This is one page, so asking for fewer types would not help."""
        with explained("ec2:DescribeInstanceTypeOfferings"):
            pages = self._pages("ec2", region, allowance, "describe_instance_type_offerings", {
                "LocationType": "region",
                "PaginationConfig": {"PageSize": _LONG_PAGE},
            })  # fmt: skip
            return {entry["InstanceType"] for page in pages for entry in page["InstanceTypeOfferings"]}

    def spot(self, region: str, types: Sequence[str], now: datetime, allowance: Allowance) -> dict[str, float]:
        """USD per hour of spot machines in a region, by type; see `answers.parse_spot`."""
        if not types:
            return {}  # an empty list would mean all types
        with explained("ec2:DescribeSpotPriceHistory"):
            pages = self._pages("ec2", region, allowance, "describe_spot_price_history", {
                "InstanceTypes": sorted(types),
                "ProductDescriptions": ["Linux/UNIX"],
                "StartTime": now,
                "PaginationConfig": {"PageSize": _LONG_PAGE},
            })  # fmt: skip
            return answers.parse_spot(entry for page in pages for entry in page["SpotPriceHistory"])

    def on_demand(self, region: str, allowance: Allowance) -> dict[str, float]:
        """USD per hour of all types with an on-demand price in a region."""
        prices: dict[str, float] = {}
        with explained("pricing:GetProducts"):
            for machines in _MACHINES:
                pages = self._pages("pricing", pricing_region(region), allowance, "get_products", {
                    "ServiceCode": "AmazonEC2",
                    "Filters": _terms({"regionCode": region, **_PRODUCTS, **machines}),
                    "FormatVersion": "aws_v1",
                    "PaginationConfig": {"PageSize": _SHORT_PAGE},
                })  # fmt: skip
                prices |= answers.parse_on_demand(text for page in pages for text in page["PriceList"])
        return prices

    def _pages(
        self, service: str, region: str, allowance: Allowance, operation: str, request: Mapping[str, Any]
    ) -> Iterable[Any]:
        client = self._clients(service, region) if self._clients else self._client(service, region, allowance)
        return allowance.pages(client.get_paginator(operation).paginate(**request))

    def _client(self, service: str, region: str, allowance: Allowance) -> Any:
        """A client that waits and retries if AWS limits the rate, and counts the bytes it reads."""
        from botocore.config import Config

        config = Config(
            retries={"mode": "standard", "total_max_attempts": self._attempts},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
        )
        with self._lock:  # sessions are not thread-safe, clients are
            client = self._session.client(service, region_name=region, config=config)
        client.meta.events.register("needs-retry", _give_up_on_silence)
        client.meta.events.register("before-send", _Counted(client, allowance))
        return client


def _give_up_on_silence(caught_exception: Exception | None = None, **event: Any) -> None:
    from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError

    if isinstance(caught_exception, (ConnectTimeoutError, ReadTimeoutError)):
        raise caught_exception


class _Counted:
    """Sends a request as the client would, but limits what it reads; the client alone would read any length."""

    def __init__(self, client: Any, allowance: Allowance) -> None:
        self._session = client._endpoint.http_session
        self._allowance = allowance

    def __call__(self, request: Any, **event: Any) -> Any:
        from botocore.exceptions import ReadTimeoutError, ResponseStreamingError
        from urllib3.exceptions import HTTPError
        from urllib3.exceptions import ReadTimeoutError as Silence

        request.stream_output = True  # the body is read here
        response = self._session.send(request)
        response.raw = _CountedBody(response.raw, self._allowance)
        try:
            response.content  # noqa: B018  # read now, and kept
        except Silence as error:
            raise ReadTimeoutError(endpoint_url=request.url, error=error) from None
        except HTTPError as error:
            raise ResponseStreamingError(error=error) from None
        return response


class _CountedBody:
    def __init__(self, body: Any, allowance: Allowance) -> None:
        self._body = body
        self._allowance = allowance

    def stream(self) -> Iterator[bytes]:
        for part in self._body.stream():
            self._allowance.read(len(part))
            yield part


def pricing_region(region: str) -> str:
    """The region to ask for a region's prices, as the price list has few endpoints."""
    return _PRICING_REGIONS.get(region.partition("-")[0], _PRICING_REGION)


def _terms(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in values.items()]
