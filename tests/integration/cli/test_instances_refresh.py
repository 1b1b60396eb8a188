"""`ddlprof instances refresh` against a moto server over HTTP: pages, throttling, failures, and being killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from ddlprof.instance_catalog import CatalogError, Price, load
from ddlprof.instance_catalog.overlay import read_overlay
from ddlprof.instance_catalog.refresh import RefreshReport, refresh
from tests.aws_account import sign_in
from tests.integration.cli.aws_server import AwsServer
from tests.integration.processes import PATIENCE_S, Processes
from tests.short import first_short

moto_server = pytest.importorskip("moto.server")

Ddlprof = Callable[..., subprocess.CompletedProcess[bytes]]

ON_DEMAND = {"p4d.24xlarge": 22.5, "g4dn.xlarge": 0.526, "g4dn.metal": 7.824, "p3.2xlarge": 3.06, "m5.large": 0.096}
SPOT = {"p4d.24xlarge": {"a": 12.5, "b": 11.25}, "g4dn.xlarge": {"a": 0.21, "b": 0.2, "c": 0.25}}
TYPES = ("p4d.24xlarge", "g4dn.*", "g6f.large", "g4ad.xlarge")
LONG_AGO = datetime(2101, 3, 1, tzinfo=timezone.utc)  # but after the embedded snapshot
TODAY = datetime(2101, 6, 1, tzinfo=timezone.utc)

OLD_STATE: dict[str, bytes] = {}
"""Made once."""


@pytest.fixture(scope="module")
def moto_port() -> Iterator[int]:
    """A moto server of its own."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()[1]
    finally:
        server.stop()


