"""`ddlprof instances show`: all facts about one machine with their sources, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import comb

from ddlprof.base.text import text_of
from ddlprof.base.units import NOT_KNOWN, count, significant
from ddlprof.instance_catalog import (
    Catalog,
    CatalogError,
    Disagreement,
    FlowLimit,
    Gpu,
    InstanceType,
    LinkFact,
    Price,
    Reached,
    Source,
)
from ddlprof.report.json_csv import json_text
from ddlprof.report.machines.listing import dollars, gpus, number
from ddlprof.report.text import aligned, wrapped

_LABEL_WIDTH = 14
_TRANSPORTS = {"tcp": "TCP", "ena_express": "ENA Express", "efa": "EFA"}
_PEAKS = {
    "fp32": "fp32_tflops",
    "tf32": "tf32_tflops",
    "fp16": "fp16_tflops",
    "fp16 tensor": "fp16_tensor_tflops",
    "bf16": "bf16_tflops",
}


@dataclass(frozen=True)
class Page:
    """What the catalogue holds about one machine."""

    instance: InstanceType
    gpu: Gpu | None
    flow_limits: tuple[FlowLimit, ...]
    """The flow limits of its cloud that apply to the machine."""
    prices: tuple[Price, ...]
    """The prices by region, on demand before spot."""
    measured: tuple[LinkFact, ...]
    """The links measured by the user, the newest first."""
    reached: tuple[Reached, ...]
    """What the user's probes of its GPU measured, the newest first."""
    disagreements: tuple[Disagreement, ...]
    sources: tuple[Source, ...]
    """The meaning of the short names of sources."""


def build_page(catalog: Catalog, machine: InstanceType) -> Page:
    """Looks up all facts that the page shows."""
    try:
        gpu = catalog.gpu(machine.gpu_model)
    except CatalogError:  # a type that is newer than the table of GPUs
        gpu = None
    able = {"tcp": True, "ena_express": machine.ena_express, "efa": machine.efa}
    limits = tuple(f for f in catalog.flow_limits if f.cloud == machine.cloud and able.get(f.transport))
    prices = tuple(sorted(catalog.prices_of(machine), key=lambda price: (price.region, price.pricing)))
    measured = [fact for fact in catalog.links if fact.machine == machine.instance_type]
    probes = [row for row in catalog.reached if row.gpu_model == machine.gpu_model]
    used = [machine.source, gpu.source if gpu else "", *(f.source for f in limits), *(p.source for p in prices)]
    return Page(
        instance=machine,
        gpu=gpu,
        flow_limits=limits,
        prices=prices,
        measured=tuple(sorted(measured, key=lambda fact: fact.measured_at, reverse=True)),
        reached=tuple(sorted(probes, key=lambda row: row.measured_at, reverse=True)),
        disagreements=catalog.disagreements_about(machine),
        sources=tuple(dict.fromkeys(source for text in used for source in catalog.sources_of(text))),
    )


def as_json(page: Page) -> str:
    """One object, null for what is not known, ending with a line end."""
    value = asdict(page)
    value["instance"]["link_pairs"] = [pair._asdict() for pair in page.instance.link_pairs]
    return json_text(value)


def as_text(page: Page, width: int) -> str:
    """Labelled paragraphs wrapped at `width`, then tables, which are not, then remarks and sources."""
    blocks = [
        [_head(page.instance), *_paragraphs(_facts(page), width)],
        *([title, *(f"  {line}" for line in aligned(rows, right))] for title, rows, right in _tables(page)),
        _paragraphs(_remarks(page), width),
    ]
    lines = [line for block in blocks if block for line in ["", *block]]
    return text_of(lines[1:])


def _paragraphs(texts: Iterable[tuple[str, str]], width: int) -> list[str]:
    """`Label   text that goes on below itself`; a text without a label goes on where the one before it ended."""
    labelled = [(f"{label:<{_LABEL_WIDTH}}", text) for label, text in texts]
    return [line for label, text in labelled for line in wrapped(text, width, label, break_long_words=False)]


