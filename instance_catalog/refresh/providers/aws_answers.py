"""Reads answers of AWS's API as plain values, and its errors as one line that says what to do.

Nothing here makes a call or compares with known facts (see `checks`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from ddlprof.instance_catalog.refresh.providers.base import CallFailed, NetworkSpeed, TypeAnswer, unknown

_BYTES_PER_GB = 1e9
_BYTES_PER_GIB = 2**30
_MIB_PER_GIB = 1024
_NETWORK = re.compile(r"(?P<limit>up to )?(?:(?P<cards>\d+)x )?(?P<gbps>\d+(?:\.\d+)?) gigabit", re.IGNORECASE)
_LINUX = ("Linux/UNIX", "Linux/UNIX (Amazon VPC)")


def parse_network(text: str) -> NetworkSpeed | None:
    """The total speed of all cards; None if the text has no figure ("High", "Moderate")."""
    match = _NETWORK.fullmatch(text.strip())
    if match is None:
        return None
    return NetworkSpeed(float(match["gbps"]) * int(match["cards"] or 1), burst=match["limit"] is not None)


def parse_type(entry: Mapping[str, Any]) -> TypeAnswer | None:
    """The type, None without NVIDIA GPUs. Raises KeyError, TypeError or ValueError for an entry of another shape."""
    gpus = [gpu for gpu in entry.get("GpuInfo", {}).get("Gpus", ()) if gpu.get("Manufacturer") == "NVIDIA"]
    if not gpus:
        return None
    gpu = gpus[0]
    network = entry["NetworkInfo"]
    cards = network.get("NetworkCards", ())
    total_mib = entry["GpuInfo"].get("TotalGpuMemoryInMiB")
    architectures = entry.get("ProcessorInfo", {}).get("SupportedArchitectures", ())
    ebs = entry.get("EbsInfo", {}).get("EbsOptimizedInfo", {})
    efa = network.get("EfaSupported")
    return TypeAnswer(
        instance_type=entry["InstanceType"],
        family=entry["InstanceType"].partition(".")[0],
        gpu_name=gpu["Name"],
        gpus=gpu["Count"],
        gpu_fraction=1.0 if gpu["Count"] else gpu["GpuPartitionSize"] * gpu.get("LogicalGpuCount", 1),
        gpu_memory_gib=gpu["MemoryInfo"]["SizeInMiB"] / _MIB_PER_GIB,
        total_gpu_memory_gib=None if total_mib is None else total_mib / _MIB_PER_GIB,
        vcpus=entry["VCpuInfo"]["DefaultVCpus"],
        memory_gib=entry["MemoryInfo"]["SizeInMiB"] / _MIB_PER_GIB,
        cpu_arch="x86_64" if "x86_64" in architectures else next(iter(architectures), None),
        network=parse_network(network.get("NetworkPerformance", "")),
        card_gbps=_speeds(cards, "BaselineBandwidthInGbps"),
        card_burst_gbps=_speeds(cards, "PeakBandwidthInGbps"),
        network_cards=len(cards) or None,
        efa=efa,
        efa_interfaces=None if efa is None else network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        ena_express=network.get("EnaSrdSupported"),
        local_storage_gib=_local_storage_gib(entry),
        ebs_gbps=_gbps(ebs.get("BaselineBandwidthInMbps")),
        ebs_burst_gbps=_gbps(ebs.get("MaximumBandwidthInMbps")),
    )


def parse_on_demand(products: Iterable[str]) -> dict[str, float]:
    """USD per hour by instance type, from the JSON strings in GetProducts' PriceList.

    Lines with 0 (reservations) are ignored; of several prices the lowest counts. Raises KeyError, TypeError or
    ValueError for a product of another form.
    """
    prices: dict[str, float] = {}
    for text in products:
        product = json.loads(text)
        name = product["product"]["attributes"]["instanceType"]
        for term in product.get("terms", {}).get("OnDemand", {}).values():
            for dimension in term["priceDimensions"].values():
                price = float(dimension["pricePerUnit"].get("USD", 0))
                if dimension["unit"] == "Hrs" and price > 0:
                    prices[name] = min(price, prices.get(name, price))
    return prices


def parse_spot(entries: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """USD per hour by instance type: the lowest over the zones of the latest price of each zone.

    A job may choose its zone, and all its machines should be in one. Raises KeyError, TypeError or ValueError for an
    entry of another shape.
    """
    latest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for entry in entries:
        if entry["ProductDescription"] not in _LINUX:
            continue
        key = (entry["InstanceType"], entry["AvailabilityZone"])
        offer = (entry["Timestamp"], float(entry["SpotPrice"]))
        latest[key] = max(latest.get(key, offer), offer)
    prices: dict[str, float] = {}
    for (name, _zone), (_time, price) in latest.items():
        prices[name] = min(price, prices.get(name, price))
    return prices


def _speeds(cards: Iterable[Mapping[str, Any]], key: str) -> tuple[float, ...]:
    return tuple(card[key] for card in cards if key in card)


def _local_storage_gib(entry: Mapping[str, Any]) -> float | None:
    """The size of the local disks in GiB; the API counts in decimal GB."""
    if entry.get("InstanceStorageSupported") is None:
        return None
    total_gb = entry.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0)
    return round(float(total_gb) * _BYTES_PER_GB / _BYTES_PER_GIB, 1)


def _gbps(mbps: float | None) -> float | None:
    return None if mbps is None else mbps / 1000


NO_CREDENTIALS = (
    "no AWS credentials found: run `aws configure` or `aws sso login`, or set AWS_PROFILE; "
    "prices without an account: --cloud any"
)

_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
_REFUSED = (
    "AuthFailure",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
)
_DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
_THROTTLED = (
    "EC2ThrottledException",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
)


@contextmanager
def explained(permission: str, read: str = "") -> Iterator[None]:
    """Turns errors of boto3, and answers of another form, into CallFailed.

    `permission`: what the call needs. `read`: what could not be read, if it is not the answer.
    """
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except ClientError as error:
        raise _refusal(error.response.get("Error", {}), str(error), permission) from None
    except BotoCoreError as error:
        raise _breakdown(error) from None
    except (ResponseParserError, AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ValueError) and "Invalid endpoint" in str(error):  # boto3 has no class for it
            raise CallFailed(f"{error}: correct AWS_ENDPOINT_URL or endpoint_url", lasting=True) from None
        raise CallFailed(f"{read or f'the answer to {permission}'} was not understood ({error!r})") from None


def _refusal(told: dict[str, str], text: str, permission: str) -> CallFailed:
    """The line for an error in AWS's answer."""
    code = told.get("Code", "")
    if code in _EXPIRED:
        return CallFailed(
            "the AWS credentials have expired: renew them, for example with `aws sso login`", lasting=True
        )
    if code in _REFUSED:
        return CallFailed(
            f"AWS does not accept the credentials here ({code}): check them, "
            "and that the region is enabled for the account",
            lasting=True,
        )
    if code in _DENIED:
        return CallFailed(f"access denied: the credentials need the permission {permission}")
    if code in _THROTTLED:
        return CallFailed(f"AWS still limited the rate of {permission} after all retries: try again later")
    return CallFailed(text)


