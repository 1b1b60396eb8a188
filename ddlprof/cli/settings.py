"""The options of `recommend` and `predict` about how the job is to train, and what its machines cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddlprof.base.errors import UserError

if TYPE_CHECKING:
    from instance_catalog import OwnPrices
    from recommender import Settings

Precision = Annotated[
    str | None,
    typer.Option(metavar="P", help="fp32, tf32, bf16, fp16, amp-bf16, amp-fp16 or fp8 [as in RUN]."),
]
Precisions = Annotated[
    str | None,
    typer.Option(metavar="P,...", help="fp32, tf32, bf16, fp16, amp-bf16, amp-fp16 or fp8 [as in RUN]."),
]
Strategy = Annotated[str | None, typer.Option(metavar="S", help="ddp, fsdp or zero [as in RUN].")]
Optimizer = Annotated[str | None, typer.Option(metavar="O", help="adamw, adam, sgd, none, ... [as in RUN].")]
GradAccum = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Forward and backward passes for each update [as in RUN].")
]
Checkpointing = Annotated[
    bool | None,
    typer.Option("--checkpointing/--no-checkpointing", help="Compute activations again in backward [as in RUN]."),
]
Compiled = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="Fuse operators with torch.compile [as in RUN].")
]
Discounts = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=N%", help="Discount on the list prices of a cloud or an instance type, as aws=30%."),
]
Prices = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Prices of your own, a CSV file: instance_type,usd_per_hour[,region,...]."),
]
OtherJobs = Annotated[
    list[str] | None,
    typer.Option("--other-job", metavar="RUN", help="Run of another job: what its GPU reached there counts, too."),
]


def settings_of(
    precision: str | None,
    strategy: str | None,
    optimizer: str | None,
    grad_accum: int | None,
    checkpointing: bool | None,
    compiled: bool | None,
) -> Settings:
    """The settings asked for. Raises UserError for names that nobody knows."""
    from ddlprof.described_job import one_line
    from recommender import Settings
    from recommender.settings import check_settings

    with one_line():
        settings = Settings(precision, strategy, optimizer, grad_accum, checkpointing, compiled)
        check_settings(settings)
    return settings


def own_prices(discounts: list[str], path: Path | None) -> OwnPrices | None:
    """What the user pays in place of the list's prices; None: nothing else. Raises UserError or CatalogError for a
    discount or a file that cannot be."""
    from instance_catalog import OwnPrices, load, read_own_prices

    if not discounts and path is None:
        return None
    return OwnPrices(read_own_prices(path, load()) if path else (), dict(map(_discount, discounts)))


def _discount(text: str) -> tuple[str, float]:
    name, _, amount = (part.strip() for part in text.partition("="))
    try:
        percent = float(amount.removesuffix("%")) if amount.endswith("%") else 0.0
    except ValueError:
        percent = 0.0
    if not name or not 0 < percent <= 100:
        raise UserError(f"--discount takes a cloud or an instance type and up to 100 %, as in aws=30%: not {text!r}")
    return name, percent / 100