def _head(machine: InstanceType) -> str:
    retired = {False: " · retired", None: "", True: ""}[machine.offered]
    return f"{machine.instance_type} · {machine.cloud} · family {machine.family}{retired}"


def _facts(page: Page) -> Iterator[tuple[str, str]]:
    machine = page.instance
    yield "GPUs", f"{gpus(machine)}, {_with(machine.gpu_memory_gib, 'GiB')} each"
    if page.gpu:
        yield from _gpu(page.gpu)
    else:
        yield "", "nothing is known of this GPU"
    yield from _reached(page.reached)
    yield "Between GPUs", _interconnect(machine)
    if machine.link_pairs:
        pairs = ", ".join(f"{pair.gpu_a}-{pair.gpu_b}: {pair.links}" for pair in machine.link_pairs)
        rest = "; other pairs have none" if len(machine.link_pairs) < comb(machine.gpus, 2) else ""
        yield "", f"NVLinks of pairs of GPUs: {pairs}{rest}"
    yield "GPU to host", f"PCIe {number(machine.pcie_gen)} x{number(machine.pcie_lanes)}{_aside(machine.pcie_basis)}"
    cpu = ", ".join(filter(None, (machine.cpu_model, machine.cpu_arch)))
    yield "Host", f"{_with(machine.vcpus, 'vCPUs')}, {_with(machine.memory_gib, 'GiB')} of memory{_aside(cpu)}"
    yield "Network", _network(machine)
    yield "", _flows(machine)
    for number_of, limit in enumerate(page.flow_limits):
        yield "" if number_of else "Flow limits", _limit(limit)
    yield "Storage", _storage(machine)
    if machine.offered_regions:
        yield "Seen on offer", ", ".join(machine.offered_regions)
    yield "Facts", f"as of {machine.spec_as_of or 'no known date'}, from {_named(machine.source)}"


def _reached(rows: Iterable[Reached]) -> Iterator[tuple[str, str]]:
    """The measurements of a type's GPU by probes."""
    for place, row in enumerate(rows):
        tflops = [f"{name} {significant(value)}" for name, value in row.tflops().items()]
        parts = [
            f"products in TFLOPS: {', '.join(tflops)}" if tflops else "",
            f"memory {significant(row.memory_gb_s, 4)} GB/s" if row.memory_gb_s else "",
            f"{significant(row.launch_us)} us from one small operator to the next" if row.launch_us else "",
            f"at {row.clock_mhz:.0f} MHz" if row.clock_mhz else "",
            f"{row.power_w:.0f} W" if row.power_w else "",
        ]
        where = f" ({row.instance_type})" if row.instance_type else ""
        text = f"{'; '.join(filter(None, parts))}; {row.source}{where}, {row.measured_at or 'undated'}"
        yield "" if place else "Reached", text


def _gpu(gpu: Gpu) -> Iterator[tuple[str, str]]:
    kind = [
        gpu.architecture,
        f"compute capability {gpu.compute_capability}" if gpu.compute_capability else None,
        gpu.form_factor,
        f"{gpu.sm_count} SMs" if gpu.sm_count else None,
        f"{number(gpu.tdp_w)} W" if gpu.tdp_w else None,
        f"{_with(gpu.memory_bandwidth_gb_s, 'GB/s')} to its memory{_aside(gpu.memory_type)}",
    ]
    yield "", ", ".join(filter(None, kind))
    peaks = [f"{name} {number(getattr(gpu, field))}" for name, field in _PEAKS.items()]
    yield "", f"dense peaks in TFLOPS: {', '.join(peaks)}"
    yield "", f"its figures: confidence {gpu.confidence or 'not stated'}, from {_named(gpu.source)}"
    if gpu.notes:
        yield "", gpu.notes


def _interconnect(machine: InstanceType) -> str:
    if machine.interconnect is None:
        return "not known"
    if machine.interconnect == "none":
        return "nothing: one GPU"
    speed = f"{_with(machine.interconnect_gb_s, 'GB/s')} of one GPU in one direction, at most"
    switch = {True: ", through NVSwitch", False: "", None: ""}[machine.nvswitch]
    return f"{machine.interconnect}, {speed}{switch}{_aside(machine.interconnect_basis)}"


