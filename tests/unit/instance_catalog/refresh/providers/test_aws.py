"""What AWS is asked, and where; its clients are made up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from ddlprof.instance_catalog.refresh.fetch import Deadline, RegionAnswers, fetch
from ddlprof.instance_catalog.refresh.providers.aws import Aws

NOW = datetime(2026, 9, 1)
EMPTY: dict[str, dict[str, Any]] = {
    "describe_instance_types": {"InstanceTypes": []},
    "describe_instance_type_offerings": {"InstanceTypeOfferings": [{"InstanceType": "g5.xlarge"}]},
    "describe_spot_price_history": {"SpotPriceHistory": []},
    "get_products": {"PriceList": []},
}


class Client:
    """Answers one page for each operation, or raises what it is told to."""

    def __init__(self, service: str, region: str, answers: dict[str, Any], asked: list[tuple[str, ...]]) -> None:
        self._where = (service, region)
        self._answers = answers
        self._asked = asked

    def get_paginator(self, operation: str) -> Client:
        self._operation = operation
        return self

    def paginate(self, **request: Any) -> Iterator[dict[str, Any]]:
        self._asked.append((*self._where, self._operation))
        answer = self._answers.get(self._operation, EMPTY[self._operation])
        if isinstance(answer, Exception):
            raise answer
        yield answer


def ask(regions: list[str], **answers: Any) -> tuple[list[RegionAnswers], list[tuple[str, ...]]]:
    asked: list[tuple[str, ...]] = []
    aws = Aws(clients=lambda service, region: Client(service, region, answers, asked))
    found = fetch(aws, regions, ["g*"], ["g5.xlarge"], NOW, lambda done, total: None, Deadline(60.0))
    return found, asked


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "Describe")


def test_prices_are_asked_where_the_price_list_is() -> None:
    _, asked = ask(["us-west-2", "eu-north-1", "ap-northeast-1"])
    assert {region for service, region, _ in asked if service == "pricing"} == {
        "us-east-1",
        "eu-central-1",
        "ap-south-1",
    }


@pytest.mark.parametrize("trouble", [EndpointConnectionError, ReadTimeoutError])
def test_an_endpoint_that_cannot_be_reached_is_asked_once(trouble: type[Exception]) -> None:
    error = trouble(endpoint_url="https://ec2", error="")  # type: ignore[call-arg]
    (found,), asked = ask(["us-east-1"], describe_instance_types=error)
    assert [operation for service, _, operation in asked if service == "ec2"] == ["describe_instance_types"]
    assert found.errors.keys() == {"types", "offerings", "spot"}
    assert len(set(found.errors.values())) == 1
    assert "https://ec2: check the network, proxy and AWS_ENDPOINT_URL" in found.errors["types"]
    assert found.on_demand == {}


def test_a_missing_permission_stops_that_call_only() -> None:
    (found,), _ = ask(["us-east-1"], describe_instance_types=refusal("UnauthorizedOperation"))
    assert found.errors.keys() == {"types"}
    assert (found.types, found.offerings, found.spot) == (None, {"g5.xlarge"}, {})


def test_no_types_means_no_spot_prices_to_ask_for() -> None:
    _, asked = ask(["us-east-1"])
    assert "describe_spot_price_history" not in {operation for *_, operation in asked}


@pytest.mark.parametrize(
    "answers",
    [
        {"describe_instance_types": {"InstanceTypes": [{"GpuInfo": {"Gpus": [{"Manufacturer": "NVIDIA"}]}}]}},
        {"describe_instance_types": {}},
        {"describe_instance_types": {"InstanceTypes": [None]}},
    ],
)
def test_answers_of_another_shape_are_failures(answers: dict[str, Any]) -> None:
    (found,), _ = ask(["us-east-1"], **answers)
    assert found.errors["types"].startswith("the answer to ec2:DescribeInstanceTypes was not understood (")
    assert "\n" not in found.errors["types"]
