"""The energy of a run: of a step, a sample and a token, of each class in proportion of its time, and of the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddlprof.analysis.energy import POWER, energy_of
from ddlprof.base.units import count, significant
from ddlprof.model.classes import CLASSES

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt
    from ddlprof.report.run.rates import Rates

_J_PER_KWH = 3.6e6
ENERGY_FIGURES = ("power_w", "device_power_w", "host_power_w", "step_j", "sample_j", "token_j", "kwh", "co2_g")
"""The numbers of an `EnergyLine`."""


@dataclass(frozen=True)
class EnergyLine:
    """The energy of all ranks and machines together, as far as it was measured; None: not measured."""

    power_w: float
    """The mean power while steps ran, of devices and hosts."""
    device_power_w: float | None
    host_power_w: float | None
    """Of processors and their memory, by RAPL."""
    step_j: float
    sample_j: float | None
    token_j: float | None
    classes_j: dict[str, float] = field(default_factory=dict)
    """The energy of each class in a step, by its share of the time: nobody measures the power of a class."""
    kwh: float = 0.0
    """Of the attempts in which it was measured, from the first reading of each to its last."""
    unmeasured_attempts: int = 0
    """Attempts that `kwh` lacks, as those that ended before there were three readings."""
    co2_g: float | None = None
    """The grams that `kwh` stands for, where the user told how many a kWh takes."""
    source: str = ""
    """What was read: counters of energy, or readings of power, about one a second, between which power may differ."""


def energy_line(
    attempts: Sequence[Attempt],
    headline: Attempt | None,
    rates: Rates,
    carbon_g_per_kwh: float | None = None,
) -> EnergyLine | None:
    """The energy of a run; None where the attempt of the headline has none.

    `carbon_g_per_kwh`: the CO2 of a kWh where it ran.
    """
    if headline is None or (found := energy_of(headline.ranks)) is None:
        return None
    means_ns = {name: headline.summary.mean_ns(name) for name in ("step", *CLASSES)}
    step_ns = means_ns.pop("step")
    if not step_ns:
        return None
    measured = [each for attempt in attempts if (each := energy_of(attempt.ranks)) is not None]
    kwh = sum(each.joules for each in measured) / _J_PER_KWH
    devices, hosts, step_s = found.devices, found.hosts, step_ns / 1e9
    return EnergyLine(
        power_w=found.watts,
        device_power_w=devices.watts if devices is not None else None,
        host_power_w=hosts.watts if hosts is not None else None,
        step_j=found.watts * step_s,
        sample_j=found.watts / rates.samples_per_s if rates.samples_per_s else None,
        token_j=found.watts / rates.tokens_per_s if rates.tokens_per_s else None,
        classes_j={name: found.watts * mean_ns / 1e9 for name, mean_ns in means_ns.items() if mean_ns},
        kwh=kwh,
        unmeasured_attempts=len(attempts) - len(measured),
        co2_g=kwh * carbon_g_per_kwh if carbon_g_per_kwh is not None else None,
        source=devices.source if devices is not None else hosts.source if hosts is not None else "",
    )


def energy_text(energy: EnergyLine) -> str:
    """`210 J a step, 3.3 J a sample, devices 620 W, processors and memory 85 W, 0.84 kWh in all`."""
    return ", ".join(_words(energy))


def in_all(energy: EnergyLine) -> str:
    """`0.84 kWh in all`, or `0.84 kWh without 1 attempt` where that was not measured."""
    amount, unit = (energy.kwh, "kWh") if energy.kwh >= 1e-3 else (1e3 * energy.kwh, "Wh")
    lacks = energy.unmeasured_attempts
    return f"{significant(amount)} {unit} " + (f"without {count(lacks, 'attempt')}" if lacks else "in all")


def _words(energy: EnergyLine) -> Iterator[str]:
    parts = {"devices": energy.device_power_w, "processors and memory": energy.host_power_w}
    drawn = ", ".join(f"{name} {significant(watts)} W" for name, watts in parts.items() if watts is not None)
    about = "about " if energy.source == POWER else ""
    yield f"{about}{significant(energy.step_j)} J a step"
    if energy.sample_j is not None:
        yield f"{significant(energy.sample_j)} J a sample"
    if energy.token_j is not None:
        yield f"{significant(energy.token_j)} J a token"
    yield drawn
    yield in_all(energy)
    if energy.co2_g is not None:
        yield f"{significant(energy.co2_g)} g of CO2"
