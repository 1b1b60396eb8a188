"""Arguments and options that several commands share, and the parsing of their values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ddlprof.base.errors import UserError
from ddlprof.cli.panels import job_option, machines_option, price_option

if TYPE_CHECKING:
    from ddlprof.instance_catalog import OwnPrices
    from ddlprof.recommender import Settings

RUN_HELP = (
    "Run directory or its URL (s3://...); the run may be unfinished or still going. "
    "Several are taken as parts of one run whose ranks share no file system; so are run directories in one folder."
)
PHASE_HELP = "Number of the phase of the training, as on the card, that it is of [that with most time]."
JOB_HELP = (
    "Run directory or its URL, or a file of `ddlprof features`. "
    "Several are taken as runs of the same job on different placements; each one sharpens the prediction."
)
_MAX_NUMBERS = 10_000
"""The most numbers in a list such as `4,4`."""
_MAX_DIGITS = 11
_MAX_SHOWN = 59
"""The number of characters of a wrong list that the error repeats."""
_FACTORS = {"k": 1e3, "m": 1e6, "b": 1e9}

Precision = Annotated[
    str | None,
    job_option(metavar="P", help="fp32, tf32, bf16, fp16, amp-bf16, amp-fp16 or fp8 [as in RUN]."),
]
Precisions = Annotated[
    str | None,
    job_option(metavar="P,...", help="fp32, tf32, bf16, fp16, amp-bf16, amp-fp16 or fp8 [as in RUN]."),
]
Strategy = Annotated[str | None, job_option(metavar="S", help="ddp, fsdp or zero [as in RUN].")]
Optimizer = Annotated[str | None, job_option(metavar="O", help="adamw, adam, sgd, none, ... [as in RUN].")]
GradAccum = Annotated[
    int | None, job_option(metavar="N", min=1, help="Forward and backward passes for each update [as in RUN].")
]
Checkpointing = Annotated[
    str | None,
    job_option(
        metavar="HOW",
        help="Compute activations again in backward: full (as without HOW), selective (all but results of products"
        " with weights) or none [as in RUN].",
    ),
]
Lora = Annotated[
    int | None, job_option("--lora", metavar="RANK", min=1, help="Train adapters beside frozen weights (LoRA).")
]
Qlora = Annotated[
    int | None, job_option("--qlora", metavar="RANK", min=1, help="The same, the weights held in four bits (QLoRA).")
]
LoraTargets = Annotated[
    str | None,
    job_option(
        "--lora-targets",
        metavar="NAME,...",
        help="Layers with adapters, by the ends of their names, as q_proj,v_proj, or all-linear [as PEFT].",
    ),
]
LoraPrecision = Annotated[
    str | None,
    job_option(
        "--lora-precision",
        metavar="P",
        help="Precision of the adapters: fp32, amp-bf16 (fp32 under autocast), bf16, ... [as PEFT: fp32 beside bf16].",
    ),
]
QloraFormat = Annotated[
    str | None,
    job_option(
        "--qlora-format", metavar="FORMAT", help="How QLoRA holds its weights: nf4 (bitsandbytes) or gptq [nf4]."
    ),
]
LoraDropout = Annotated[
    bool | None, job_option("--lora-dropout", help="Drop out a part of what adapters get [not, as PEFT].")
]
HostLaunchUs = Annotated[
    float | None,
    machines_option(
        "--host-launch-us",
        metavar="US",
        min=0.1,
        max=100_000.0,
        help="Microseconds that a host takes to launch an operator: `launch_us` of ddlprof probe [typical].",
    ),
]
Compiled = Annotated[
    bool | None, job_option("--compile/--no-compile", help="Fuse operators with torch.compile [as in RUN].")
]
ChannelsLast = Annotated[
    bool | None,
    job_option("--channels-last/--no-channels-last", help="Lay out images with channels last (NHWC) [as in RUN]."),
]
Discounts = Annotated[
    list[str] | None,
    price_option(metavar="NAME=N%", help="Discount on the list prices of a cloud or an instance type, as aws=30%."),
]
Prices = Annotated[
    Path | None,
    price_option(metavar="FILE", help="Prices of your own, a CSV file: instance_type,usd_per_hour[,region,...]."),
]
Interruptions = Annotated[
    list[str] | None,
    price_option(
        "--interruptions-per-hour",
        metavar="N",
        help="Interruptions of one spot machine in an hour [0.1]; TYPE=N for one type, on_demand=N for machines that"
        " are not taken away, but fail.",
    ),
]
OtherJobs = Annotated[
    list[str] | None,
    job_option("--other-job", metavar="RUN", help="Run of another job: what its GPU reached there counts, too."),
]

_HOW_TO_CHECKPOINT: dict[str, bool | Literal["selective"]] = {"none": False, "full": True, "selective": "selective"}
_WITHOUT_VALUE = {"--checkpointing": "full", "--no-checkpointing": "none"}
"""What options that may stand alone mean then, as values of `--checkpointing`."""

_LEARNED_HELP = "What `ddlprof learn` wrote [learned.json in your own layer of the catalogue, if there is one]."
LearnedFile = Annotated[Path | None, job_option("--learned", metavar="FILE", help=_LEARNED_HELP)]
LearnedFileInShortHelp = Annotated[Path | None, typer.Option("--learned", metavar="FILE", help=_LEARNED_HELP)]
"""For commands whose options have no panels."""


def settings_of(checkpointing: str | None = None, **asked: Any) -> Settings:
    """The settings that replace those of the run, by the names of `Settings`. Raises PredictionError for names that are
    not known, and UserError for a way of checkpointing that is not."""
    from ddlprof.recommender import Settings
    from ddlprof.recommender.settings import check_settings

    again = None if checkpointing is None else _way_of_checkpointing(checkpointing)
    settings = Settings(checkpointing=again, **asked)
    check_settings(settings)
    return settings


def _way_of_checkpointing(name: str) -> bool | Literal["selective"]:
    if name not in _HOW_TO_CHECKPOINT:
        raise UserError(f"--checkpointing {name!r} is not known; one of: {', '.join(_HOW_TO_CHECKPOINT)}")
    return _HOW_TO_CHECKPOINT[name]


def with_values(words: list[str]) -> list[str]:
    """The words of `recommend` or `predict`, where `--checkpointing` may stand alone or have a value behind it, with
    the value in the same word: `--checkpointing=full`. Anything but a value stays where it is."""
    found: list[str] = []
    rest = iter(zip(words, [*words[1:], ""], strict=True))
    for word, following in rest:
        if word == "--":
            return [*found, word, *(word for word, _ in rest)]
        if word == "--checkpointing" and following in _HOW_TO_CHECKPOINT:
            found.append(f"{word}={following}")
            next(rest)
        elif word in _WITHOUT_VALUE:
            found.append(f"--checkpointing={_WITHOUT_VALUE[word]}")
        else:
            found.append(word)
    return found


def own_prices(discounts: list[str] | None, path: Path | None) -> OwnPrices | None:
    """The user's own prices and discounts, or None if there are none.

    Raises UserError for a wrong discount, and CatalogError for a wrong file.
    """
    from ddlprof.instance_catalog import OwnPrices, load, read_own_prices

    if not discounts and path is None:
        return None
    return OwnPrices(read_own_prices(path, load()) if path else (), dict(map(_discount, discounts or [])))


def _discount(text: str) -> tuple[str, float]:
    """The cloud or type, and the share of the price that it is discounted by."""
    name, _, amount = (part.strip() for part in text.partition("="))
    try:
        percent = float(amount.removesuffix("%")) if amount.endswith("%") else 0.0
    except ValueError:
        percent = 0.0
    if not name or not 0 < percent <= 100:
        raise UserError(f"--discount takes a cloud or an instance type and up to 100 %, as in aws=30%: not {text!r}")
    return name, percent / 100


def interruptions_of(texts: list[str] | None) -> dict[str, float]:
    """The interruptions in an hour by type, `spot` or `on_demand`; a number alone is that of spot machines.

    Raises UserError for what is no rate, and CatalogError for an unknown type.
    """
    from ddlprof.instance_catalog import load

    found = {}
    for text in (part for each in texts or () for part in each.split(",")):
        name, equals, amount = (part.strip() for part in text.rpartition("="))
        try:
            rate = float(amount)
        except ValueError:
            rate = -1.0
        if not 0 <= rate < 3600 or (equals and not name):
            raise UserError(f"--interruptions-per-hour takes rates such as 0.05 or p4d.24xlarge=0.2: not {text!r}")
        if name not in ("", "spot", "on_demand"):
            name = load().instance(name).instance_type
        found[name or "spot"] = rate
    return found


def amount(text: str) -> float:
    """The number that a text such as `1e8`, `300k`, `1.2M` or `300,000` means. Raises ValueError for others."""
    try:
        return _amount(text)
    except ValueError:
        raise ValueError(f"give a number, as in 1e8, 300k or 1.2M: not {text!r}") from None


def _amount(text: str) -> float:
    compact = re.sub(r"(?<=\d)[,_](?=\d{3}(?:\D|$))", "", text.strip())
    factor = _FACTORS.get(compact[-1:].lower())
    return float(compact) if factor is None else float(compact[:-1]) * factor


def names_in(text: str) -> list[str]:
    """The names in `a, b,c`."""
    return [name.strip() for name in text.split(",") if name.strip()]


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """The numbers in `4,4`, all above 0. Raises UserError that names the option."""
    numbers = names_in(text)
    if len(numbers) > _MAX_NUMBERS:
        raise UserError(f"{option} takes {_MAX_NUMBERS:,} numbers at most, not {len(numbers):,}")
    are_valid = all(number.isdecimal() and len(number) <= _MAX_DIGITS and int(number) > 0 for number in numbers)
    if not numbers or not are_valid:
        given = text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN + 1]}..."
        raise UserError(f"{option} takes whole numbers above 0, as in 4,4: not {given!r}")
    return tuple(map(int, numbers))
