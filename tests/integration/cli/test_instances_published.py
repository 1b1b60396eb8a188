"""`ddlprof instances refresh` without an account, from a server with files in gpuhunt's form, and the offer of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddlprof.instance_catalog import load
from tests.integration.cli.hostile_server import Handler, dripping, endless, hostile, silent
from tests.integration.processes import PATIENCE_S, Processes
from tests.unit.instance_catalog.refresh.gpuhunt_server import VERSION, published, serving

Ddlprof = Callable[..., subprocess.CompletedProcess[bytes]]
EXAMPLE = Path(__file__).parents[3] / "examples" / "gpt2-large.json"


@pytest.fixture(autouse=True)
def overlay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's directory, not there yet."""
    monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path / "overlay"))
    return tmp_path / "overlay"


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """What the server has."""
    files = published()
    with serving(files) as url:
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", url)
        yield files


def test_prices_of_all_clouds_without_an_account(ddlprof: Ddlprof, overlay: Path, files: dict[str, bytes]) -> None:
    done = ddlprof("instances", "refresh")
    assert (done.returncode, done.stderr) == (0, b"")
    lines = done.stdout.decode().splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["cloud", "what", "rows"], ["aws", "prices", "2"], ["azure", "prices", "1"]
    ]  # fmt: skip
    assert lines[-2:] == [f"Wrote {overlay / 'instances.csv'}", f"Wrote {overlay / 'prices.csv'}"]
    price = load(overlay).price("p5.48xlarge", "us-east-1")
    assert price is not None
    assert (price.as_of, price.source) == ("2026-08-20", f"gpuhunt {VERSION}")
    before = (overlay / "prices.csv").read_bytes()
    files.clear()
    done = ddlprof("instances", "refresh")
    assert (done.returncode, done.stdout) == (2, b"")
    assert len(done.stderr.splitlines()) == 1
    assert (overlay / "prices.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("typed", "code", "words"),
    [
        (["--cloud", "gcp"], 0, ""),
        (["--cloud", "GCP", "--region", "us-central1", "--instance", "n1-*"], 0, ""),
        (["--cloud", "hyperstack"], 2, "no prices of 'hyperstack' are published; known: any, aws, azure"),
        (["--cloud", "gcp", "--profile", "lab"], 2, "--profile is for --cloud aws"),
    ],
    ids=["gcp", "named", "unknown", "profile"],
)
def test_one_cloud(
    ddlprof: Ddlprof, overlay: Path, files: dict[str, bytes], typed: list[str], code: int, words: str
) -> None:
    done = ddlprof("instances", "refresh", *typed)
    assert done.returncode == code
    assert words in done.stderr.decode()
    if code == 0:
        assert {price.cloud for price in load(overlay).prices if price.source.startswith("gpuhunt")} == {"gcp"}


@pytest.mark.parametrize("behaviour", [silent, dripping, endless])
def test_it_ends_whatever_the_server_does(
    ddlprof: Ddlprof, monkeypatch: pytest.MonkeyPatch, overlay: Path, behaviour: Callable[[Handler], None]
) -> None:
    with hostile(behaviour) as server:
        monkeypatch.setenv("GPUHUNT_CATALOG_URL", server.url)
        done = ddlprof("instances", "refresh", "--cloud", "oci", "--timeout", "3s")
    assert server.requests
    assert (done.returncode, done.stdout) == (2, b"")
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("ddlprof: no prices were refreshed: ")
    assert not overlay.exists()


def test_recommend_offers_it_on_a_terminal(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pty = pytest.importorskip("pty")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = ["recommend", str(EXAMPLE), "--batch", "2", "--samples", "3000", "--budget", "12h", "--max-nodes", "1"]
    said = []
    for _ in range(2):
        main, there = pty.openpty()
        process = processes.start(sys.executable, "-m", "ddlprof", *words, stdout=subprocess.DEVNULL, stderr=there)
        os.close(there)
        assert process.wait(PATIENCE_S) == 0
        os.set_blocking(main, False)
        said.append(_rest(main))
        os.close(main)
    assert "days old; for newer ones, without an account: ddlprof instances refresh" in said[0]
    assert "days old" not in said[1]


def _rest(main: int) -> str:
    data = b""
    try:
        while part := os.read(main, 1 << 16):
            data += part
    except OSError:  # all was read, and the other end is closed
        pass
    return data.decode()
