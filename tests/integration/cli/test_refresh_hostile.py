"""`ddlprof instances refresh` where the endpoint is no cloud: one line, and an end, whatever it does.

That the command ends at all is what is tested: none of these servers would ever let it. The seconds it is given include
boto3's start, which takes several of them where other tests run beside.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.instance_catalog import CatalogError
from ddlprof.instance_catalog.refresh import fetch, refresh
from ddlprof.instance_catalog.refresh.providers import aws
from ddlprof.instance_catalog.refresh.providers.base import MOST_MIB, MOST_PAGES
from tests.aws_account import sign_in
from tests.integration.cli.hostile_server import Handler, dripping, endless, hostile, paging, silent

pytest.importorskip("boto3")

Ddlprof = Callable[..., subprocess.CompletedProcess[bytes]]
REFRESH = ("instances", "refresh", "--region", "us-east-1")


@pytest.fixture(autouse=True)
def overlay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's directory, not there yet, and credentials."""
    sign_in(monkeypatch, tmp_path, DDLPROF_CATALOG=str(tmp_path / "overlay"))
    return tmp_path / "overlay"


@pytest.mark.parametrize(
    ("behaviour", "timeout", "words"),
    [
        pytest.param(silent, "12s", "the 12 s that the refresh may take (--timeout) are over", marks=pytest.mark.slow),
        pytest.param(
            dripping,
            "12s",
            "the 12 s that the refresh may take (--timeout) are over",
            marks=[pytest.mark.slow, pytest.mark.nightly],
        ),
        (paging, "2m", f"more than {MOST_PAGES} pages: not the answer of a cloud, check the endpoint"),
        (endless, "2m", f"more than {MOST_MIB} MiB: not the answer of a cloud, check the endpoint"),
    ],
)
def test_it_ends_with_one_line(
    ddlprof: Ddlprof,
    monkeypatch: pytest.MonkeyPatch,
    overlay: Path,
    behaviour: Callable[[Handler], None],
    timeout: str,
    words: str,
) -> None:
    with hostile(behaviour) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        done = ddlprof(*REFRESH, "--timeout", timeout)
    assert server.requests
    assert (done.returncode, done.stdout) == (2, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"ddlprof: nothing was refreshed, all calls failed: {words}")
    assert not overlay.exists()


@pytest.mark.slow
def test_who_is_silent_is_asked_once(monkeypatch: pytest.MonkeyPatch, overlay: Path) -> None:
    monkeypatch.setattr(aws, "READ_TIMEOUT_S", 2.0)
    with hostile(silent) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        with pytest.raises(CatalogError, match=rf"no answer from {server.url}/: check the network") as caught:
            refresh(["us-east-1"], overlay)
    assert "\n" not in str(caught.value)
    assert server.requests == ["ec2", "pricing"]


def test_who_drips_is_given_up_before_the_refresh_is_over(monkeypatch: pytest.MonkeyPatch, overlay: Path) -> None:
    with hostile(dripping) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        for limit_s in (2, 8, 32, 128):  # boto3 may need longer to ask, on a busy machine
            monkeypatch.setattr(fetch, "PAGE_S", float(limit_s))
            with pytest.raises(CatalogError, match=f"no complete answer within {limit_s} s"):
                refresh(["us-east-1"], overlay, timeout_s=600.0)
            if server.requests:
                break
    assert server.requests == ["ec2", "pricing"]


@pytest.mark.slow
def test_signing_in_ends_too(overlay: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with hostile(silent) as server:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{server.url}/credentials")
        with pytest.raises(CatalogError, match=r"refreshed, signing in failed: the 8 s that the refresh may take"):
            refresh(["us-east-1"], overlay, timeout_s=8.0)
        assert set(server.requests) == {"credentials"}  # boto3 asks again after two seconds
