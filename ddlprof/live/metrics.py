"""A snapshot as metrics for Prometheus, served on one address by the process that watches, never by the training.

Names and units follow Prometheus' conventions: seconds and bytes, counters end in `_total`.
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

from ddlprof.base.errors import UserError, refusing
from ddlprof.live.figures import FIGURES, MetricKind
from ddlprof.live.snapshot import Snapshot

if TYPE_CHECKING:
    from prometheus_client import Metric

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
            yield _info(snapshot)
            yield from filter(None, (_family(figure, snapshot) for figure in FIGURES))


def _info(snapshot: Snapshot) -> Metric:
    from prometheus_client.core import InfoMetricFamily

    info = InfoMetricFamily("ddlprof_run", "What is watched.")
    info.add_metric([], {"name": snapshot.name, "model": snapshot.model or "", "strategy": snapshot.strategy or ""})
    return info


def _family(figure: MetricKind, snapshot: Snapshot) -> Metric | None:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    points = list(figure.points(snapshot)) if figure.prometheus else []
    if not points:
        return None
    kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
    family = kind(figure.prometheus, figure.words, labels=figure.labels)
    for labels, value in points:
        family.add_metric(labels, value)
    return family


@contextmanager
def served(port: int, address: str) -> Iterator[Metrics]:
    """Serves metrics at http://ADDRESS:PORT/metrics. Raises UserError where it cannot listen there."""
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
    except ImportError:
        raise UserError("metrics need prometheus_client: pip install 'ddlprof[metrics]'") from None
    metrics, registry = Metrics(), CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    with refusing(f"cannot serve metrics at {address}:{port}", "; choose another --metrics-port"):
        server = MetricsServer(address, port, make_wsgi_app(registry))
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
