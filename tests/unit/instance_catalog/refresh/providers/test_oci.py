"""OCI's price list, as a server on this machine answers in its stead."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ddlprof.instance_catalog import CatalogError, load
from ddlprof.instance_catalog.refresh import refresh
from ddlprof.instance_catalog.refresh.providers import base, oci
from ddlprof.instance_catalog.refresh.providers.base import Allowance, CallFailed
from ddlprof.instance_catalog.refresh.providers.oci import SHAPES, Oci, parse_products

Serve = Callable[..., str]


def product(part: str, usd: float | None, unit: str = "GPU Per Hour", currency: str = "USD") -> dict[str, Any]:
    """A product in the form of the price list."""
    prices = [] if usd is None else [{"model": "PAY_AS_YOU_GO", "value": usd}]
    return {
        "partNumber": part,
        "displayName": "OCI - Compute - GPU",
        "metricName": unit,
        "serviceCategory": "Compute - GPU",
        "currencyCodeLocalizations": [{"currencyCode": currency, "prices": prices}],
    }


ANSWER = {
    "lastUpdated": "2026-08-14T09:09:55.872Z",
    "items": [
        product("B98415", 10),
        product("B95909", 2),
        product("B89734", 2.95),
        product("B111824", 2.5),  # a software licence for an H100, of the same category and unit
        product("B108806", 16, unit="Node Per Hour"),
    ],
}


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server that answers every request with a body and a status, and gives its address."""
    servers = []

    def start(body: bytes, status: int = 200) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/products/?currencyCode=USD"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_machines_cost_what_their_gpus_do(serve: Serve) -> None:
    prices = Oci(url=serve(json.dumps(ANSWER).encode())).on_demand("any", Allowance())
    assert prices == {
        "BM.GPU.H100.8": 80.0,
        "VM.GPU.A10.1": 2.0, "VM.GPU.A10.2": 4.0, "BM.GPU.A10.4": 8.0,
        "VM.GPU3.1": 2.95, "VM.GPU3.2": 5.9, "VM.GPU3.4": 11.8, "BM.GPU3.8": 23.6,
    }  # fmt: skip


@pytest.mark.parametrize(
    "without",
    [product("B98415", None), product("B98415", 0), product("B98415", 10, unit="OCPU Per Hour"),
     product("B98415", 10, currency="EUR")],
    ids=["no price", "0", "another unit", "another currency"],
)  # fmt: skip
def test_what_is_no_price_of_a_gpu_in_usd_is_passed_over(without: dict[str, Any]) -> None:
    assert parse_products({"items": [without]}) == {}


def test_prices_are_written_into_the_overlay_and_nothing_else_is(serve: Serve, tmp_path: Path) -> None:
    report = refresh([], tmp_path, provider=Oci(url=serve(json.dumps(ANSWER).encode())))
    assert report.ok
    assert report.contradictions == ()
    assert [path.name for path in report.files] == ["prices.csv"]
    price = load(tmp_path).price("BM.GPU.H100.8")
    assert price is not None
    assert (price.usd_per_hour, price.basis, price.source) == (80.0, "api", "OCI price list API")
    assert load(tmp_path).instance("BM.GPU.H100.8") == load(None).instance("BM.GPU.H100.8")


def test_a_price_far_from_the_known_one_is_not_taken(serve: Serve, tmp_path: Path) -> None:
    far = {"items": [product("B98415", 100)]}
    report = refresh([], tmp_path, provider=Oci(url=serve(json.dumps(far).encode())))
    assert [str(doubt) for doubt in report.contradictions] == [
        "BM.GPU.H100.8 on_demand_usd_per_hour 800 (any): changed by more than a factor of 3; kept 80"
    ]


def test_every_machine_of_the_list_is_in_the_catalogue() -> None:
    machines = {shape: load(None).instance(shape, "oci") for shapes in SHAPES.values() for shape in shapes}
    own = {row.instance_type for row in load(None).instances if row.cloud == "oci"}
    assert own - set(machines) == {"BM.GPU.MI300X.8"}, "its part number is not known"
    assert set(machines) <= own
    assert all(row.gpus == int(shape.rpartition(".")[2]) for shape, row in machines.items())


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [(b"{}", 503, "answered 503 Service Unavailable"), (b"<html>", 200, "was not understood"),
     (b"[]", 200, "was not understood"), (b'{"items": [{}]}', 200, "was not understood")],
)  # fmt: skip
def test_other_answers_are_one_line(serve: Serve, body: bytes, status: int, message: str) -> None:
    with pytest.raises(CallFailed, match=message) as caught:
        Oci(url=serve(body, status)).on_demand("any", Allowance())
    assert caught.value.lasting
    assert "\n" not in str(caught.value)


def test_an_answer_without_an_end_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MOST_MIB", 0)
    with pytest.raises(CallFailed, match="more than 0 MiB"):
        Oci(url=serve(json.dumps(ANSWER).encode())).on_demand("any", Allowance())


def test_no_server_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oci, "TIMEOUT_S", 1)
    with pytest.raises(CallFailed, match=r"no connection to http://127\.0\.0\.1:1/"):
        Oci(url="http://127.0.0.1:1/").on_demand("any", Allowance())


def test_nothing_is_refreshed_where_there_is_no_list(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"nothing was refreshed, all calls failed: .* answered 503"):
        refresh([], tmp_path / "overlay", provider=Oci(url=serve(b"", 503)))
    assert not (tmp_path / "overlay").exists()


def test_profiles_and_regions_are_refused() -> None:
    with pytest.raises(CatalogError, match="needs no account"):
        Oci("mine")
    with pytest.raises(CatalogError, match="leave --region out"):
        Oci().regions(["us-ashburn-1"])
    assert Oci().regions([]) == ("any",)
