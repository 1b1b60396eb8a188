"""Object stores behind fsspec's interface: S3, Google Cloud Storage and Azure through obstore.

obstore finds its settings in the environment, as each cloud's own tools do. For S3, boto3 provides credentials and
region, so that profiles, single sign-on and roles of machines work as usual.
"""

from __future__ import annotations

import os
import re
from datetime import timedelta
from typing import Any

from ddlprof.base.errors import UserError

_PROTOCOLS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **{name: name for name in ("az", "adl", "azure", "abfs", "abfss")},
}
_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=30)}
"""Limits for retries, as a user is waiting; obstore's own default is three minutes."""
_TRUE = ("1", "true", "yes", "on")
_ENDPOINT = re.compile(r"Error performing \w+ (https?://[^/\s]+)")
_ANSWER = re.compile(r"<Code>(?P<code>[^<]+)</Code>.*?<Message>(?P<message>[^<]*)</Message>", re.DOTALL)


def is_object_store(protocol: str) -> bool:
    """Whether URLs with this protocol are read through obstore."""
    return protocol in _PROTOCOLS


def open_store(url: str) -> tuple[Any, str]:
    """The file system and the path in it. Raises UserError if a package or credentials are missing."""
    try:
        from obstore.fsspec import FsspecStore
    except ImportError:
        raise UserError(
            f"{url}: reading object stores needs obstore and fsspec: pip install 'ddlprof[remote]'"
        ) from None
    protocol, _, path = url.partition("://")
    if ":" in path.partition("/")[0].rpartition("@")[0]:
        raise UserError(f"{url}: credentials are not taken from a URL: log in as for the cloud's own tools")
    store = _PROTOCOLS[protocol]
    settings = _s3_settings(url) if store == "s3" else {}
    file_system: Any = FsspecStore  # its signature has an overload for each store
    return file_system(store, retry_config=_RETRIES, skip_instance_cache=True, **settings), path.rstrip("/")


def reason(error: Exception) -> str:
    """The store's answer, or why there is none, without obstore's list of retries."""
    text = str(error)
    if answer := _ANSWER.search(text):
        return f"{answer['message'].strip().rstrip('.')} ({answer['code']})"
    first = (text.strip().splitlines() or [type(error).__name__])[0]
    endpoint = _ENDPOINT.search(first)
    text = f"{endpoint[1]}: {first.rpartition(' - ')[2]}" if endpoint else first
    return text.rstrip(".: ")


def _s3_settings(url: str) -> dict[str, Any]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    settings: dict[str, Any] = {"config": {"endpoint": endpoint}} if endpoint else {}
    settings["client_options"] = {"allow_http": endpoint.startswith("http://")}
    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in _TRUE:  # a public bucket
        return settings
    import boto3
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = boto3.session.Session()
        credentials = session.get_credentials()
        if credentials is not None:
            credentials.get_frozen_credentials()  # raises if a login has expired
    except BotoCoreError as error:
        raise UserError(f"{url}: cannot be read: {error}") from None
    if credentials is None:
        raise UserError(
            f"{url}: cannot be read: no AWS credentials were found: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (AWS_SKIP_SIGNATURE=true for a public bucket)"
        )
    return {**settings, "credential_provider": Boto3CredentialProvider(session)}
