"""What entries of the API's answers say, on a real dump and on odd strings."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore import exceptions
from botocore.exceptions import ClientError

from ddlprof.instance_catalog.refresh.providers.aws_answers import (
    explained,
    parse_network,
    parse_on_demand,
    parse_spot,
    parse_type,
)
from ddlprof.instance_catalog.refresh.providers.base import CallFailed, NetworkSpeed, TypeAnswer

DUMP = json.loads((Path(__file__).parents[1] / "describe_instance_types.json").read_text(encoding="utf-8"))
NOON = datetime(2026, 8, 2, 12)


def entry(name: str) -> dict[str, Any]:
    return next(item for item in DUMP["InstanceTypes"] if item["InstanceType"] == name)


def parsed(name: str) -> TypeAnswer:
    answer = parse_type(entry(name))
    assert answer is not None
    return answer


@pytest.mark.parametrize(
    ("text", "speed"),
    [
        ("50 Gigabit", NetworkSpeed(50, burst=False)),
        ("Up to 12.5 Gigabit", NetworkSpeed(12.5, burst=True)),
        ("4x 100 Gigabit", NetworkSpeed(400, burst=False)),
        ("High", None),
        ("Moderate", None),
        ("", None),
        ("10 Gigabit and more", None),
    ],
)
def test_network_strings(text: str, speed: NetworkSpeed | None) -> None:
    assert parse_network(text) == speed


def test_a_fraction_of_a_gpu() -> None:
    answer = parsed("g6f.large")
    assert (answer.gpus, answer.gpu_fraction) == (0, 0.125)
    assert answer.gpu_memory_gib == pytest.approx(2861 / 1024)
    assert answer.network == NetworkSpeed(10, burst=True)
    assert answer.card_gbps == (1.5,)


def test_an_old_answer_lacks_the_newer_keys() -> None:
    answer = parsed("p2.xlarge")
    assert (answer.gpu_name, answer.gpus, answer.gpu_fraction) == ("K80", 1, 1.0)
    assert answer.network is None
    assert answer.local_storage_gib == 0


def test_what_the_api_does_not_say_is_not_known() -> None:
    least = {
        "InstanceType": "p9.xlarge",
        "VCpuInfo": {"DefaultVCpus": 4},
        "MemoryInfo": {"SizeInMiB": 1024},
        "GpuInfo": {"Gpus": [{"Name": "L4", "Manufacturer": "NVIDIA", "Count": 1, "MemoryInfo": {"SizeInMiB": 1024}}]},
        "NetworkInfo": {},
    }
    answer = parse_type(least)
    assert answer is not None
    unknown = ("efa", "efa_interfaces", "ena_express", "local_storage_gib", "ebs_gbps", "network", "network_cards")
    assert [getattr(answer, name) for name in unknown] == [None] * len(unknown)


def test_other_makers_are_left_out() -> None:
    assert parse_type(entry("g4ad.xlarge")) is None
    assert parse_type({"InstanceType": "m5.large"}) is None


def product(name: str, *prices: tuple[str, str]) -> str:
    dimensions = {str(i): {"unit": unit, "pricePerUnit": {"USD": usd}} for i, (unit, usd) in enumerate(prices)}
    terms = {"OnDemand": {"SKU.JRTC": {"priceDimensions": dimensions}}}
    return json.dumps({"product": {"attributes": {"instanceType": name}}, "terms": terms})


def test_on_demand_prices() -> None:
    products = [
        product("p4d.24xlarge", ("Hrs", "0.0000000000"), ("Hrs", "21.9576420000")),
        product("g5.xlarge", ("Quantity", "3.0")),
        product("g6.xlarge", ("Hrs", "0.9")),
        product("g6.xlarge", ("Hrs", "0.8")),
        json.dumps({"product": {"attributes": {"instanceType": "g4dn.xlarge"}}, "terms": {}}),
    ]
    assert parse_on_demand(products) == {"p4d.24xlarge": 21.957642, "g6.xlarge": 0.8}


def test_prices_in_another_currency_are_none() -> None:
    text = product("g5.xlarge", ("Hrs", "7")).replace("USD", "CNY")
    assert parse_on_demand([text]) == {}


def offer(zone: str, price: str, hours: int = 0, **more: str) -> dict[str, Any]:
    row = {"InstanceType": "g5.xlarge", "ProductDescription": "Linux/UNIX", "AvailabilityZone": zone}
    return {**row, "SpotPrice": price, "Timestamp": NOON + timedelta(hours=hours), **more}


def test_spot_is_the_lowest_zone_at_its_latest_price() -> None:
    offers = [offer("a", "0.20", hours=-5), offer("a", "0.50"), offer("b", "0.60", hours=-5), offer("b", "0.40")]
    assert parse_spot(offers) == {"g5.xlarge": 0.40}
    assert parse_spot(reversed(offers)) == {"g5.xlarge": 0.40}


def test_spot_of_other_systems_is_passed_over() -> None:
    assert parse_spot([offer("a", "0.20", ProductDescription="Windows"), offer("b", "0.40")]) == {"g5.xlarge": 0.40}


def failure(error: Exception) -> CallFailed:
    with pytest.raises(CallFailed) as caught, explained("ec2:DescribeInstanceTypes"):
        raise error
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("code", "words", "lasting"),
    [
        ("RequestExpired", "the AWS credentials have expired: renew them", True),
        ("ExpiredTokenException", "the AWS credentials have expired: renew them", True),
        ("AuthFailure", "does not accept the credentials here (AuthFailure): check them, and that the region", True),
        ("UnrecognizedClientException", "does not accept the credentials here", True),
        ("UnauthorizedOperation", "the credentials need the permission ec2:DescribeInstanceTypes", False),
        ("AccessDeniedException", "the credentials need the permission ec2:DescribeInstanceTypes", False),
        ("RequestLimitExceeded", "limited the rate of ec2:DescribeInstanceTypes after all retries: try again", False),
        ("InternalError", "An error occurred (InternalError) when calling the Op operation: two lines", False),
    ],
)
def test_refusals(code: str, words: str, lasting: bool) -> None:
    found = failure(ClientError({"Error": {"Code": code, "Message": "two\nlines"}}, "Op"))
    assert words in str(found)
    assert found.lasting is lasting


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (exceptions.NoCredentialsError(), "no AWS credentials found: run `aws configure`"),
        (exceptions.PartialCredentialsError(provider="env", cred_var="KEY"), "missing: KEY: check the AWS configura"),
        (exceptions.UnauthorizedSSOTokenError(), "sign in again with `aws sso login`"),
        (exceptions.SSOTokenLoadError(error_msg="gone"), "sign in again with `aws sso login`"),
        (exceptions.EndpointConnectionError(endpoint_url="https://x"), "no connection to https://x: check the network"),
        (exceptions.ConnectTimeoutError(endpoint_url="https://x"), "no connection to https://x: check the network"),
        (
            exceptions.SSLError(endpoint_url="https://x", error="old"),
            "https://x old: check the network, proxy and AWS_CA_",
        ),
        (exceptions.HTTPClientError(error="no such bundle"), "no such bundle: check the network, proxy and AWS_CA_"),
        (exceptions.ConfigParseError(path="~/.aws/config"), "~/.aws/config: check the AWS configuration"),
        (ValueError("Invalid endpoint: nonsense"), "correct AWS_ENDPOINT_URL or endpoint_url"),
    ],
)
def test_breakdowns_last(error: Exception, words: str) -> None:
    found = failure(error)
    assert words in str(found)
    assert found.lasting


def test_an_answer_that_cannot_be_read() -> None:
    found = failure(KeyError("Count"))
    assert str(found) == "the answer to ec2:DescribeInstanceTypes was not understood (KeyError('Count'))"
    assert not found.lasting
