"""The result of `ddlprof characterize`: experiments, stalls by difference and directly, remarks. None: not measured.

`build` is the only place that turns runs into a `Comparison`; `as_table` only shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddlprof.analysis.run import Attempt, analyse, headline_attempt
from ddlprof.base.errors import UserError
from ddlprof.base.text import shell_word, text_of
from ddlprof.base.units import NOT_KNOWN, Scale, gib, listed, percent, scale_for, tenths_of_percent
from ddlprof.extensions.characterize.differential import (
    PAIRS,
    ExperimentTimes,
    Stall,
    measure,
    reference_step_s,
    stalls,
)
from ddlprof.extensions.characterize.experiment import ALL_REPLAYED, COLD, HOOKS, ONE_REPLAYED, WARM
from ddlprof.extensions.characterize.model import Reads, load_reads
from ddlprof.model.classes import TABLE
from ddlprof.model.records import SCHEMA_VERSION
from ddlprof.report.text import aligned
from ddlprof.store import load_run

LARGE_SHARE = 0.05
"""A reason why a difference disagrees with the direct figure is remarked on from this share of the step."""
COLD_SHARE = 0.9
"""The share of the bytes read that must come from storage for a run to be called cold."""
_PARTS = ("data_fetch", "data_prep", "straggler")
"""The parts of classes that get a column: the other parts are the same in all experiments."""


@dataclass(frozen=True)
class ExperimentOutcome:
    """The repeats of one experiment, read and analysed; `reads` is filled where the reading of files was watched."""

    directories: list[Path]
    attempts: list[Attempt]
    reads: list[Reads]
    batch_per_rank: int | None = None

    @property
    def ranks(self) -> int:
        return self.attempts[0].ranks[0].data.header.world_size


@dataclass(frozen=True)
class ExperimentLine:
    """One experiment. Times are medians over its repeats, each a mean over steady steps and ranks."""

    name: str
    runs: list[str]
    ranks: int
    steady_steps: int
    """The steady steps of the repeat with the fewest."""
    step_s: float
    step_low_s: float
    step_high_s: float
    times_s: dict[str, float | None]
    files: int | None
    """The number of files that the data loaders read; the next fields are about these files, too."""
    mapped_files: list[str]
    asked_bytes: int | None
    disk_bytes: int | None


@dataclass(frozen=True)
class Comparison:
    """The whole result of the command."""

    name: str
    directory: str
    reference_step_s: float
    """The mean step of the experiment that is nearest to the user's training."""
    experiments: list[ExperimentLine]
    stalls: list[Stall]
    remarks: list[str]
    schema: int = field(default=SCHEMA_VERSION)


def load_outcome(directories: list[Path]) -> ExperimentOutcome:
    """Reads and analyses the repeats. Raises UserError if one has no step, or belongs to another experiment."""
    attempts = []
    batch = None
    for directory in directories:
        run = load_run(directory)
        attempt = headline_attempt(analyse(run))
        if attempt is None or not attempt.steady_steps:
            raise UserError(
                f"no step was measured in {directory}: see ddlprof report {shell_word(str(directory), path=True)}"
            )
        for note in (note for rank in attempt.ranks for note in rank.data.notes):
            if note.source == HOOKS:
                raise UserError(f"{directory} is not the experiment that it should be: {note.message}")
        attempts.append(attempt)
        batch = run.manifest.training.batch_per_rank if run.manifest else None
    reads = [reads for directory in directories if (reads := load_reads(directory))]
    return ExperimentOutcome(directories, attempts, reads, batch)


def build(name: str, directory: Path, outcomes: Mapping[str, ExperimentOutcome]) -> Comparison:
    """Compares the experiments that were made, given by name."""
    measured = {each: measure([a.summary for a in outcome.attempts]) for each, outcome in outcomes.items()}
    step_s = reference_step_s(measured)
    found = stalls(measured)
    return Comparison(
        name=name,
        directory=str(directory),
        reference_step_s=step_s,
        experiments=[_experiment(each, outcome, measured[each]) for each, outcome in outcomes.items()],
        stalls=found,
        remarks=[
            *_negative(found),
            *_not_comparable(outcomes),
            *_reasons(measured, step_s),
            *(remark for each in (COLD, WARM) if each in outcomes for remark in _cache(each, outcomes[each])),
        ],
    )