def _breakdown(error: Exception) -> CallFailed:
    """The line for a call without an answer from AWS."""
    from botocore import exceptions

    if isinstance(error, exceptions.NoCredentialsError):
        return CallFailed(NO_CREDENTIALS, lasting=True)
    if isinstance(error, exceptions.ProfileNotFound):
        return CallFailed(_unknown_profile(error.kwargs["profile"]), lasting=True)
    expired = (exceptions.SSOError, exceptions.TokenRetrievalError, exceptions.LoginError)
    if isinstance(error, expired):
        return CallFailed(f"{str(error).rstrip('.')}: sign in again with `aws sso login` or `aws login`", lasting=True)
    if isinstance(error, exceptions.ReadTimeoutError):
        url = error.kwargs.get("endpoint_url")
        return CallFailed(f"no answer from {url}: check the network, proxy and AWS_ENDPOINT_URL", lasting=True)
    if isinstance(error, (exceptions.ConnectionError, exceptions.HTTPClientError)):
        url = error.kwargs.get("endpoint_url")
        if url is None or isinstance(error, exceptions.SSLError):  # the text contains the cause
            return CallFailed(f"{str(error).rstrip('.')}: check the network, proxy and AWS_CA_BUNDLE", lasting=True)
        return CallFailed(f"no connection to {url}: check the network, proxy and AWS_ENDPOINT_URL", lasting=True)
    return CallFailed(f"{str(error).rstrip('.')}: check the AWS configuration", lasting=True)


def _unknown_profile(name: str) -> str:
    import botocore.session

    return unknown("AWS profile", name, botocore.session.Session().available_profiles)