def _network(machine: InstanceType) -> str:
    parts = [f"{_with(machine.network_gbps, 'Gbit/s')} sustained"]
    if machine.network_burst_gbps != machine.network_gbps:
        parts.append(f"{_with(machine.network_burst_gbps, 'Gbit/s')} in bursts")
    parts += [f"{machine.network_cards} network cards"] if (machine.network_cards or 0) > 1 else []
    if machine.efa:
        parts.append(f"EFA with {count(machine.efa_interfaces, 'interface')}" if machine.efa_interfaces else "EFA")
    parts += ["no EFA"] if machine.efa is False and machine.cloud == "aws" else []
    parts += ["ENA Express"] if machine.ena_express else []
    parts += [f"{number(machine.rdma_gbps)} Gbit/s of RDMA beside it"] if machine.rdma_gbps else []
    return ", ".join(parts)


def _flows(machine: InstanceType) -> str:
    apart, together = machine.flow_gbps, machine.flow_placement_group_gbps
    if apart is None and together is None:
        return "no limit of a single flow is known"
    text = f"one TCP flow: {_with(apart, 'Gbit/s')}, {_with(together, 'Gbit/s')} within a cluster placement group"
    express = machine.flow_ena_express_gbps
    return text if express is None else f"{text}, {_with(express, 'Gbit/s')} with ENA Express"


def _limit(limit: FlowLimit) -> str:
    where = " in a cluster placement group" if limit.placement_group else ""
    gbps = "none documented" if limit.gbps is None else f"{number(limit.gbps)} Gbit/s"
    transport = _TRANSPORTS.get(limit.transport, limit.transport)
    return f"{transport}{where}: {gbps}{_aside(limit.notes)}, from {_named(limit.source)}"


def _storage(machine: InstanceType) -> str:
    local = "no local disks" if machine.local_storage_gib == 0 else f"{_with(machine.local_storage_gib, 'GiB')} local"
    if machine.ebs_gbps is None:
        return local
    burst = (
        f" ({number(machine.ebs_burst_gbps)} in bursts)"
        if machine.ebs_burst_gbps not in (None, machine.ebs_gbps)
        else ""
    )
    return f"{local}, {number(machine.ebs_gbps)} Gbit/s{burst} to network storage"


def _tables(page: Page) -> Iterator[tuple[str, list[list[str]], set[int]]]:
    """The tables: title, rows, and which columns hold figures."""
    if page.measured:
        header = ["what", "value", "unit", "measured", "source", "notes"]
        facts = [[f.what, significant(f.value, 4), f.unit, f.measured_at, f.source, f.notes] for f in page.measured]
        yield "Measured by you", [header, *facts], {1}
    header = ["region", "pricing", "USD/h", "as of", "basis", "from"]
    prices = [
        [p.region, p.pricing, dollars(p), p.as_of or NOT_KNOWN, p.basis or NOT_KNOWN, _named(p.source)]
        for p in page.prices
    ]
    yield "Prices" if prices else "Prices: none is known", [header, *prices] if prices else [], {2}


def _remarks(page: Page) -> Iterator[tuple[str, str]]:
    for number_of, note in enumerate(filter(None, (note.strip() for note in page.instance.notes.split(";")))):
        yield "" if number_of else "Notes", note
    for d in page.disagreements:
        reason = f": {d.reason}" if d.reason else ""
        yield (
            "Disagreement",
            f"{d.field} of {d.subject} is {d.kept} ({d.kept_source}), not {d.other} ({d.other_source}){reason}",
        )
    for number_of, source in enumerate(page.sources):
        dated = f", {source.as_of}" if source.as_of else ""
        yield "" if number_of else "Sources", f"{source.source}: {source.what}, {source.location}{dated}"


def _with(value: float | None, unit: str) -> str:
    """`16 GiB`, or `unknown GiB` where the number is not known."""
    return f"{'unknown' if value is None else number(value)} {unit}"


def _aside(text: str | None) -> str:
    return f" ({text})" if text else ""


def _named(source: str) -> str:
    return ", ".join(name.strip() for name in source.split(";")) or "no known source"
