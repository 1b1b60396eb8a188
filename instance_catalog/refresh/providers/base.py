"""The interface of a cloud in a refresh, and the plain values of its answers. Independent of any cloud or library.

A cloud is a class with the methods of `Provider`, in a file of its own here, and a line of `refresh.run.PROVIDERS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import NamedTuple, Protocol, TypeVar

MOST_PAGES = 200
"""The most pages of one call. The longest list of any cloud so far has about 20."""
MOST_MIB = 64
"""The most MiB of one call, all pages together. The longest price list of one region has about 15."""
_MIB = 2**20

Page = TypeVar("Page")


class CallFailed(Exception):
    """A call without a usable answer. The message is one line that says what to do."""

    def __init__(self, message: str, lasting: bool = False) -> None:
        super().__init__(" ".join(message.split()))
        self.lasting = lasting
        """Whether other calls to the same endpoint would fail, too."""


class Allowance:
    """The limits of one call. The provider counts pages and bytes with it, which also shows that it makes progress."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pages = 0
        self._bytes = 0
        self.last_page_s = clock()
        """When the last page arrived, or else when the call began."""

    def pages(self, pages: Iterable[Page]) -> Iterable[Page]:
        """Passes the pages on. Raises CallFailed if there are too many."""
        for page in pages:
            self._pages += 1
            if self._pages > MOST_PAGES:
                raise CallFailed(f"more than {MOST_PAGES} pages: not the answer of a cloud, check the endpoint", True)
            self.last_page_s = self._clock()
            yield page

    def arrives(self) -> None:
        """Notes that a large page makes progress. Only the time of the whole refresh ends it then."""
        self.last_page_s = self._clock()

    def read(self, count_bytes: int) -> None:
        """Counts bytes that were read. Raises CallFailed if there are too many."""
        self._bytes += count_bytes
        if self._bytes > MOST_MIB * _MIB:
            raise CallFailed(f"more than {MOST_MIB} MiB: not the answer of a cloud, check the endpoint", True)


class NetworkSpeed(NamedTuple):
    """The network of a machine as its cloud advertises it: "Up to 25 Gigabit", "4x 100 Gigabit"."""

    gbps: float
    """The speed of all network cards together."""
    burst: bool
    """Whether the cloud says "up to": the machine does not sustain the speed."""


@dataclass(frozen=True)
class TypeAnswer:
    """One instance type with NVIDIA GPUs, as its cloud describes it. None: not in the description."""

    instance_type: str
    family: str
    gpu_name: str
    """The API's own name: it may lack the form factor, or stand for several memory sizes."""
    gpus: int
    """The number of whole GPUs; 0 for a fraction of one."""
    gpu_fraction: float
    """1.0 for whole GPUs; the share of one GPU where `gpus` is 0."""
    gpu_memory_gib: float
    """The memory of one GPU, or of the share of one, as the cloud gives it."""
    vcpus: int
    memory_gib: float
    total_gpu_memory_gib: float | None = None
    cpu_arch: str | None = None
    network: NetworkSpeed | None = None
    """The network speed; None for words such as "High"."""
    card_gbps: tuple[float, ...] = ()
    """The sustained speed of each network card."""
    card_burst_gbps: tuple[float, ...] = ()
    network_cards: int | None = None
    efa: bool | None = None
    efa_interfaces: int | None = None
    ena_express: bool | None = None
    local_storage_gib: float | None = None
    ebs_gbps: float | None = None
    ebs_burst_gbps: float | None = None


class Origin(Protocol):
    """Where answers about a cloud come from."""

    @property
    def name(self) -> str:
        """The cloud's name in the column `cloud` of the catalogue."""
        ...

    @property
    def sources(self) -> Mapping[str, str]:
        """The text for the column `source`, by kind of fact: types, on_demand, spot."""
        ...


class Provider(Origin, Protocol):
    """A cloud. Each method but `regions` makes one call for one region, in a thread of its own.

    Calls raise `CallFailed` for all failures, and count what they read with their `Allowance`.
    """

    gpu_types: tuple[str, ...]
    """The names of instance types to ask for by default. May contain `*` and `?`."""
    endpoints: Mapping[str, str]
    """The service that answers, by kind of call (`report.KINDS`). After a lasting failure it is not asked again."""

    def regions(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The named regions, each once, or else the configured one.

        Raises CatalogError for unknown names or no region.
        """
        ...

    def types(self, region: str, names: Sequence[str], allowance: Allowance) -> list[TypeAnswer]:
        """The types with NVIDIA GPUs on offer. `names` may contain `*` and `?`."""
        ...

    def offerings(self, region: str, allowance: Allowance) -> set[str]:
        """Names of all types on offer."""
        ...

    def on_demand(self, region: str, allowance: Allowance) -> dict[str, float]:
        """USD per hour of all types with an on-demand price."""
        ...

    def spot(self, region: str, types: Sequence[str], now: datetime, allowance: Allowance) -> dict[str, float]:
        """USD per hour of spot machines of these types."""
        ...


Connect = Callable[["str | None"], Provider]
"""Makes a provider from the user's configuration and a profile. Raises CatalogError if there is none."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """One line for a name that a cloud's configuration lacks, with the closest names."""
    close = get_close_matches(name, list(known), n=3, cutoff=0)
    return f"unknown {kind} {name!r}; closest: {', '.join(close)}" if close else f"unknown {kind} {name!r}"
