"""Facts about machines that can be rented, with their sources and dates. Of ours it imports the base error alone.

`load()` gives a `Catalog`: the embedded snapshot (`data/*.csv`) merged with the user's overlay. Standard library only.
"""

from ddlprof.model.errors import DdlprofError
from instance_catalog.catalog import Catalog
from instance_catalog.errors import CatalogError
from instance_catalog.load import load
from instance_catalog.overlay import default_overlay
from instance_catalog.own_prices import OwnPrices, read_own_prices
from instance_catalog.records import (
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
