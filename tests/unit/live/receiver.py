"""A receiver of OpenTelemetry's protocol: takes requests over HTTP and decodes them by the protocol's own library."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric

Key = tuple[str, ...]
"""The name of a metric, and its attributes as `name=value`, sorted."""


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    resource: dict[str, Any]
    metrics: dict[str, Metric]

    @property
    def values(self) -> dict[Key, float]:
        """The value of each point."""
        found: dict[Key, float] = {}
        for name, metric in self.metrics.items():
            for point in _points(metric):
                key = (name, *sorted(f"{each.key}={_value(each.value)}" for each in point.attributes))
                found[key] = getattr(point, point.WhichOneof("value"))
        return found

    @property
    def counters(self) -> set[str]:
        """The names of metrics that only grow, and have been summed since their beginning."""
        return {
            name
            for name, metric in self.metrics.items()
            if metric.WhichOneof("data") == "sum"
            and metric.sum.is_monotonic
            and metric.sum.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
        }

    def begun_ns(self, name: str) -> int:
        """The unix time since which a counter has been summed."""
        return int(_points(self.metrics[name])[0].start_time_unix_nano)


@dataclass
class Receiver:
    """What has arrived so far. `status`: the answer to further requests."""

    port: int
    status: int = 200
    requests: list[Received] = field(default_factory=list)
    came: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        """The address that a user types."""
        return f"http://127.0.0.1:{self.port}"

    def wait_for(self, number: int) -> Received:
        """The request of this number, counted from 1, once it has come."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.requests) >= number, timeout=60)
            return self.requests[number - 1]


def _points(metric: Metric) -> Any:
    return getattr(metric, metric.WhichOneof("data") or "").data_points


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


def _decoded(path: str, headers: dict[str, str], body: bytes) -> Received:
    (one,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    (scope,) = one.scope_metrics
    assert scope.scope.name == "ddlprof"
    resource = {each.key: _value(each.value) for each in one.resource.attributes}
    return Received(path, headers, resource, {metric.name: metric for metric in scope.metrics})


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """Listens on a port of this machine, a free one unless it is given."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with receiver.came:
                receiver.requests.append(_decoded(self.path, headers, body))
                receiver.came.notify_all()
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        receiver = Receiver(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
