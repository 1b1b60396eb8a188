"""Metrics by OpenTelemetry's protocol: sent over HTTP by the SDK, decoded by the protocol's own library."""

from __future__ import annotations

import logging
import re
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ddlprof.base.errors import UserError
from ddlprof.live.figures import MOST_RANKS
from ddlprof.live.follower import RunFollower
from ddlprof.live.otlp import address, sending
from ddlprof.live.snapshot import GONE, TRAINS, Observer, RankView, Snapshot
from ddlprof.model.classes import CLASSES
from tests.unit.live.receiver import Receiver, receiving
from tests.unit.live.runs import GrowingRun

TWO_RANKS = Path(__file__).parents[2] / "golden/two-ranks"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def snapshot_of(path: Path) -> Snapshot:
    return Observer(RunFollower(path)).look(time.time_ns())


def test_names_and_units_are_those_that_opentelemetry_asks_for(receiver: Receiver) -> None:
    with sending(receiver.url, pytest.fail) as (sender, _):
        sender.show(snapshot_of(TWO_RANKS))
        received = receiver.wait_for(1)
    for name, metric in received.metrics.items():
        assert re.fullmatch(r"ddlprof(\.[a-z_]+)+", name)
        assert not re.search("(seconds|bytes|total|joules|watts|ratio)$", name)  # receivers append the unit
        assert metric.unit in ("1", "s", "By", "J", "W") or re.fullmatch(r"\{[a-z]+\}(/s)?", metric.unit)
        assert metric.description.endswith(".")


def test_what_was_not_measured_is_not_sent(receiver: Receiver, tmp_path: Path) -> None:
    run = GrowingRun(tmp_path).begin()
    run.train(20, data_ms=None)  # type: ignore[arg-type]
    with sending(receiver.url, pytest.fail) as (sender, _):
        sender.show(snapshot_of(tmp_path))
        found = receiver.wait_for(1).values
    assert ("ddlprof.step.duration", "class=compute", "rank=0") in found
    assert not any("class=data" in key for key in found)
    assert ("ddlprof.job.remaining",) not in found


def test_the_number_of_series_is_bounded(receiver: Receiver) -> None:
    times: dict[str, float | None] = dict.fromkeys(CLASSES, 1.0)
    first = RankView(0, 0, "h", GONE, 1, 0, times, 0.0, None, dict.fromkeys(CLASSES, 1.0), None, {})
    ranks = [first, *(replace(first, rank=number, state=TRAINS) for number in range(1, 999))]
    with sending(receiver.url, pytest.fail) as (sender, _):
        sender.show(Snapshot("many", steps=1, ranks=ranks, times_s=times))
        found = receiver.wait_for(1).values
    assert sum(key[0] == "ddlprof.steps" for key in found) == MOST_RANKS
    assert sum(key[0] == "ddlprof.step.time" for key in found) == MOST_RANKS * len(CLASSES)


@pytest.mark.parametrize("status", [400, 404, 503])
def test_a_receiver_that_refuses_is_one_line_until_it_takes(
    status: int, receiver: Receiver, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "3")
    receiver.status = status
    lines: list[str] = []
    with sending(receiver.url, lines.append) as (sender, problems):
        sender.show(snapshot_of(TWO_RANKS))
        receiver.wait_for(4)
        assert len(lines) == 1
        receiver.status = 200
        number = len(receiver.requests)
        receiver.wait_for(number + 3)
    assert problems.last == ""
    assert lines[0].startswith(f"metrics do not arrive at {receiver.url}/v1/metrics: ")
    assert {400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}[status] in lines[0]
    assert capfd.readouterr().err == ""


def test_a_receiver_that_is_away_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    lines: list[str] = []
    with sending(f"http://127.0.0.1:{port}", lines.append) as (sender, problems):
        sender.show(snapshot_of(TWO_RANKS))
    assert lines == [f"metrics do not arrive at http://127.0.0.1:{port}/v1/metrics: Connection refused"]
    assert problems.last == lines[0]
    assert capfd.readouterr().err == ""
    assert not logging.getLogger("opentelemetry").handlers
    assert logging.getLogger("opentelemetry").propagate


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/metrics"),
        ("https://otlp.example.com/otlp/", "https://otlp.example.com/otlp/v1/metrics"),
        ("http://h:9090/api/v1/otlp/v1/metrics", "http://h:9090/api/v1/otlp/v1/metrics"),
    ],
)
def test_metrics_go_where_receivers_take_them(typed: str, place: str) -> None:
    assert address(typed) == place


@pytest.mark.parametrize("url", ["localhost:4318", "4318", "", "grpc://localhost:4317", "http://", "http://h:port"])
def test_what_is_no_url_is_said_at_once(url: str) -> None:
    with pytest.raises(UserError, match="--otlp takes the URL of a receiver"), sending(url, pytest.fail):
        pass


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(UserError, match=r"pip install 'ddlprof\[otel\]'"), sending("http://h", pytest.fail):
        pass


def test_before_the_first_look_nothing_is_sent(receiver: Receiver) -> None:
    with sending(receiver.url, pytest.fail) as (sender, _):
        sender.show(Snapshot("early"))
        sender.show(replace(snapshot_of(TWO_RANKS), read_share=0.5))
    assert receiver.requests == []
