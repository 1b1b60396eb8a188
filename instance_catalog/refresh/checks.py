"""Compares answers with known facts. Contradictions are reported, and the known fact is kept.

EC2 has reported the memory of all GPUs as that of one, network cards that do not add up to the machine's bandwidth, and
wrong names of GPUs; price lists have lines that are no prices. Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ddlprof.instance_catalog.catalog import Catalog
from ddlprof.instance_catalog.names import matching
from ddlprof.instance_catalog.records import Gpu, InstanceType, Price
from ddlprof.instance_catalog.refresh.providers.base import Origin, TypeAnswer
from ddlprof.instance_catalog.refresh.report import Contradiction, Move

GPU_MEMORY_TOLERANCE = 0.1
"""EC2 says 22888 MiB where the nominal figure is 24 GiB, 7 % less."""
FIGURE_TOLERANCE = 0.01
"""The tolerance for rounding in other figures."""
SHOWN_CHANGE = 2.0
"""A price that was taken is shown if it is more than this factor off the known one, up or down."""
ON_DEMAND_CHANGE = 3.0
"""The largest factor between an on-demand price and the known one. The largest cut in the tables was 1.8."""
SPOT_SHARES = (0.03, 2.0)
"""The range of spot over on-demand prices. AWS speaks of up to 90 % off; the tables have 0.16 to 1.0."""
LOWEST_USD_PER_HOUR = 0.01
"""No GPU machine costs less; the cheapest spot price in the tables is 0.034."""
_FIXED = ("gpus", "gpu_fraction", "vcpus", "memory_gib", "cpu_arch")
"""Fields that never change for a type. Clouds raise others at times; the newer figure counts there."""

_AS_ANSWERED = (
    "network_cards", "efa", "efa_interfaces", "ena_express", "local_storage_gib", "ebs_gbps", "ebs_burst_gbps",
)  # fmt: skip
"""Fields that are taken as they are answered."""

Reject = Callable[[str, object, object, str], None]
"""(field, answered, kept, reason)"""


def check_type(
    answer: TypeAnswer, catalog: Catalog, origin: Origin, region: str, as_of: str
) -> tuple[InstanceType | None, tuple[Contradiction, ...]]:
    """The row to accept, with the API's facts only; None for an unknown GPU. The memory of a GPU is its nominal memory.
    Fields that contradict a known fact are None."""
    found: list[Contradiction] = []

    def reject(field: str, answered: object, kept: object, reason: str) -> None:
        text = "" if kept is None else _text(kept)
        found.append(Contradiction(region, answer.instance_type, field, _text(answered), text, reason))

    known = known_type(catalog, origin.name, answer.instance_type)
    gpu = _gpu(answer, known, catalog, reject)
    if gpu is None:
        return None, tuple(found)
    fixed = _fixed(answer, known, reject)
    memory_gib = _gpu_memory_gib(answer, known, gpu, fixed["gpu_fraction"], reject)
    sustained, burst = _network(answer, known, reject)
    row = InstanceType(
        cloud=origin.name,
        instance_type=answer.instance_type,
        family=answer.family,
        gpu_model=gpu.gpu_model,
        gpu_memory_gib=memory_gib,
        interconnect="none" if known is None and fixed["gpus"] <= 1 else None,
        network_gbps=sustained,
        network_burst_gbps=burst,
        spec_as_of=as_of,
        source=origin.sources["types"],
        **{name: getattr(answer, name) for name in _AS_ANSWERED},
        **fixed,
    )
    return row, tuple(found)


def check_on_demand(
    prices: Mapping[str, float], known: Mapping[str, Price], region: str
) -> tuple[dict[str, float], tuple[Contradiction, ...]]:
    """The prices to accept.

    `known`: on-demand prices in the same region by instance type; assumed ones are ignored.
    """
    held = {name: price.usd_per_hour for name, price in known.items() if not price.assumed}

    def reason(name: str, price: float) -> str | None:
        old = held.get(name, price)
        if not 1 / ON_DEMAND_CHANGE <= price / old <= ON_DEMAND_CHANGE:
            return f"changed by more than a factor of {ON_DEMAND_CHANGE:g}"
        return None

    return _plausible(prices, reason, held, region, "on_demand_usd_per_hour")


def check_spot(
    prices: Mapping[str, float], on_demand: Mapping[str, float], known: Mapping[str, Price], region: str
) -> tuple[dict[str, float], tuple[Contradiction, ...]]:
    """The prices to accept, compared with known on-demand prices of the same types."""
    held = {name: price.usd_per_hour for name, price in known.items()}
    lowest, highest = SPOT_SHARES

    def reason(name: str, price: float) -> str | None:
        full = on_demand.get(name, price)
        if not lowest <= price / full <= highest:
            return f"not between {lowest:g} and {highest:g} of the on-demand price {full:g}"
        return None

    return _plausible(prices, reason, held, region, "spot_usd_per_hour")


def moves(prices: Mapping[str, float], known: Mapping[str, Price], region: str, pricing: str) -> Iterator[Move]:
    """The accepted prices that are far from those that were read before."""
    for name, price in sorted(prices.items()):
        held = known.get(name)
        if held is not None and not held.assumed and not 1 / SHOWN_CHANGE <= price / held.usd_per_hour <= SHOWN_CHANGE:
            yield Move(region, name, pricing, price, held.usd_per_hour)


def known_type(catalog: Catalog, cloud: str, name: str) -> InstanceType | None:
    return next((row for row in catalog.instances if (row.cloud, row.instance_type) == (cloud, name)), None)


def _gpu(answer: TypeAnswer, known: InstanceType | None, catalog: Catalog, reject: Reject) -> Gpu | None:
    """The GPU of the known type. For a new type, the GPU with that name and memory."""
    if known is not None:
        if known.gpu_model not in {gpu.gpu_model for gpu in matching(answer.gpu_name, catalog.gpus)}:
            reject("gpu_model", answer.gpu_name, known.gpu_model, "another GPU than is known")
        return catalog.gpu(known.gpu_model)
    one_gib = answer.gpu_memory_gib / answer.gpu_fraction
    for memory_gib in (one_gib, one_gib / max(answer.gpus, 1)):  # the second: the memory of all GPUs reported as one's
        fitting = matching(answer.gpu_name, catalog.gpus, memory_gib)
        if fitting:
            return fitting[0]
    reject("gpu_model", answer.gpu_name, None, f"no GPU of that name with {one_gib:.0f} GiB in the catalogue")
    return None


def _fixed(answer: TypeAnswer, known: InstanceType | None, reject: Reject) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for field in _FIXED:
        answered, kept = getattr(answer, field), getattr(known, field, None)
        facts[field] = answered
        if kept is not None and answered is not None and not _same(answered, kept):
            facts[field] = kept
            reject(field, answered, kept, "never changes under one name")
    return facts


def _gpu_memory_gib(
    answer: TypeAnswer, known: InstanceType | None, gpu: Gpu, fraction: float, reject: Reject
) -> float | None:
    nominal = known.gpu_memory_gib if known is not None else None
    if nominal is None and gpu.memory_gib is not None:
        nominal = gpu.memory_gib * fraction
    if nominal is None:
        return answer.gpu_memory_gib
    answered = answer.gpu_memory_gib
    if not _same(answered, nominal, GPU_MEMORY_TOLERANCE):
        total = answer.gpus > 1 and _same(answered, nominal * answer.gpus, GPU_MEMORY_TOLERANCE)
        reason = f"the total of {answer.gpus} GPUs given as one's" if total else f"{gpu.gpu_model} has another memory"
        reject("gpu_memory_gib", answered, nominal, reason)
    elif answer.total_gpu_memory_gib is not None:
        expected = answered * max(answer.gpus, 1)
        if not _same(answer.total_gpu_memory_gib, expected, GPU_MEMORY_TOLERANCE):
            reason = f"the total {answer.total_gpu_memory_gib:.4g} GiB is not that of {max(answer.gpus, 1)} GPUs"
            reject("gpu_memory_gib", answered, nominal, reason)
    return nominal


def _network(answer: TypeAnswer, known: InstanceType | None, reject: Reject) -> tuple[float | None, float | None]:
    """Sustained and burst Gbit/s. The text counts; cards give the sustained part of "up to"."""
    speed = answer.network
    sustained = sum(answer.card_gbps) or None
    burst = sum(answer.card_burst_gbps) or None
    if speed is None:
        return sustained, burst
    cards = burst if speed.burst else sustained
    if cards is None or _same(cards, speed.gbps):
        return (sustained if speed.burst else speed.gbps), speed.gbps
    reason = f"the sum over its network cards, where the machine is said to have {_text(speed.gbps)}"
    if known is not None and known.network_gbps is not None:
        reject("network_gbps", cards, known.network_gbps, reason)
        return None, None
    stated = None if speed.burst else speed.gbps
    reject("network_gbps", cards, stated, reason)
    return stated, speed.gbps


def _plausible(
    prices: Mapping[str, float],
    reason: Callable[[str, float], str | None],
    held: Mapping[str, float],
    region: str,
    field: str,
) -> tuple[dict[str, float], tuple[Contradiction, ...]]:
    taken: dict[str, float] = {}
    found: list[Contradiction] = []
    for name, price in sorted(prices.items()):
        too_low = price < LOWEST_USD_PER_HOUR
        why = f"below {LOWEST_USD_PER_HOUR} USD an hour" if too_low else reason(name, price)
        if why is None:
            taken[name] = price
        else:
            kept = _text(held[name]) if name in held else ""
            found.append(Contradiction(region, name, field, _text(price), kept, why))
    return taken, tuple(found)


def _same(answered: Any, kept: Any, tolerance: float = FIGURE_TOLERANCE) -> bool:
    if isinstance(answered, str) or isinstance(kept, str):
        return bool(answered == kept)
    return bool(abs(answered - kept) <= tolerance * abs(kept))


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
