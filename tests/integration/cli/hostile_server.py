"""Endpoints that are no cloud: they accept a request and never answer, drip, page forever, or send without end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MIB = b" " * 2**20
EMPTY_SETS = "<instanceTypeSet/><instanceTypeOfferingSet/><spotPriceHistorySet/>"


class HostileServer(ThreadingHTTPServer):
    """Serves on a free port of this machine until the context ends; `behaviour` answers each request."""

    daemon_threads = True

    def __init__(self, behaviour: Callable[[Handler], None]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour = behaviour
        self.requests: list[str] = []
        self.over = threading.Event()
        """Set at the end: nobody waits any more."""
        self.tokens = itertools.count()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that had enough is no error."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: HostileServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.as_json = "X-Amz-Target" in self.headers
        self.server.requests.append("pricing" if self.as_json else "ec2")
        try:
            self.server.behaviour(self)
        except OSError:  # the client had enough
            self.close_connection = True

    def do_GET(self) -> None:
        """As credentials are asked for."""
        self.server.requests.append("credentials")
        self.server.behaviour(self)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests read stderr."""


def silent(request: Handler) -> None:
    """Never a byte."""
    request.server.over.wait(120)


def dripping(request: Handler) -> None:
    """A whole answer, but a byte at a time."""
    request.send_response(200)
    request.send_header("Content-Length", "100000")
    request.end_headers()
    while not request.server.over.wait(0.1):
        request.wfile.write(b" ")
        request.wfile.flush()


def paging(request: Handler) -> None:
    """Pages that are empty and never the last."""
    token = next(request.server.tokens)
    if request.as_json:
        body = f'{{"PriceList": [], "NextToken": "{token}"}}'
    else:
        body = f"<Response>{EMPTY_SETS}<nextToken>{token}</nextToken></Response>"
    request.send_response(200)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body.encode())


def endless(request: Handler) -> None:
    """An answer that has no end."""
    request.send_response(200)
    request.end_headers()
    while not request.server.over.is_set():
        request.wfile.write(MIB)


@contextmanager
def hostile(behaviour: Callable[[Handler], None]) -> Iterator[HostileServer]:
    """A server that behaves so."""
    server = HostileServer(behaviour)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
