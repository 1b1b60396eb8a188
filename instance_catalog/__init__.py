"""Facts about machines that can be rented, with their sources and dates.

`load()` returns a `Catalog`: the embedded snapshot (`data/*.csv`) merged with the user's overlay. Uses only the
standard library and `ddlprof.base`. Names of this module are imported on first use, as whoever only reads files with
`ddlprof.base.reading` needs no catalogue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddlprof.base import old_names
from ddlprof.base.errors import DdlprofError
from ddlprof.instance_catalog.errors import CatalogError

if TYPE_CHECKING:
    from ddlprof.instance_catalog.catalog import Catalog
    from ddlprof.instance_catalog.loading import load
    from ddlprof.instance_catalog.overlay import default_overlay
    from ddlprof.instance_catalog.own_prices import OwnPrices, read_own_prices
    from ddlprof.instance_catalog.records import (
        Disagreement,
        FlowLimit,
        Gpu,
        InstanceType,
        LinkFact,
        LinkPair,
        Price,
        Reached,
        Source,
    )

if __name__ in old_names.OLD:  # from a checkout, whose folders are at the top
    old_names.replace(__name__)

__all__ = [
    "Catalog",
    "CatalogError",
    "DdlprofError",
    "Disagreement",
    "FlowLimit",
    "Gpu",
    "InstanceType",
    "LinkFact",
    "LinkPair",
    "OwnPrices",
    "Price",
    "Reached",
    "Source",
    "default_overlay",
    "load",
    "read_own_prices",
]

_MODULES = {
    "Catalog": "catalog",
    "default_overlay": "overlay",
    "load": "loading",
    "OwnPrices": "own_prices",
    "read_own_prices": "own_prices",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'records')}"), name)
