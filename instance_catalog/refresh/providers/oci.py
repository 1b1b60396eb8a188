"""Oracle Cloud Infrastructure: its public price list, which needs no account and knows prices only.

The list has one price for a GPU of each kind, the same in all commercial regions. A machine costs that times its GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from ddlprof.instance_catalog.clouds import ANY_REGION
from ddlprof.instance_catalog.errors import CatalogError
from ddlprof.instance_catalog.refresh.providers.base import Allowance, CallFailed, TypeAnswer

URL = "https://apexapps.oracle.com/pls/apex/cetools/api/v1/products/?currencyCode=USD"
TIMEOUT_S: float = 15
"""The longest wait between two parts of an answer."""
SHAPES: Mapping[str, tuple[str, ...]] = {
    "B89734": ("VM.GPU3.1", "VM.GPU3.2", "VM.GPU3.4", "BM.GPU3.8"),
    "B93544": ("BM.GPU4.8",),
    "B95907": ("BM.GPU.A100-v2.8",),
    "B95909": ("VM.GPU.A10.1", "VM.GPU.A10.2", "BM.GPU.A10.4"),
    "B98415": ("BM.GPU.H100.8",),
    "B109479": ("BM.GPU.L40S.4",),
    "B110519": ("BM.GPU.H200.8",),
    "B110978": ("BM.GPU.B200.8",),
    "B112237": ("BM.GPU.B300.8",),
}
"""The machines whose GPUs each part number of the list prices. Names of parts do not tell: software licences and
machines on customers' premises have the same names."""
_UNIT = "GPU Per Hour"
_MODEL = "PAY_AS_YOU_GO"
_CHUNK_BYTES = 2**16


class Oci:
    """The price list. It does not describe machines: their facts are those of the tables."""

    name = "oci"
    gpu_types: tuple[str, ...] = ("BM.GPU*", "VM.GPU*")
    sources: Mapping[str, str] = {
        "types": "",
        "on_demand": "OCI price list API",
        "spot": "",
    }
    endpoints: Mapping[str, str] = dict.fromkeys(("types", "offerings", "on_demand", "spot"), "prices")

    def __init__(self, profile: str | None = None, url: str = URL) -> None:
        """Raises CatalogError for a profile: there is nothing to sign in to."""
        if profile is not None:
            raise CatalogError("OCI's price list needs no account: leave --profile out")
        self._url = url
        self._prices: dict[str, float] | None = None

    def regions(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The one pseudo-region of prices that hold everywhere. Raises CatalogError for any other."""
        if any(region != ANY_REGION for region in wanted):
            raise CatalogError("OCI's prices are the same in all commercial regions: leave --region out")
        return (ANY_REGION,)

    def types(self, region: str, names: Sequence[str], allowance: Allowance) -> list[TypeAnswer]:
        """None: the price list does not describe machines. It is read here already, the first time that OCI is asked,
        so that nothing counts as answered where it cannot be had."""
        self.on_demand(region, allowance)
        return []

    def offerings(self, region: str, allowance: Allowance) -> set[str]:
        """None: the price list does not say where machines are on offer."""
        return set()

    def on_demand(self, region: str, allowance: Allowance) -> dict[str, float]:
        """USD per hour of each machine of `SHAPES` whose GPU the list prices. The list is read once."""
        if self._prices is None:
            with _explained(self._url):
                self._prices = parse_products(json.loads(self._read(allowance)))
        return self._prices

    def spot(self, region: str, types: Sequence[str], now: datetime, allowance: Allowance) -> dict[str, float]:
        """None: preemptible machines have no prices of their own in the list."""
        return {}

    def _read(self, allowance: Allowance) -> bytes:
        parts = []
        with urlopen(self._url, timeout=TIMEOUT_S) as answer:
            while chunk := answer.read(_CHUNK_BYTES):
                allowance.read(len(chunk))
                parts.append(chunk)
        return b"".join(parts)


def parse_products(answer: Mapping[str, Any]) -> dict[str, float]:
    """USD per hour by machine, from the answer of the price list.

    Raises KeyError, TypeError or ValueError for an answer of another shape.
    """
    prices: dict[str, float] = {}
    for product in answer["items"]:
        shapes = SHAPES.get(product["partNumber"], ())
        if not shapes or product["metricName"] != _UNIT:
            continue
        usd_per_gpu_hour = _usd(product)
        if usd_per_gpu_hour:  # 0 stands for a part that is not priced
            prices |= {shape: usd_per_gpu_hour * _gpus(shape) for shape in shapes}
    return prices


def _usd(product: Mapping[str, Any]) -> float | None:
    """The pay-as-you-go price in USD; of several, the lowest. None where there is none."""
    found = [
        float(price["value"])
        for currency in product["currencyCodeLocalizations"]
        if currency["currencyCode"] == "USD"
        for price in currency["prices"]
        if price["model"] == _MODEL
    ]
    return min(found, default=None)


def _gpus(shape: str) -> int:
    """The number of GPUs, with which the name of every GPU shape ends."""
    return int(shape.rpartition(".")[2])


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """Turns what urllib and json raise, and answers of another shape, into CallFailed."""
    try:
        yield
    except HTTPError as error:
        error.close()
        raise CallFailed(f"{url} answered {error.code} {error.reason}: try again later", lasting=True) from None
    except TimeoutError:
        raise CallFailed(f"no answer from {url}: check the network and proxy", lasting=True) from None
    except (OSError, HTTPException) as error:
        raise CallFailed(
            f"no connection to {url} ({getattr(error, 'reason', error)}): check the network and proxy", True
        ) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CallFailed(f"the answer of {url} was not understood ({error!r})", lasting=True) from None
