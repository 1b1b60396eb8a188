"""An AWS over HTTP: a real moto server, and in front of it what moto lacks.

moto knows types and offerings, but no pages, no throttling, no plausible spot prices, no price list and no p2 and p3.
The server in front pages moto's answers, adds old types from a real dump, answers prices itself, and fails on request.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from xml.etree import ElementTree

import botocore.session

DUMP = Path(__file__).parents[2] / "unit" / "instance_catalog" / "refresh" / "describe_instance_types.json"
NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
MOST_ON_A_PAGE = {"DescribeInstanceTypeOfferings": 400}
"""By action. Less than any request asks for, as AWS may do; for the rest FEW: a handful of rows are several pages."""
FEW = 2
SETS = {
    "DescribeInstanceTypes": "instanceTypeSet",
    "DescribeInstanceTypeOfferings": "instanceTypeOfferingSet",
    "DescribeSpotPriceHistory": "spotPriceHistorySet",
}

WHOLE_ANSWERS: dict[tuple[object, ...], bytes] = {}

ElementTree.register_namespace("", NAMESPACE)


@dataclass
class State:
    """What the server answers with and what it was asked."""

    on_demand: dict[str, float] = field(default_factory=dict)
    """USD per hour by type; one price in all regions."""
    spot: dict[str, dict[str, float]] = field(default_factory=dict)
    """USD per hour by zone letter, by type. Empty: what moto says."""
    old_types: tuple[str, ...] = ()
    """From the dump, beside those that moto knows."""
    throttled: dict[str, int] = field(default_factory=dict)
    """By action, how many requests are still to be refused."""
    refused: dict[tuple[str, str], str] = field(default_factory=dict)
    """By action and region ("" for GetProducts), the error code."""
    held: dict[str, threading.Event] = field(default_factory=dict)
    """By action, what the answer waits for."""
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Answered requests by action and region."""
    reached: threading.Event = field(default_factory=threading.Event)
    """Set when a held action was asked for."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class AwsServer(ThreadingHTTPServer):
    """Serves on a free port of this machine, in threads, until `shutdown`."""

    daemon_threads = True

    def __init__(self, moto_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.moto_port = moto_port
        self.state = State()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error."""

    @property
    def url(self) -> str:
        """What AWS_ENDPOINT_URL takes."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: AwsServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        target = self.headers.get("X-Amz-Target", "")
        if target:
            query = json.loads(body)
            action, region = target.rpartition(".")[2], ""
        else:
            query = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            # Credential=KEY/DAY/REGION/SERVICE/aws4_request
            action, region = query["Action"], self.headers["Authorization"].split("/")[2]
        state = self.server.state
        if action in state.held:
            state.reached.set()
            state.held[action].wait(600)
        code = self._error(action, region)
        if code is not None:
            self._refuse(code, as_json=bool(target))
            return
        with state.lock:
            state.asked[action, region] += 1
        if action == "GetProducts":
            self._send(200, json.dumps(self._products(query)).encode())
        elif action == "DescribeSpotPriceHistory" and state.spot:
            self._send(200, self._spot(query, region))
        else:
            self._send(200, self._paged(action, query, self._whole_answer(region, query, body)))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests read stderr."""

    def _error(self, action: str, region: str) -> str | None:
        state = self.server.state
        with state.lock:
            if state.throttled.get(action, 0) > 0:
                state.throttled[action] -= 1
                return "ThrottlingException" if action == "GetProducts" else "RequestLimitExceeded"
        return state.refused.get((action, region))

    def _refuse(self, code: str, as_json: bool) -> None:
        if as_json:
            self._send(400, json.dumps({"__type": code, "message": "no"}).encode())
            return
        error = f"<Errors><Error><Code>{code}</Code><Message>no</Message></Error></Errors>"
        status = 503 if code == "RequestLimitExceeded" else 403
        self._send(status, f"<Response>{error}<RequestID>1</RequestID></Response>".encode())

    def _whole_answer(self, region: str, query: dict[str, str], body: bytes) -> bytes:
        """moto makes it anew for each page, which takes long; what it says never changes."""
        asked = {name: value for name, value in query.items() if name not in ("NextToken", "MaxResults")}
        key = (self.server.moto_port, region, *sorted(asked.items()))
        if key not in WHOLE_ANSWERS:
            WHOLE_ANSWERS[key] = self._ask_moto(body)
        return WHOLE_ANSWERS[key]

    def _ask_moto(self, body: bytes) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.moto_port, timeout=60)
        try:
            connection.request("POST", self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            return text
        finally:
            connection.close()

    def _paged(self, action: str, query: dict[str, str], text: bytes) -> bytes:
        """One page of a complete answer."""
        root = ElementTree.fromstring(text)
        rows = root.find(f"{{*}}{SETS[action]}")
        assert rows is not None
        if action == "DescribeInstanceTypes":
            rows.extend(ElementTree.fromstring(type_as_xml(name)) for name in self.server.state.old_types)
        start = int(query.get("NextToken", 0))
        stop = start + MOST_ON_A_PAGE.get(action, FEW)
        if stop < len(rows):
            ElementTree.SubElement(root, f"{{{NAMESPACE}}}nextToken").text = str(stop)
        rows[:] = rows[start:stop]
        return ElementTree.tostring(root)

    def _products(self, query: dict[str, Any]) -> dict[str, Any]:
        wanted = {term["Field"]: term["Value"] for term in query["Filters"]}
        metal = wanted["productFamily"] == "Compute Instance (bare metal)"
        products = [
            product_as_json(name, wanted["regionCode"], price)
            for name, price in self.server.state.on_demand.items()
            if name.endswith(".metal") == metal
        ]
        start = int(query.get("NextToken", 0))
        stop = start + FEW
        more = {"NextToken": str(stop)} if stop < len(products) else {}
        return {"FormatVersion": "aws_v1", "PriceList": products[start:stop], **more}

    def _spot(self, query: dict[str, str], region: str) -> bytes:
        wanted = [value for name, value in query.items() if name.startswith("InstanceType.")]
        items = [
            f"<item><instanceType>{name}</instanceType><productDescription>Linux/UNIX</productDescription>"
            f"<spotPrice>{price:.6f}</spotPrice><timestamp>2026-08-02T00:00:00.000Z</timestamp>"
            f"<availabilityZone>{region}{zone}</availabilityZone></item>"
            for name in wanted
            for zone, price in self.server.state.spot.get(name, {}).items()
        ]
        start = int(query.get("NextToken", 0))
        stop = start + FEW
        token = f"<nextToken>{stop}</nextToken>" if stop < len(items) else "<nextToken/>"
        page = "".join(items[start:stop])
        return (
            f'<DescribeSpotPriceHistoryResponse xmlns="{NAMESPACE}"><spotPriceHistorySet>{page}</spotPriceHistorySet>'
            f"{token}</DescribeSpotPriceHistoryResponse>"
        ).encode()

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def product_as_json(name: str, region: str, usd_per_hour: float) -> str:
    """An entry of GetProducts' PriceList, in the shape of the real ones."""
    sku = f"SKU{name.replace('.', '').upper()}"
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{usd_per_hour:.10f}"}, "description": "per On Demand Linux"}
    return json.dumps(
        {
            "product": {"sku": sku, "attributes": {"instanceType": name, "regionCode": region}},
            "serviceCode": "AmazonEC2",
            "terms": {"OnDemand": {f"{sku}.JRTC": {"priceDimensions": {f"{sku}.JRTC.6YS6": dimension}, "sku": sku}}},
        }
    )


def type_as_xml(name: str) -> str:
    """An entry of the dump as EC2 sends it, by the names that botocore's model of the API has."""
    entries = json.loads(DUMP.read_text(encoding="utf-8"))["InstanceTypes"]
    entry = next(entry for entry in entries if entry["InstanceType"] == name)
    model = botocore.session.Session().get_service_model("ec2")
    return f'<item xmlns="{NAMESPACE}">{_inner_xml(entry, model.shape_for("InstanceTypeInfo"))}</item>'


def _inner_xml(value: Any, shape: Any) -> str:
    if shape.type_name == "structure":
        parts = []
        for key, inner in value.items():
            member = shape.members[key]
            tag = member.serialization.get("name", key)
            parts.append(f"<{tag}>{_inner_xml(inner, member)}</{tag}>")
        return "".join(parts)
    if shape.type_name == "list":
        return "".join(f"<item>{_inner_xml(inner, shape.member)}</item>" for inner in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
