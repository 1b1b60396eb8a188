"""The endpoint for Prometheus: scraped over HTTP and read by Prometheus' own parser."""

from __future__ import annotations

import re
import socket
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from urllib.error import URLError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ddlprof.base.errors import UserError
from ddlprof.live import metrics as metrics_server
from ddlprof.live.figures import MOST_RANKS
from ddlprof.live.follower import RunFollower
from ddlprof.live.metrics import Metrics, served
from ddlprof.live.snapshot import GONE, TRAINS, Observer, RankView, Snapshot
from tests.unit.live.runs import GrowingRun

TWO_RANKS = Path(__file__).parents[2] / "golden/two-ranks"
Samples = dict[tuple[str, ...], float]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def scrape(port: int) -> tuple[str, Samples]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels: list[str] = sorted(sample.labels.values())
            key = (sample.name, *labels)
            found[key] = sample.value
    return text, found


def test_a_scrape_gets_the_latest_snapshot(port: int) -> None:
    snapshot = Observer(RunFollower(TWO_RANKS)).look(time.time_ns())
    with served(port, "127.0.0.1") as metrics:
        assert scrape(port)[1] == {}
        metrics.show(snapshot)
        text, found = scrape(port)
        assert found[("ddlprof_steps_total", "0")] == 30
        assert found[("ddlprof_class_seconds", "compute")] == snapshot.times_s["compute"]
        assert found[("ddlprof_class_seconds", "straggler")] == snapshot.times_s["straggler"]
        assert found[("ddlprof_step_seconds",)] == snapshot.times_s["step"]
        assert found[("ddlprof_late_rank", "1")] == 1
        assert found[("ddlprof_verdict", "COMPUTE-BOUND")] == 1
        assert found[("ddlprof_memory_bytes", "0")] == snapshot.ranks[0].memory_bytes
        of_step = sum(value for key, value in found.items() if key[0] == "ddlprof_class_time_seconds_total")
        assert of_step == pytest.approx(sum(rank.class_totals_s["step"] for rank in snapshot.ranks))
        metrics.show(replace(snapshot, steps_per_s=None, times_s={}))
        assert ("ddlprof_step_seconds",) not in scrape(port)[1]
    for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE):  # base units, as Prometheus asks for
        assert name.startswith("ddlprof_")
        assert not re.search("_(ms|ns|us|min|mb|gb|percent)$", name)
    with pytest.raises(URLError):
        scrape(port)


def test_what_was_not_measured_has_no_sample(tmp_path: Path, port: int) -> None:
    run = GrowingRun(tmp_path).begin()
    run.train(20, data_ms=None)  # type: ignore[arg-type]
    with served(port, "127.0.0.1") as metrics:
        metrics.show(Observer(RunFollower(tmp_path)).look(time.time_ns()))
        _, found = scrape(port)
    assert ("ddlprof_class_seconds", "compute") in found
    assert not any("data" in key for key in found)
    assert ("ddlprof_remaining_seconds",) not in found


def test_names_and_the_number_of_series_are_bounded(port: int) -> None:
    hostile = 'a"} 1\nddlprof_forged 1\n\\'
    first = RankView(0, 0, "h", GONE, 1, 0, {"step": 1.0}, 0.0, None, {}, None, {})
    ranks = [first, *(replace(first, rank=number, state=TRAINS) for number in range(1, 999))]
    with served(port, "127.0.0.1") as metrics:
        metrics.show(Snapshot(hostile, hostile, hostile, steps=1, ranks=ranks, times_s={"step": 1.0}))
        text, found = scrape(port)
    assert "\nddlprof_forged" not in text
    assert sum(key[0] == "ddlprof_steps_total" for key in found) == MOST_RANKS
    assert ("ddlprof_steps_total", "0") in found  # the one that is gone is worth a look
    assert found[("ddlprof_ranks_training",)] == 998
    labels = next(key for key in found if key[0] == "ddlprof_run_info")
    assert hostile in labels


def connected(port: int) -> socket.socket:
    """A client that sends the beginning of a request and no more."""
    client = socket.create_connection(("127.0.0.1", port), timeout=120)
    client.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
    return client


def test_a_client_that_is_slow_is_sent_away(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "PATIENCE_S", 0.0)
    with served(port, "127.0.0.1"), connected(port) as client:
        assert client.recv(1) == b""


def test_a_port_in_use_is_one_line(port: int) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", port))
        used.listen()
        with pytest.raises(UserError, match="choose another --metrics-port"), served(port, "127.0.0.1"):
            pass


def test_without_the_package_it_says_what_to_install(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UserError, match=r"pip install 'ddlprof\[metrics\]'"), served(port, "127.0.0.1"):
        pass


def test_before_the_first_look_there_is_nothing() -> None:
    assert list(Metrics().collect()) == []
