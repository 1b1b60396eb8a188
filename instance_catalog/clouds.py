"""What differs between clouds beside their machines and prices: `data/clouds.csv`, a row for each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ddlprof.base.reading import NOT_NEGATIVE, settle
from ddlprof.instance_catalog import table

ANY_REGION = "any"
"""Region of a price that is the same in all regions of its cloud."""
_DATA = Path(__file__).parent / "data" / "clouds.csv"


@dataclass(frozen=True)
class Cloud:
    """A cloud. A user's own, of which the table says nothing, has the defaults."""

    cloud: str
    reference_region: str = ANY_REGION
    """The region whose price is shown where none is asked for."""
    granularity_s: float = 1.0
    """The seconds to a multiple of which it rounds up billed time."""
    skypilot: str = ""
    """SkyPilot's name of it; empty: it rents no machines there, or not by the catalogue's names of types."""
    skypilot_nodes: bool = True
    """Whether SkyPilot gives a job several of its machines."""
    skypilot_buckets: bool = True
    """Whether SkyPilot mounts buckets on its machines."""
    dstack: str = ""
    """dstack's name of it; empty: it rents no machines there."""
    dstack_nodes: bool = True
    """Whether dstack gives a job several of its machines."""
    pods_by_type: bool = False
    """Whether the nodes of its managed Kubernetes have the catalogue's names of types in their labels."""
    spot_label: str = ""
    """`KEY=VALUE`, which its managed Kubernetes writes on spot nodes; empty: none is known."""
    spot_taint: bool = False
    """Whether a taint like that label keeps pods away from spot nodes, unless these tolerate it."""

    def __post_init__(self) -> None:
        settle(self, NOT_NEGATIVE)


@cache
def _known() -> dict[str, Cloud]:
    return {row.cloud: row for row in table.read(_DATA, Cloud)}


def cloud_named(name: str) -> Cloud:
    """What is known of a cloud. Machines of one that is not in the table are rented by its own name."""
    return _known().get(name) or Cloud(name, skypilot=name)
