"""What went wrong in a call to AWS, as one line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from instance_catalog.refresh.providers.base import CallFailed, unknown

NO_CREDENTIALS = "no AWS credentials found: run `aws configure` or `aws sso login`, or set AWS_PROFILE"

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
    """Turns what boto3 raises, and answers of another shape, into CallFailed.

    `permission` is what the call needs, `read` what is not understood if it is not the answer.
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
    """The line for an error that AWS answered with."""
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
    """The line for a call that AWS did not answer."""
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
        if url is None or isinstance(error, exceptions.SSLError):  # then the cause is in the text
            return CallFailed(f"{str(error).rstrip('.')}: check the network, proxy and AWS_CA_BUNDLE", lasting=True)
        return CallFailed(f"no connection to {url}: check the network, proxy and AWS_ENDPOINT_URL", lasting=True)
    return CallFailed(f"{str(error).rstrip('.')}: check the AWS configuration", lasting=True)


def _unknown_profile(name: str) -> str:
    import botocore.session

    return unknown("AWS profile", name, botocore.session.Session().available_profiles)
