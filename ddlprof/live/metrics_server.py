"""The HTTP server of the metrics: a client that is slow, or of too many, is sent away, as nobody waits for it."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

PATIENCE_S = 10.0
"""The longest time from a connection to the end of its answer; a scrape takes milliseconds."""
MOST_CLIENTS = 64
"""The most connections at a time."""


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
        """Whether a connection is answered."""
        return len(self._begun_s) < MOST_CLIENTS

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begins to answer a connection."""
        self._begun_s[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Called twice a second: ends the connections that have taken too long, whatever their thread waits for."""
        latest_s = time.monotonic() - PATIENCE_S
        for request in [each for each, begun_s in self._begun_s.copy().items() if begun_s < latest_s]:
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """A connection has ended."""
        self._begun_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is nobody's concern."""


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: the terminal shows the run."""
