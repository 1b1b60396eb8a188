"""A snapshot as metrics for Prometheus, served on one address by the process that watches, never by the training.

Names and units follow Prometheus' conventions: seconds and bytes, counters end in `_total`. What was not measured has
no sample. Ranks are labels, so there are no more time series than ranks and classes; a job of very many ranks has those
of the slowest only.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from ddlprof.base.errors import UserError
from ddlprof.live import words
from ddlprof.live.snapshot import TRAINS, RankView, Snapshot
from ddlprof.model.classes import CLASSES, PARTS

if TYPE_CHECKING:
    from prometheus_client import Metric

MOST_RANKS = 256
"""Ranks with labels of their own."""
_CLASSES = (*CLASSES, *(name for parts in PARTS.values() for name in parts))
PATIENCE_S = 10.0
"""The longest time from a connection to the end of its answer; a scrape takes milliseconds."""
MOST_CLIENTS = 64
"""The most connections at a time."""


class Metrics:
    """The metrics of the latest snapshot, which a scrape gets."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Makes this the snapshot that scrapes get from now on."""
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """The metrics, as prometheus_client asks for them, in a thread of its own."""
        snapshot = self._snapshot
        if snapshot is not None:
            yield from _of_job(snapshot)
            yield from _of_ranks(words.slowest_first(snapshot)[:MOST_RANKS])


def _of_job(snapshot: Snapshot) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    info = InfoMetricFamily("ddlprof_run", "What is watched.")
    info.add_metric([], {"name": snapshot.name, "model": snapshot.model or "", "strategy": snapshot.strategy or ""})
    yield info
    yield GaugeMetricFamily("ddlprof_world_size", "Ranks of the job.", value=snapshot.world_size)
    yield GaugeMetricFamily("ddlprof_attempt", "How often the job was started again.", value=snapshot.attempt)
    training = sum(rank.state == TRAINS for rank in snapshot.ranks)
    yield GaugeMetricFamily("ddlprof_ranks_training", "Ranks that write and have not ended.", value=training)
    means = GaugeMetricFamily(
        "ddlprof_class_seconds", "Mean time of a class in the recent steps, over all ranks.", labels=["class"]
    )
    for name in _CLASSES:
        seconds = snapshot.times_s.get(name)
        if seconds is not None:
            means.add_metric([name], seconds)
    yield means
    for name, text, value in (
        ("ddlprof_step_seconds", "Mean time of the recent steps, over all ranks.", snapshot.times_s.get("step")),
        ("ddlprof_steps_per_second", "Steps in a second, lately.", snapshot.steps_per_s),
        ("ddlprof_samples_per_second", "Samples of all ranks in a second, lately.", snapshot.samples_per_s),
        ("ddlprof_remaining_seconds", "Time to the last step, where their number was given.", snapshot.remaining_s),
    ):
        if value is not None:
            yield GaugeMetricFamily(name, text, value=value)
    if snapshot.late_rank is not None:
        late = GaugeMetricFamily("ddlprof_late_rank", "1 for the rank that the others wait for.", labels=["rank"])
        late.add_metric([str(snapshot.late_rank)], 1)
        yield late
    if snapshot.verdict is not None:
        verdict = GaugeMetricFamily("ddlprof_verdict", "1 for what bounds the recent steps.", labels=["verdict"])
        verdict.add_metric([snapshot.verdict.name], 1)
        yield verdict


def _of_ranks(ranks: list[RankView]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    steps = CounterMetricFamily("ddlprof_steps", "Steps since the start of the attempt.", labels=["rank"])
    samples = CounterMetricFamily("ddlprof_samples", "Samples since the start of the attempt.", labels=["rank"])
    classes = CounterMetricFamily(
        "ddlprof_class_time_seconds", "Time of a class in all steps so far.", labels=["rank", "class"]
    )
    means = GaugeMetricFamily("ddlprof_rank_step_seconds", "Mean time of a rank's recent steps.", labels=["rank"])
    age = GaugeMetricFamily("ddlprof_last_entry_age_seconds", "Time since the rank wrote anything.", labels=["rank"])
    memory = GaugeMetricFamily("ddlprof_memory_bytes", "Memory of the rank.", labels=["rank"])
    for rank in ranks:
        label = str(rank.rank)
        steps.add_metric([label], rank.steps)
        age.add_metric([label], rank.age_s)
        for family, value in ((samples, rank.samples), (means, rank.means_s.get("step")), (memory, rank.memory_bytes)):
            if value is not None:
                family.add_metric([label], value)
        for name in CLASSES:
            if name in rank.class_totals_s:
                classes.add_metric([label, name], rank.class_totals_s[name])
    yield from (steps, samples, classes, means, age, memory)


@contextmanager
def served(port: int, address: str) -> Iterator[Metrics]:
    """Serves metrics at http://ADDRESS:PORT/metrics. Raises UserError where it cannot listen there."""
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
    except ImportError:
        raise UserError("metrics need prometheus_client: pip install 'ddlprof[metrics]'") from None
    metrics, registry = Metrics(), CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    try:
        server = MetricsServer(address, port, make_wsgi_app(registry))
    except OSError as error:
        raise UserError(
            f"cannot serve metrics at {address}:{port}: {error.strerror or error}; choose another --metrics-port"
        ) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Answers every connection in a thread of its own, for a limited time."""

    daemon_threads = True

    def __init__(self, address: str, port: int, application: Callable[..., Any]) -> None:
        """Raises OSError where it cannot listen there."""
        self._begun_s: dict[Any, float] = {}
        """When each open connection was made."""
        family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self.address_family = family
        super().__init__((str(place[0]), int(place[1])), _Handler)
        self.set_app(application)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Whether a connection is answered: not if too many are open."""
        return len(self._begun_s) < MOST_CLIENTS

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begins to answer a connection."""
        self._begun_s[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Called twice a second: ends the connections that have taken too long, whatever their thread waits for."""
        latest_s = time.monotonic() - PATIENCE_S
        for request in [each for each, begun_s in self._begun_s.copy().items() if begun_s < latest_s]:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """A connection has ended."""
        self._begun_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is not reported."""


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: the terminal shows the run."""
