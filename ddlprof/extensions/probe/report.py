"""The measurements of `ddlprof probe` as text, and as facts for the user's own layer of the catalogue."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ddlprof.base.reading import ReadingError, decode, parse_json
from ddlprof.base.text import text_of
from ddlprof.base.units import percent, significant
from ddlprof.extensions.probe.model import Figure, Probed
from ddlprof.instance_catalog import Catalog, CatalogError, Gpu, LinkFact, Reached
from ddlprof.instance_catalog.records import PRECISIONS
from ddlprof.report.text import aligned, labelled

MAX_FILE_BYTES = 2**20
SETTLED_S = 15.0
"""Shorter probes end before a GPU is warm."""
_SHORT = f"clocks may not have settled: measure for {SETTLED_S:.0f} s or longer"
_labelled = partial(labelled, width=80)
_LINK_GROUPS = ("copies", "collectives")


@dataclass(frozen=True)
class ProbeFacts:
    """A probe as facts of the catalogue."""

    reached: Reached
    links: tuple[LinkFact, ...]
    gpu: Gpu | None
    """The catalogue's entry of the GPU; None for a processor and for a GPU that it does not know."""

    @property
    def to_keep(self) -> tuple[Reached, ...]:
        """The facts for predictions; empty where products, memory or launches could not be measured."""
        whole = all((self.reached.fp32_tflops, self.reached.memory_gb_s, self.reached.launch_us))
        return (self.reached,) if whole else ()


def from_json(text: str) -> Probed:
    """Raises ReadingError naming the field that is wrong."""
    probed: Probed = decode(Probed, parse_json(text))
    if any(not figure.value > 0 for figure in probed.figures):
        raise ReadingError("figures: a positive number is expected")
    return probed


def facts_of(probed: Probed, catalog: Catalog) -> ProbeFacts:
    """The device by its name in the catalogue, and links by the type of the machine, or by the host's name.

    Raises CatalogError for an instance type whose GPU is another.
    """
    gpu = _gpu(probed, catalog)
    machine = _machine(probed.instance_type or "", gpu, catalog)
    source = f"ddlprof probe on {probed.host or 'a machine without a name'}"
    reached = Reached(
        gpu_model=gpu.gpu_model if gpu else probed.device,
        **{f"{name}_tflops": probed.value(f"{name}_tflops") for name in PRECISIONS},
        memory_gb_s=probed.value("memory_gb_s"),
        launch_us=probed.value("launch_us"),
        measured_at=probed.measured_at,
        source=source,
        instance_type=machine,
        clock_mhz=probed.clock_mhz,
        power_w=probed.power_w,
    )  # fmt: skip
    links = tuple(
        LinkFact(machine or probed.host or "?", f.key, f.value, f.unit, probed.measured_at, source, f.what)
        for f in probed.figures
        if f.group in _LINK_GROUPS
    )
    return ProbeFacts(reached, links, gpu)


def render(probed: Probed, facts: ProbeFacts, stored: str | None) -> str:
    """The figures by group, then what they are good for. `stored` is where they were added; None: nowhere."""
    lines = [f"ddlprof  probe {probed.device} · {_circumstances(probed)}", ""]
    rows: list[list[str]] = []
    groups = dict.fromkeys(figure.group for figure in probed.figures)
    for group in groups:
        of_group = [figure for figure in probed.figures if figure.group == group]
        for number, figure in enumerate(of_group):
            label = "" if number else group.capitalize()
            rows.append([label, figure.what, significant(figure.value), figure.unit, _remark(figure, facts.gpu)])
    lines += [*aligned(rows, right={2}), ""]
    short = probed.is_gpu and probed.seconds < SETTLED_S
    missing = [*probed.missing, *([_SHORT] if short else [])]
    lines += _labelled("Missing", *missing)
    lines += _labelled("Stored" if stored else "Not kept", _use(probed, facts, stored))
    return text_of(lines)


def _gpu(probed: Probed, catalog: Catalog) -> Gpu | None:
    for memory_gib in (probed.memory_gib, None) if probed.is_gpu else ():  # drivers may round the memory otherwise
        with suppress(CatalogError):
            return catalog.gpu(probed.device, memory_gib)
    return None


def _machine(name: str, gpu: Gpu | None, catalog: Catalog) -> str:
    """The instance type as the catalogue writes it; as it is where the catalogue has none, such as one without GPUs."""
    try:
        known = catalog.instance(name)
    except CatalogError:
        return name
    if gpu and known.gpu_model != gpu.gpu_model:
        raise CatalogError(
            f"{known.instance_type} has {known.gpu_model}, and a {gpu.gpu_model} was measured: name the type of this"
            " machine"
        )
    return known.instance_type


def _circumstances(probed: Probed) -> str:
    parts = [
        f"{probed.seconds:.0f} s",
        f"torch {probed.torch}" if probed.torch else "",
        f"{probed.clock_mhz:.0f} MHz" if probed.clock_mhz else "",
        f"{probed.power_w:.0f} W" if probed.power_w else "",
        f"{probed.nodes} machines" if probed.nodes > 1 else "",
    ]
    return " · ".join(filter(None, parts))


def _remark(figure: Figure, gpu: Gpu | None) -> str:
    """The figure as a share of the data sheet's, and the notes."""
    peak = _peak(figure.key, gpu) if gpu else None
    share = f"{percent(figure.value / peak)} of the data sheet" if peak else ""
    return ", ".join(filter(None, (share, figure.notes)))


def _peak(key: str, gpu: Gpu) -> float | None:
    from ddlprof.recommender.compute.gpu_peaks import peak_tflops  # here, as it needs numpy

    half = peak_tflops(gpu, "half")
    peaks = {"fp32": gpu.fp32_tflops, "tf32": gpu.tf32_tflops, "bf16": gpu.bf16_tflops, "fp16": half}
    of_key = {f"{name}_tflops": peak for name, peak in peaks.items()} | {"memory_gb_s": gpu.memory_bandwidth_gb_s}
    return of_key.get(key)


def _use(probed: Probed, facts: ProbeFacts, stored: str | None) -> str:
    if stored is None:
        return "the catalogue is as it was"
    if not probed.is_gpu:
        return f"{stored}; predictions are of GPUs: launches tell how fast hosts are, the rest is for comparison"
    if not facts.to_keep:
        return f"{stored}, links only: without products, memory and launches no prediction can rest on it"
    if facts.gpu is None:
        return f"{stored}; the catalogue does not know a {probed.device}, so no prediction uses it"
    return f"{stored}; predictions for {facts.gpu.gpu_model} rest on these figures from now on"