def _experiment(name: str, outcome: ExperimentOutcome, measured: ExperimentTimes) -> ExperimentLine:
    reads = outcome.reads
    return ExperimentLine(
        name=name,
        runs=[str(directory) for directory in outcome.directories],
        ranks=outcome.ranks,
        steady_steps=min(attempt.steady_steps for attempt in outcome.attempts),
        step_s=measured.step_s,
        step_low_s=min(measured.steps_s),
        step_high_s=max(measured.steps_s),
        times_s=measured.times_s,
        files=len(frozenset().union(*(r.files for r in reads))) if reads else None,
        mapped_files=sorted(frozenset().union(*(r.mapped for r in reads))),
        asked_bytes=sum(r.asked_bytes for r in reads) if reads else None,
        disk_bytes=sum(r.disk_bytes for r in reads) if reads else None,
    )


def _negative(found: list[Stall]) -> Iterator[str]:
    names = [stall.name for stall in found if stall.stall_s is not None and stall.stall_s < 0]
    if names:
        verb = "is" if len(names) == 1 else "are"
        yield f"{listed(names)} by difference {verb} negative: noise between the runs, or overlap; try --repeat 5"


def _not_comparable(outcomes: Mapping[str, ExperimentOutcome]) -> Iterator[str]:
    one, every = outcomes.get(ONE_REPLAYED), outcomes.get(ALL_REPLAYED)
    if one and every and one.batch_per_rank != every.batch_per_rank:
        yield (
            f"one rank alone trains batches of {one.batch_per_rank}, each of {every.ranks} ranks "
            f"{every.batch_per_rank}: interconnect by difference means nothing"
        )
    if every and every.attempts[0].summary.mean_ns("data") is None:
        yield "the script uses no DataLoader: its input could not be replayed, and prep by difference means nothing"


def _reasons(measured: Mapping[str, ExperimentTimes], step_s: float) -> Iterator[str]:
    """The reasons why a difference is not the direct figure, each given where its part is large."""

    def more(whole: str, part: str, name: str) -> float:
        if whole not in measured or part not in measured:
            return 0.0
        longer, shorter = measured[whole].times_s[name], measured[part].times_s[name]
        return 0.0 if longer is None or shorter is None else longer - shorter

    scale = scale_for(step_s)
    for stall, (whole, part) in (pair for pair in PAIRS.items() if pair[0] != "data"):
        computing = more(whole, part, "compute")
        if abs(computing) >= LARGE_SHARE * step_s:
            longer = "longer" if computing > 0 else "shorter"
            yield (
                f"a step computes {scale.time(abs(computing))} {longer} in {whole} than in {part} (shared cores or "
                f"memory): by difference that is {stall}, directly it is compute"
            )
    waiting = max(more(each, ALL_REPLAYED, "straggler") for each in (WARM, COLD))
    if waiting >= LARGE_SHARE * step_s:
        yield (
            f"with real input the ranks wait {scale.time(waiting)} a step longer for a later rank: by difference that "
            "is prep or fetch, directly it is straggler, and only the late rank has data"
        )
    blocked = measured[WARM].times_s["data_fetch"] if WARM in measured else None
    if blocked is not None and blocked >= LARGE_SHARE * step_s:
        yield (
            f"with a warm cache the loader is still blocked for {scale.time(blocked)} a step (remote storage, a lock, "
            "a sleep): by difference that is prep, in a report of ddlprof it is data_fetch"
        )
    busy = more(COLD, WARM, "data_prep")
    if busy >= LARGE_SHARE * step_s:
        yield (
            f"reading from storage takes {scale.time(busy)} a step of processor time, or of waiting for a processor: "
            "by difference that is fetch, directly it is data_prep"
        )


