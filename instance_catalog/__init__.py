"""Facts about machines that can be rented, with their sources and dates. Imports nothing of ours.

`load()` gives a `Catalog`: the embedded snapshot (`data/*.csv`) merged with the user's overlay. Standard library only.
"""

from instance_catalog.catalog import Catalog
from instance_catalog.errors import CatalogError
from instance_catalog.load import load
from instance_catalog.overlay import default_overlay
from instance_catalog.records import Disagreement, FlowLimit, Gpu, InstanceType, LinkFact, LinkPair, Price, Source

__all__ = [
    "Catalog",
    "CatalogError",
    "Disagreement",
    "FlowLimit",
    "Gpu",
    "InstanceType",
    "LinkFact",
    "LinkPair",
    "Price",
    "Source",
    "default_overlay",
    "load",
]
