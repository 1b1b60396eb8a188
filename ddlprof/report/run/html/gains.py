"""The possible gains: the shortest step without each class, and the cost of each class in dollars."""

from __future__ import annotations

from dataclasses import dataclass

from ddlprof.analysis.ceilings import CEILINGS, ceilings
from ddlprof.base.errors import UserError
from ddlprof.base.units import count, percent, significant, usd
from ddlprof.instance_catalog import CatalogError, Price, load
from ddlprof.report.html.chart import chart, rounded
from ddlprof.report.html.element import Content, Html, joined, table, tag
from ddlprof.report.html.shell import Absent, Section
from ddlprof.report.run.html.subject import NAMES, Subject, swatch

_STEPS = 1000
_LEAST_SHARE = 0.001
"""The least gain, as a share of the step, that is worth a line."""


def at_best(subject: Subject) -> Section | Absent:
    """The shortest step that is possible without each class (`analysis.ceilings`)."""
    title = "At best"
    headline, step_s = subject.headline, subject.step_s
    if headline is None or not step_s:
        return Absent(title, "there is no steady step")
    every = ceilings([rank.times for rank in headline.ranks], step_s)
    found = [each for each in every if subject.mean_s(each.name) and each.gain_s > _LEAST_SHARE * step_s]
    if not found:
        unmeasured = len(subject.ranks) > 1 and subject.mean_s("comm") is None
        why = "waits for other ranks were not measured, and would be taken for work" if unmeasured else (
            "all of the step is computing"
        )  # fmt: skip
        return Absent(title, why)
    rows: list[list[Content]] = [
        [
            joined(swatch(each.name), CEILINGS[each.name]),
            subject.time(each.step_s),
            f"- {subject.time(each.gain_s)}",
            percent(each.gain_s / step_s),
        ]
        for each in found
    ]
    data = {
        "unit": subject.scale.unit,
        "step": round(step_s * subject.scale.per_second, 4),
        "bars": [
            {"name": each.name, "label": f"no {NAMES[each.name]}",
             "least": round(each.step_s * subject.scale.per_second, 4),
             "gain": round(each.gain_s * subject.scale.per_second, 4)}
            for each in found
        ],
    }  # fmt: skip
    best = max(found, key=lambda each: each.gain_s)
    caption = (
        "How long the mean step would take at the least if one thing were perfect. These are bounds from the timeline, "
        "not predictions, and they are not to be added up: what one saves may be what another one would then wait for."
    )
    figure = chart(
        "ceilings", "ceilings", data, caption=caption,
        alt=f"Bars of the least step without each class. The most, {subject.time(best.gain_s)}, could be gained with "
        f"{CEILINGS[best.name]}.",
        table=table("The mean step at best", ["With", "Step at least", "Gain at most", "Of the step"], rows),
        height=90 + 34 * len(found),
    )  # fmt: skip
    return Section("ceilings", title, figure)


@dataclass(frozen=True)
class RunPrice:
    """The prices of the run's machines."""

    instance_type: str
    nodes: int
    price: Price

    @property
    def usd_per_second(self) -> float:
        """The price of all machines."""
        return self.price.usd_per_hour * self.nodes / 3600


def rate_of(subject: Subject) -> RunPrice | str:
    """The price that applies, or the reason why there is none. Raises UserError for an unknown instance type."""
    asked = subject.instance
    host = subject.run.manifest.host if subject.run.manifest else {}
    name = asked or host.get("instance_type")
    if not isinstance(name, str) or not name:
        return "the run does not tell what its machines are: --instance TYPE counts in the price of one"
    try:
        catalog = load()
        found = catalog.price(name)
    except CatalogError as error:
        if asked:
            raise UserError(f"--instance: {error}") from None
        return f"the machines are {name}, which the catalogue does not have: --instance TYPE names one that it has"
    if found is None:
        return f"the catalogue has no price of {name}: ddlprof instances refresh reads prices"
    return RunPrice(catalog.instance(name).instance_type, max(subject.report.nodes, 1), found)


def in_money(subject: Subject, rate: RunPrice | str) -> Section | Absent:
    """Dollars per thousand steps, class by class."""
    title = "What it costs"
    if isinstance(rate, str):
        return Absent(title, rate)
    if not subject.step_s:
        return Absent(title, "there is no steady step")
    cost = {name: (subject.mean_s(name) or 0.0) * _STEPS * rate.usd_per_second for name in subject.terms}
    whole = subject.step_s * _STEPS * rate.usd_per_second
    rows: list[list[Content]] = [
        [joined(swatch(name), NAMES[name]), usd(cost[name]), subject.share(subject.mean_s(name))]
        for name in subject.terms
    ]
    rows.append(["the whole step", usd(whole), "100 %"])
    data = {
        "unit": "USD",
        "bars": [{"name": n, "label": NAMES[n], "value": rounded(v)} for n, v in cost.items() if v],
    }
    lost = {name: value for name, value in cost.items() if name != "compute" and value}
    worst = max(lost, key=lambda name: lost[name], default=None)
    most = f" Most is lost to {NAMES[worst]}: {usd(lost[worst])}." if worst else ""
    figure = chart(
        "money", "money", data,
        caption=f"{_STEPS:,} steps cost {usd(whole)}, of which {usd(sum(lost.values()))} are not spent on "
        f"computing.{most}",
        alt=f"Bars of dollars for each class of {_STEPS:,} steps.{most}",
        table=table(f"Dollars for {_STEPS:,} steps", ["Class", "USD", "Share"], rows),
        height=80 + 34 * max(len(data["bars"]), 1),
    )  # fmt: skip
    return Section("money", title, [_of_price(rate), figure])


def _of_price(rate: RunPrice) -> Html:
    price = rate.price
    when = f", {price.as_of}" if price.as_of else ", undated"
    assumed = " (assumed, read nowhere)" if price.assumed else ""
    return tag(
        "p",
        f"{count(rate.nodes, 'machine')} of {rate.instance_type} at {significant(price.usd_per_hour, 4)} USD an hour "
        f"each: {price.cloud} {price.region}, on demand{when}{assumed}.",
    )