def _cache(name: str, outcome: ExperimentOutcome) -> Iterator[str]:
    """Remarks where the page cache was not as the experiment needs it."""
    if len(outcome.reads) < len(outcome.directories):
        yield f"{name}: what the loaders read is not known, so nobody can say how {name} the cache was"
        return
    files = frozenset[str]().union(*(reads.files for reads in outcome.reads))
    mapped = frozenset[str]().union(*(reads.mapped for reads in outcome.reads))
    asked = sum(reads.asked_bytes for reads in outcome.reads)
    disk = sum(reads.disk_bytes for reads in outcome.reads)
    if mapped and name == COLD:
        yield (
            f"{COLD}: {listed(sorted(mapped))} mapped into memory: pages in use stay in the cache, so the fetch stall "
            f"is a lower bound ({gib(disk)} came from storage)"
        )
    if not files and name == COLD:
        yield f"{COLD}: the loaders opened no file that ddlprof could see: there was nothing to make cold"
    elif files - mapped and name == COLD and disk < COLD_SHARE * asked:
        yield (
            f"{COLD}: only {percent(disk / asked)} of the {gib(asked)} read came from storage: the rest was read "
            "twice, is on a file system without storage of its own, or was opened out of Python's sight"
        )
    elif files - mapped and name == WARM and disk > (1 - COLD_SHARE) * asked:
        yield (
            f"{WARM}: {percent(disk / asked)} of the {gib(asked)} read came from storage: the files do not fit into "
            "memory, or are not the same ones as in the run before (seed the shuffle)"
        )


def as_table(comparison: Comparison) -> str:
    """The text with the stalls, the runs that they come from, and remarks."""
    scale = scale_for(comparison.reference_step_s)
    lines = [f"ddlprof  characterize {comparison.name} · step {scale.time(comparison.reference_step_s)}", ""]
    lines += aligned(list(_stall_rows(comparison.stalls, scale)))
    lines += ["", *aligned(list(_experiment_rows(comparison.experiments, scale))), ""]
    lines += [f"Remark   {remark}" for remark in comparison.remarks]
    lines.append(f"Files    {comparison.directory}")
    return text_of(lines)


def _stall_rows(stalls: Sequence[Stall], scale: Scale) -> Iterator[list[str]]:
    unit = scale.unit
    yield ["STALL", f"BY DIFFERENCE {unit}", f"DIRECT {unit}", "DISAGREEMENT", "DIFFERENCE OF", "DIRECT IS"]
    for stall in stalls:
        spread = ""
        if stall.stall_low_s is not None and stall.stall_high_s is not None:
            spread = f" [{scale.number(stall.stall_low_s)} to {scale.number(stall.stall_high_s)}]"
        yield [
            stall.name,
            _with_share(stall.stall_s, stall.stall_share, scale) + spread,
            _with_share(stall.direct_s, stall.direct_share, scale),
            NOT_KNOWN if stall.disagreement_share is None else tenths_of_percent(stall.disagreement_share),
            f"{stall.whole} - {stall.part}",
            stall.direct_is,
        ]


def _experiment_rows(experiments: Sequence[ExperimentLine], scale: Scale) -> Iterator[list[str]]:
    yield ["EXPERIMENT", "RANKS", "STEPS", f"STEP {scale.unit}", *(name.upper() for name in _times())]
    for line in experiments:
        step = scale.number(line.step_s)
        if len(line.runs) > 1:
            step += f" [{scale.number(line.step_low_s)} to {scale.number(line.step_high_s)}]"
        times = [line.times_s[name] for name in _times()]
        numbers = [NOT_KNOWN if time is None else scale.number(time) for time in times]
        yield [line.name, str(line.ranks), str(line.steady_steps), step, *numbers]


def _times() -> Iterator[str]:
    """The columns: a class comes after its recorded parts, and before those that come from comparing ranks."""
    for each in TABLE:
        shown = [part for part in each.parts if part.name in _PARTS]
        yield from (part.name for part in shown if part.is_recorded)
        yield each.name
        yield from (part.name for part in shown if not part.is_recorded)


def _with_share(seconds: float | None, share: float | None, scale: Scale) -> str:
    if seconds is None or share is None:
        return NOT_KNOWN
    return f"{scale.number(seconds)} ({tenths_of_percent(share)})"