@pytest.fixture(autouse=True)
def aws(moto_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[AwsServer]:
    """AWS as this process and its children see it, with prices and one old type."""
    server = AwsServer(moto_port)
    server.state.on_demand, server.state.spot, server.state.old_types = dict(ON_DEMAND), dict(SPOT), ("p3.2xlarge",)
    sign_in(monkeypatch, tmp_path, AWS_ENDPOINT_URL=server.url, DDLPROF_CATALOG=str(tmp_path / "overlay"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def overlay(tmp_path: Path) -> Path:
    """The user's directory, not there yet."""
    return tmp_path / "overlay"


@pytest.fixture
def old_state(overlay: Path) -> dict[str, bytes]:
    """The overlay after a refresh of long ago, by file."""
    if OLD_STATE:
        overlay.mkdir()
        for name, content in OLD_STATE.items():
            (overlay / name).write_bytes(content)
    else:
        refresh(["us-east-1"], overlay, instance_types=TYPES, now=LONG_AGO)
        OLD_STATE.update(contents(overlay))
    return dict(OLD_STATE)


def contents(directory: Path) -> dict[str, bytes]:
    """The files a reader sees; a killed writer may leave temporary ones, which have names with a dot in front."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.startswith(".")}


def rows(report: RefreshReport) -> dict[tuple[str, str], int]:
    return {(outcome.region, outcome.kind): outcome.rows for outcome in report.outcomes}


def price_in(overlay: Path, name: str, pricing: str, region: str = "us-east-1") -> Price:
    price = load(overlay).price(name, region, pricing)
    assert price is not None
    return price


def test_fills_the_overlay_for_two_regions(ddlprof: Ddlprof, aws: AwsServer, overlay: Path) -> None:
    aws.state.throttled = {
        "DescribeInstanceTypes": 1,
        "DescribeInstanceTypeOfferings": 1,
        "DescribeSpotPriceHistory": 1,
        "GetProducts": 2,
    }
    done = ddlprof("instances", "refresh", "--region", "us-east-1,eu-west-1", "--instance", ",".join(TYPES))
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    assert set(aws.state.throttled.values()) == {0}

    own = read_overlay(overlay)
    types = {row.instance_type: row for row in own.instances}
    assert {"p4d.24xlarge", "p3.2xlarge", "g4dn.metal", "g6f.large"} <= types.keys()
    assert "g4ad.xlarge" not in types  # Radeon
    prices = {(row.region, row.instance_type, row.pricing): row.usd_per_hour for row in own.prices}
    for region in ("us-east-1", "eu-west-1"):
        assert prices[region, "p4d.24xlarge", "on_demand"] == 22.5
        assert prices[region, "g4dn.metal", "on_demand"] == 7.824
        assert prices[region, "p4d.24xlarge", "spot"] == 11.25
        assert prices[region, "g4dn.xlarge", "spot"] == 0.2
        assert aws.state.asked["DescribeInstanceTypes", region] > 2
        assert aws.state.asked["DescribeInstanceTypeOfferings", region] > 1
        assert aws.state.asked["DescribeSpotPriceHistory", region] > 1
    assert aws.state.asked["GetProducts", ""] > 2
    assert not [key for key in prices if key[1] == "m5.large"]
    assert {row.basis for row in own.prices} == {"api"}
    assert types["p4d.24xlarge"].offered_regions[0] == "eu-west-1"
    assert "eu-west-1" not in types["g6f.large"].offered_regions


@pytest.mark.slow
def test_the_merged_view_has_the_newer_facts_and_those_of_the_tables(overlay: Path) -> None:
    before = load(None).instance("p4d.24xlarge")
    refresh(["us-east-1"], overlay, instance_types=TYPES, now=TODAY)
    catalog = load(overlay)
    merged = catalog.instance("p4d.24xlarge")
    assert merged.spec_as_of == "2101-06-01"
    assert (merged.gpus, merged.network_gbps, merged.efa_interfaces) == (8, 400, 4)
    assert (merged.interconnect, merged.cpu_model, merged.notes) == (
        before.interconnect,
        before.cpu_model,
        before.notes,
    )
    fraction = catalog.instance("g6f.large")
    assert (fraction.gpus, fraction.gpu_fraction, fraction.gpu_memory_gib) == (0, 0.125, 3)
    assert catalog.instance("p3.2xlarge").gpu_model == "V100-SXM2-16GB"
    assert price_in(overlay, "p4d.24xlarge", "on_demand").as_of == "2101-06-01"


def test_what_failed_keeps_its_old_rows(aws: AwsServer, overlay: Path, old_state: dict[str, bytes]) -> None:
    aws.state.on_demand["p4d.24xlarge"] = 20.0
    aws.state.spot["p4d.24xlarge"] = {"a": 9.0}
    aws.state.refused["DescribeSpotPriceHistory", "us-east-1"] = "UnauthorizedOperation"
    report = refresh(["us-east-1", "us-west-2"], overlay, instance_types=TYPES, now=TODAY)
    failed = [outcome for outcome in report.outcomes if not outcome.ok]
    assert [(outcome.region, outcome.kind, outcome.rows) for outcome in failed] == [("us-east-1", "spot", 0)]
    assert failed[0].error == "access denied: the credentials need the permission ec2:DescribeSpotPriceHistory"
    on_demand, spot = (price_in(overlay, "p4d.24xlarge", pricing) for pricing in ("on_demand", "spot"))
    assert (on_demand.usd_per_hour, on_demand.as_of) == (20.0, "2101-06-01")
    assert (spot.usd_per_hour, spot.as_of) == (11.25, "2101-03-01")
    assert price_in(overlay, "p4d.24xlarge", "spot", "us-west-2").usd_per_hour == 9.0


def test_types_that_failed_keep_theirs_and_prices_come_all_the_same(
    aws: AwsServer, overlay: Path, old_state: dict[str, bytes]
) -> None:
    aws.state.refused["DescribeInstanceTypes", "us-east-1"] = "UnauthorizedOperation"
    report = refresh(["us-east-1"], overlay, instance_types=TYPES, now=TODAY)
    assert rows(report)["us-east-1", "spot"] == 2
    assert load(overlay).instance("p4d.24xlarge").spec_as_of == "2101-03-01"
    assert price_in(overlay, "p4d.24xlarge", "spot").as_of == "2101-06-01"


@pytest.mark.slow
def test_prices_that_can_be_none_are_not_believed(aws: AwsServer, overlay: Path) -> None:
    aws.state.spot = {}  # moto's own: 0.00001 for everything
    aws.state.on_demand["p4d.24xlarge"] = 700.0
    report = refresh(["us-east-1"], overlay, instance_types=TYPES, now=TODAY)
    assert report.ok
    assert rows(report)["us-east-1", "spot"] == 0
    doubts = {(doubt.instance_type, doubt.field): doubt for doubt in report.contradictions}
    assert "below 0.01 USD" in doubts["g4dn.xlarge", "spot_usd_per_hour"].reason
    assert doubts["p4d.24xlarge", "on_demand_usd_per_hour"].answered == "700"
    assert {price.pricing for price in read_overlay(overlay).prices} == {"on_demand"}
    assert price_in(overlay, "p4d.24xlarge", "on_demand").usd_per_hour < 100


@pytest.mark.parametrize(("how", "exit_code"), first_short([(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]))
def test_ended_while_it_asks_it_leaves_the_old_state(
    processes: Processes, aws: AwsServer, overlay: Path, old_state: dict[str, bytes], how: signal.Signals,
    exit_code: int,
) -> None:  # fmt: skip
    aws.state.held["DescribeSpotPriceHistory"] = threading.Event()
    aws.state.on_demand["p4d.24xlarge"] = 20.0
    command = [sys.executable, "-m", "ddlprof", "instances", "refresh", "--region", "us-east-1", "--instance", "p4d.*"]
    process = processes.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert aws.state.reached.wait(PATIENCE_S)  # types, offerings and on-demand prices were answered
        process.send_signal(how)
        assert process.communicate(timeout=PATIENCE_S) == (b"", b"")  # while the server still holds its answer back
        assert process.returncode == exit_code
    finally:
        aws.state.held.pop("DescribeSpotPriceHistory").set()
    assert contents(overlay) == old_state


KILLED_AT_REPLACEMENT = """
import os, signal, sys
from datetime import datetime, timezone
from pathlib import Path
from ddlprof.instance_catalog.refresh import refresh

left = int(sys.argv[2])
replace = os.replace

def replace_or_die(source, target):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

os.replace = replace_or_die
now = datetime(2101, 6, 1, tzinfo=timezone.utc)
refresh(["us-east-1"], Path(sys.argv[1]), instance_types=["p4d.*"], now=now)
"""


@pytest.mark.parametrize("files_written", [0, 1])
def test_killed_while_it_writes_it_leaves_whole_files(
    processes: Processes, aws: AwsServer, overlay: Path, old_state: dict[str, bytes], files_written: int
) -> None:
    aws.state.on_demand["p4d.24xlarge"] = 20.0
    script = textwrap.dedent(KILLED_AT_REPLACEMENT)
    done = processes.run(sys.executable, "-c", script, str(overlay), str(files_written))
    assert done.returncode == -signal.SIGKILL
    new = contents(overlay)
    assert new.keys() == old_state.keys()
    changed = [name for name in sorted(new) if new[name] != old_state[name]]
    assert changed == ["instances.csv"][:files_written]
    catalog = load(overlay)  # whatever was written can be read, and no price is of an unknown type
    assert {price.instance_type for price in catalog.prices} <= {row.instance_type for row in catalog.instances}
    assert price_in(overlay, "p4d.24xlarge", "on_demand").usd_per_hour == 22.5


def no_credentials(monkeypatch: pytest.MonkeyPatch, aws: AwsServer, folder: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")


def no_network(monkeypatch: pytest.MonkeyPatch, aws: AwsServer, folder: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")


def no_such_profile(monkeypatch: pytest.MonkeyPatch, aws: AwsServer, folder: Path) -> None:
    (folder / "aws-config").write_text("[profile training]\nregion = us-east-1\n", encoding="utf-8")
    monkeypatch.setenv("AWS_PROFILE", "trainign")


def expired(monkeypatch: pytest.MonkeyPatch, aws: AwsServer, folder: Path) -> None:
    for action in ("DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "DescribeSpotPriceHistory"):
        aws.state.refused[action, "us-east-1"] = "RequestExpired"
    aws.state.refused["GetProducts", ""] = "ExpiredTokenException"


def always_throttled(monkeypatch: pytest.MonkeyPatch, aws: AwsServer, folder: Path) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    aws.state.throttled = dict.fromkeys(
        ("DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "DescribeSpotPriceHistory", "GetProducts"), 100
    )


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (no_credentials, "no AWS credentials found: run `aws configure` or `aws sso login`, or set AWS_PROFILE"),
        (no_network, "no connection to http://127.0.0.1:9/: check the network, proxy and AWS_ENDPOINT_URL"),
        (no_such_profile, "unknown AWS profile 'trainign'; closest: training"),
        (expired, "the AWS credentials have expired: renew them, for example with `aws sso login`"),
        (
            always_throttled,
            "AWS still limited the rate of ec2:DescribeInstanceTypes after all retries: try again later",
        ),
    ],
)
def test_errors_are_one_line_and_change_nothing(
    ddlprof: Ddlprof,
    aws: AwsServer,
    overlay: Path,
    old_state: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    trouble: Callable[..., None],
    words: str,
) -> None:
    trouble(monkeypatch, aws, tmp_path)
    done = ddlprof("instances", "refresh", "--region", "us-east-1", "--instance", "p4d.*")
    assert (done.returncode, done.stdout) == (2, b"")
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1
    assert words in lines[0]
    assert contents(overlay) == old_state


def test_a_wrong_region_names_the_closest(ddlprof: Ddlprof) -> None:
    done = ddlprof("instances", "refresh", "--region", "us-esat-1")
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("ddlprof: unknown region 'us-esat-1'; closest: ")
    assert "us-east-1" in line


def test_a_call_that_fails_is_said_beside_the_others(ddlprof: Ddlprof, aws: AwsServer) -> None:
    aws.state.refused["GetProducts", ""] = "AccessDeniedException"
    done = ddlprof("instances", "refresh", "--region", "us-east-1", "--instance", "p4d.*")
    assert done.returncode == 1
    assert "access denied: the credentials need the permission pricing:GetProducts" in done.stdout.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "region"),
    [({"AWS_REGION": "us-west-2", "AWS_DEFAULT_REGION": "us-east-1"}, "us-west-2"), ({}, None)],
)
def test_without_a_region_the_configured_one_counts(
    overlay: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, Any], region: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if region is None:
        with pytest.raises(CatalogError, match="no region: give one, or set AWS_REGION"):
            refresh([], overlay, instance_types=["p4d.*"])
        return
    report = refresh([], overlay, instance_types=["p4d.*"])
    assert {outcome.region for outcome in report.outcomes} == {region}


@pytest.mark.slow
def test_progress_counts_every_call(overlay: Path) -> None:
    seen: list[tuple[int, int]] = []
    refresh(["us-east-1", "us-west-2"], overlay, instance_types=["p4d.*"], on_progress=lambda *now: seen.append(now))
    assert seen == [(done, 8) for done in range(1, 9)]
