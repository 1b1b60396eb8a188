"""The summaries of all runs of a search: those that were saved, and what stands in for those that were not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ddlprof.analysis.run import analyse
from ddlprof.base.errors import DdlprofError
from ddlprof.base.text import without_credentials
from ddlprof.model.run_summary import SUMMARY_NAME, RunSummary
from ddlprof.report.run.data import build_report
from ddlprof.report.run.summary import summarise_run
from ddlprof.store import load_run
from ddlprof.store.fleet import FoundRun, Search, pieces
from ddlprof.store.numbers import DAMAGE
from ddlprof.store.run_summary import MAX_SUMMARY_BYTES, decode_summary, peek

MOST_LOADED_BYTES = 64 << 20
"""A larger run is not loaded for a list: it takes seconds."""
SAVED, OUTDATED, LOADED, GLANCE = "saved", "outdated", "loaded", "glance"

Progress = Callable[[int, int], None]
"""`progress(runs done, runs in all)`."""


@dataclass(frozen=True)
class Entry:
    """One run of the list."""

    path: str
    summary: RunSummary
    source: str
    """Where the summary is from. saved: its file; outdated: the same, and the run has grown since; loaded: made of the
    steps now; glance: the manifest and the end of one rank, without times of steps."""


@dataclass(frozen=True)
class Entries:
    """All runs that can be told apart, and what was left out, a line each."""

    entries: list[Entry]
    left_out: list[str] = field(default_factory=list)


def entries_of(search: Search, load: int, now_unix_ns: int, progress: Progress | None = None) -> Entries:
    """The summaries of the runs; up to `load` of those without one that is up to date are loaded for it."""
    found: list[Entry] = []
    broken: list[str] = []
    saved = [run for run in search.runs if SUMMARY_NAME in run.files]
    summaries = pieces(search, [(run, SUMMARY_NAME) for run in saved], MAX_SUMMARY_BYTES + 1)
    by_path = {run.path: content for run, content in zip(saved, summaries, strict=True)}
    loaded = 0
    for number, run in enumerate(search.runs, 1):
        entry = None
        if content := by_path.get(run.path):
            entry = _saved(run, content)
        wanted = entry is None or entry.source == OUTDATED
        if wanted and loaded < load and 0 < run.rank_bytes <= MOST_LOADED_BYTES:
            loaded += 1
            entry = _loaded(run, now_unix_ns) or entry
        try:
            found.append(entry or Entry(run.path, peek(search.folder, run), GLANCE))
        except (DdlprofError, *DAMAGE) as error:
            broken.append(f"{without_credentials(run.path)}: {error}")
        if progress:
            progress(number, len(search.runs))
    kept = _once(found)
    said = [*search.left_out]
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        said.append(f"not read: {broken[0]}{more}")
    if len(found) > len(kept):
        said.append(f"directories with copies or other ranks of a run in the list: {len(found) - len(kept)}")
    return Entries(kept, said)


def _saved(run: FoundRun, content: bytes | ValueError) -> Entry | None:
    try:
        summary = decode_summary(content)  # type: ignore[arg-type]
    except DAMAGE:
        return None
    return Entry(run.path, summary, SAVED if summary.file_bytes == run.rank_bytes else OUTDATED)


def _loaded(run: FoundRun, now_unix_ns: int) -> Entry | None:
    """The summary made of the run's steps; None where it cannot be loaded."""
    try:
        data = load_run(run.path)
        attempts = analyse(data)
        summary = summarise_run(data, attempts, build_report(data, attempts, now_unix_ns))
    except (DdlprofError, *DAMAGE):
        return None
    return Entry(run.path, summary, LOADED)


def _once(entries: list[Entry]) -> list[Entry]:
    """Of directories with the same job id the one that tells most: hours must not count twice."""
    best: dict[str, Entry] = {}
    for entry in entries:
        key = entry.summary.job_id or f"\0{entry.path}"
        if key not in best or _tells(entry) > _tells(best[key]):
            best[key] = entry
    return [_named(entry) for entry in best.values()]


def _tells(entry: Entry) -> tuple[bool, int, float]:
    summary = entry.summary
    return summary.step_s is not None, summary.ranks, summary.wall_s or 0.0


def _named(entry: Entry) -> Entry:
    """The entry of a run without a manifest goes by the name of its directory, as in its report."""
    if entry.summary.job:
        return entry
    return replace(entry, summary=replace(entry.summary, job=entry.path.rstrip("/").rpartition("/")[2]))
