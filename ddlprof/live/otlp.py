"""Sends snapshots as metrics by OpenTelemetry's protocol (OTLP over HTTP), from the process that watches.

The official SDK does it, in a thread of its own, so a receiver that is slow or away does not hold up the view. The
SDK's environment variables hold: headers with keys, certificates, the interval, attributes of the resource.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ddlprof.base.errors import UserError
from ddlprof.live.figures import FIGURES, MetricKind
from ddlprof.live.snapshot import Snapshot

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExporter

_PATH = "/v1/metrics"
"""Where receivers take metrics, below the address that they name."""
_PATIENCE_S = 5.0
"""The longest time that the last values may take at the end, and then the request under way."""
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
_INTERVAL_S = 60.0
"""OpenTelemetry's default."""
_LOGGER = "opentelemetry"

Tell = Callable[[str], None]
"""`tell(problem)`: says why nothing arrives, and is called once until something does."""


class Sender:
    """Sends the latest snapshot every `interval_s`, begun anew for each attempt, as counters begin anew then."""

    def __init__(self, url: str, problems: Problems, interval_s: float) -> None:
        self._url = url
        self._problems = problems
        self._interval_s = interval_s
        self._snapshot: Snapshot | None = None
        self._job: tuple[object, ...] | None = None
        """What is being sent: the attributes of the job, and its attempt."""
        self._end: Callable[[], None] = lambda: None

    def show(self, snapshot: Snapshot) -> None:
        """Makes this the snapshot that is sent from now on. The first one is sent at once."""
        if snapshot.read_share < 1 or not snapshot.ranks:
            return
        job = (*resource(snapshot).items(), snapshot.attempt)
        if job != self._job:
            self.close()
            self._snapshot, self._job = snapshot, job
            self._end = self._begin(snapshot)
        self._snapshot = snapshot

    def close(self) -> None:
        """Sends the last values."""
        end, self._end = self._end, lambda: None
        end()

    def _begin(self, snapshot: Snapshot) -> Callable[[], None]:
        """Sends in a thread of its own; returns what ends it."""
        provider, stop = self._provider(snapshot), threading.Event()

        def run() -> None:
            provider.force_flush()
            while not stop.wait(self._interval_s):
                provider.force_flush()
            provider.force_flush()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def end() -> None:
            stop.set()
            thread.join(_PATIENCE_S)
            provider.shutdown()  # nothing is tried again
            thread.join(_PATIENCE_S)

        return end

    def _provider(self, snapshot: Snapshot) -> MeterProvider:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource

        reader = PeriodicExportingMetricReader(_exporter(self._url, self._problems), math.inf)  # we send
        provider = MeterProvider([reader], Resource.create(resource(snapshot)), shutdown_on_exit=False)
        meter = provider.get_meter("ddlprof")
        for figure in FIGURES:
            if figure.otel:
                create = meter.create_observable_counter if figure.is_counter else meter.create_observable_gauge
                create(figure.otel, [self._callback(figure)], figure.unit, figure.words)
        return provider

    def _callback(self, figure: MetricKind) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            snapshot = self._snapshot
            points = figure.points(snapshot) if snapshot is not None else ()
            return [Observation(value, dict(zip(figure.labels, labels, strict=True))) for labels, value in points]

        return observe


def resource(snapshot: Snapshot) -> dict[str, str | int]:
    """The attributes of the job, which hold for all its metrics."""
    found: dict[str, str | int] = {
        "service.name": "ddlprof",
        "service.instance.id": snapshot.job_id or snapshot.name,
        "ddlprof.job.name": snapshot.name,
        "ddlprof.world_size": snapshot.world_size,
    }
    told = {"model": snapshot.model, "strategy": snapshot.strategy, "device": snapshot.device}
    return found | {f"ddlprof.{name}": value for name, value in told.items() if value}


class Problems(logging.Handler):
    """Takes what the SDK logs, keeps it off the terminal, and tells the reason once where nothing arrives."""

    def __init__(self, url: str, tell: Tell) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        """Why nothing has arrived since something did; empty: the latest values have, or none were sent yet."""
        self._url = url
        self._tell = tell
        self._reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the first reason of an attempt to send: later lines only say that no more is tried."""
        self._reason = self._reason or _reason(record)

    def arrived(self) -> None:
        self.last = self._reason = ""

    def failed(self, error: Exception | None = None) -> None:
        """The values have not arrived. Tells the reason, unless nothing arrived the time before, either."""
        reason = _words(error) if error is not None else self._reason or "no answer"
        if not self.last:
            self.last = f"metrics do not arrive at {self._url}: {reason}"
            self._tell(self.last)
        self._reason = ""


def _reason(record: logging.LogRecord) -> str:
    """The error that was logged, or what was said."""
    error = next((each for each in record.args or () if isinstance(each, Exception)), None)
    return record.getMessage().partition(", retrying")[0] if error is None else _words(error)


def _words(error: Exception) -> str:
    """The first cause of an error, which says most: `Connection refused`."""
    while True:
        inner = error.__cause__ or error.__context__ or next(iter(error.args), None)
        inner = getattr(inner, "reason", inner)
        if not isinstance(inner, Exception):
            break
        error = inner
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _exporter(url: str, problems: Problems) -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

    class Exporter(OTLPMetricExporter):
        def export(
            self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
        ) -> MetricExportResult:
            try:
                result = super().export(metrics_data, timeout_millis, **kwargs)
            except Exception as error:  # of the library below, in older versions
                problems.failed(error)
                return MetricExportResult.FAILURE
            if result is MetricExportResult.SUCCESS:
                problems.arrived()
            else:
                problems.failed()
            return result

    return Exporter(url)


@contextmanager
def sending(url: str, tell: Tell) -> Iterator[tuple[Sender, Problems]]:
    """Sends to the receiver at `url`. Raises UserError where that is no URL, or the SDK is not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http.metric_exporter
        import opentelemetry.sdk.metrics  # noqa: F401
    except ImportError:
        raise UserError("--otlp needs OpenTelemetry's SDK: pip install 'ddlprof[otel]'") from None
    place = address(url)
    problems = Problems(place, tell)
    logger = logging.getLogger(_LOGGER)
    before = logger.propagate
    logger.addHandler(problems)
    logger.propagate = False
    sender = Sender(place, problems, _interval_s())
    try:
        yield sender, problems
    finally:
        sender.close()
        logger.removeHandler(problems)
        logger.propagate = before


def address(url: str) -> str:
    """Where metrics are posted: below the address of the receiver, unless it names the place itself."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises for a port that is none
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"--otlp takes the URL of a receiver, such as http://localhost:4318, not {url!r}")
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(_PATH) else path + _PATH).geturl()


def _interval_s() -> float:
    """The seconds between two sendings, which the SDK's environment variable gives in milliseconds."""
    try:
        seconds = float(os.environ.get(_INTERVAL) or 1e3 * _INTERVAL_S) / 1e3
    except ValueError:
        return _INTERVAL_S
    return seconds if math.isfinite(seconds) and seconds > 0 else _INTERVAL_S
