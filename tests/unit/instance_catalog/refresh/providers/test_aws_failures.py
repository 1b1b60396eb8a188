"""Every way a call to AWS goes wrong is one line that says what to do."""

from __future__ import annotations

import pytest
from botocore import exceptions
from botocore.exceptions import ClientError

from instance_catalog.refresh.providers.aws_failures import explained
from instance_catalog.refresh.providers.base import CallFailed


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
