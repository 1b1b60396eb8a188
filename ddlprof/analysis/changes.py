"""Facts of a run other than times, and how they differ between two groups of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ddlprof.base.text import shell_word
from ddlprof.base.units import significant
from ddlprof.model.manifest import Manifest

if TYPE_CHECKING:
    from ddlprof.analysis.run import Attempt
    from ddlprof.store import RunData

GROUPS = JOB, MODEL, TRAINING, ENVIRONMENT = "job", "model", "training", "environment"

_RESULTS = (
    "peak_device_memory_bytes",
    "peak_process_memory_bytes",
    "tokens_per_sample",
    "padding_share",
    "ignored_share",
    "batch_bytes",
    "launch_us",
)
"""Fields of the training that are results, not settings, and differ from run to run."""
_SMALL = 1e-4
"""Numbers below this, such as learning rates, are written with an exponent."""


@dataclass(frozen=True)
class Change:
    """One fact that differs, as text. None: not known on that side."""

    group: str
    """One of `GROUPS`."""
    what: str
    a: str | None
    b: str | None


NamedFacts = dict[tuple[str, str], str]


def facts_of(run: RunData, attempt: Attempt) -> NamedFacts:
    """The facts of a run as text, by group and name."""
    found = _of_ranks(attempt) | (dict(_of_manifest(run.manifest)) if run.manifest else {})
    return {key: _text(value) for key, value in found.items() if value not in (None, "", [], ())}


def changes(a: Sequence[NamedFacts], b: Sequence[NamedFacts]) -> list[Change]:
    """The facts that have different values on the two sides."""
    keys = dict.fromkeys(key for facts in (*a, *b) for key in facts)
    found = [Change(*key, _values(a, key), _values(b, key)) for key in keys]
    return [change for change in found if change.a != change.b]


def _values(side: Sequence[NamedFacts], key: tuple[str, str]) -> str | None:
    values = sorted({facts[key] for facts in side if key in facts})
    return " / ".join(values) if values else None


def _of_manifest(manifest: Manifest) -> Iterator[tuple[tuple[str, str], Any]]:
    yield (JOB, "script"), manifest.name
    yield (JOB, "arguments"), " ".join(map(shell_word, manifest.argv[1:]))
    for name, version in sorted(manifest.versions.items()):
        yield (ENVIRONMENT, name), version
    for name, value in manifest.host.items():
        yield (ENVIRONMENT, _words(name)), _of_host(name, value)
    for each in fields(manifest.model):
        yield (MODEL, _words(each.name)), getattr(manifest.model, each.name)
    for each in fields(manifest.training):
        if each.name not in _RESULTS:
            yield (TRAINING, _words(each.name)), getattr(manifest.training, each.name)


def _of_host(name: str, value: Any) -> Any:
    if name == "memory_bytes" and isinstance(value, (int, float)):  # machines of one type differ by a few bytes
        return f"{value / 2**30:.0f} GiB"
    return value


def _of_ranks(attempt: Attempt) -> dict[tuple[str, str], Any]:
    headers = [rank.data.header for rank in attempt.ranks]
    on_node = Counter(rank.data.node for rank in attempt.ranks)
    return {
        (JOB, "ranks"): headers[0].world_size,
        (JOB, "ranks on each node"): ", ".join(str(on_node[node]) for node in sorted(on_node)),
        (JOB, "hosts"): ", ".join(sorted({header.host for header in headers})),
        (ENVIRONMENT, "device"): ", ".join(sorted({header.device for header in headers})),
        (ENVIRONMENT, "timeline"): ", ".join(sorted({header.clock for header in headers})),
    }


def _words(name: str) -> str:
    return name.replace("_", " ")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(f"{count} x {each}" if count > 1 else each for each, count in Counter(map(str, value)).items())
    if isinstance(value, float):
        return f"{value:g}" if 0 < abs(value) < _SMALL else significant(value, 6)
    return f"{value:,}" if isinstance(value, int) else str(value)
