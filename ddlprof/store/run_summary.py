"""Summaries of runs, read from `summary.json`, or made from the manifest and one rank's file."""

from __future__ import annotations

from contextlib import suppress

from ddlprof.base.reading import NOT_NEGATIVE, ReadingError, decode, parse_json, settle, versioned_object
from ddlprof.model.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, decode_manifest
from ddlprof.model.rank_ends import end_in
from ddlprof.model.records import End, RankHeader
from ddlprof.model.run_summary import SUMMARY_SCHEMA, RunSummary, fingerprint
from ddlprof.store.fleet import FoundRun
from ddlprof.store.folder import Folder
from ddlprof.store.numbers import DAMAGE

MAX_SUMMARY_BYTES = 1 << 20
"""The most bytes of a summary, which usually has three thousand characters."""


def decode_summary(content: bytes | ReadingError) -> RunSummary:
    """The summary in a file. Raises ValueError if it is damaged or of a newer schema."""
    value = versioned_object(content, SUMMARY_SCHEMA, MAX_SUMMARY_BYTES)
    return decode(RunSummary, value, numbers_are=NOT_NEGATIVE)


_HEADER_BYTES = 64 << 10
_TAIL_BYTES = 4 << 10
_S_PER_HOUR = 3600.0


def peek(folder: Folder, run: FoundRun) -> RunSummary:
    """A summary without times of steps, from the manifest and both ends of a rank's file.

    Raises ValueError if neither the manifest nor a rank can be read.
    """
    manifest = problem = header = end = None
    if MANIFEST_NAME in run.files:
        try:
            manifest = decode_manifest(folder.piece(run.prefix + MANIFEST_NAME, 0, MAX_MANIFEST_BYTES + 1))
        except DAMAGE as error:
            problem = f"{MANIFEST_NAME}: {error}"
    texts = [name for name in run.files if name.endswith(".jsonl")]
    if texts:
        name = min(texts, key=lambda name: (-_numbers(name)[0], _numbers(name)[1]))  # the last attempt's first rank
        try:
            header = _header(folder.piece(run.prefix + name, 0, _HEADER_BYTES))
            end = _end(folder.piece(run.prefix + name, -_TAIL_BYTES, _TAIL_BYTES))
        except DAMAGE as error:
            problem = problem or f"{name}: {error}"
    if manifest is None and header is None:
        raise ValueError(problem or "nothing of it can be read")
    return _summary(run, manifest, header, end)


def _numbers(name: str) -> tuple[int, int]:
    attempt, _, rank = name.removesuffix(".jsonl").partition("/")
    return int(attempt.rpartition("-")[2]), int(rank.rpartition("-")[2])


def _header(begin: bytes | ReadingError) -> RankHeader:
    if isinstance(begin, ReadingError):
        raise begin
    return decode(RankHeader, parse_json(begin.partition(b"\n")[0]), numbers_are=NOT_NEGATIVE)


def _end(tail: bytes | ReadingError) -> End | None:
    """How the rank ended; None if its file does not tell."""
    if isinstance(tail, ReadingError):
        raise tail
    with suppress(*DAMAGE):
        end = end_in(tail)
        if end is not None:
            settle(end)
        return end
    return None


def _summary(run: FoundRun, manifest: Manifest | None, header: RankHeader | None, end: End | None) -> RunSummary:
    attempts = len({name.partition("/")[0] for name in run.files if "/" in name})
    last = f"attempt-{header.attempt}/" if header else ""
    world_size = header.world_size if header else manifest.world_size if manifest else 0
    first = manifest.origin_unix_ns if manifest else header.origin_unix_ns if header else 0
    ended = header.origin_unix_ns + max(end.time_ns, 0) if header and end else 0
    # Only the end of the last attempt is known here, and not the number of machines.
    wall_s = max(ended - first, 0) / 1e9 if ended and attempts == 1 else None
    training = manifest.training if manifest else None
    instance_type = manifest.host.get("instance_type") if manifest else None
    return RunSummary(
        job=manifest.name if manifest else "",
        job_id=manifest.job_id if manifest else header.job_id if header else "",
        model=manifest.model.name if manifest else None,
        created_unix_ns=first,
        ended_unix_ns=ended,
        status=end.status if end else "torn",
        world_size=world_size,
        ranks=sum(name.startswith(last) and name.endswith(".jsonl") for name in run.files) if last else 0,
        hosts=1 if world_size == 1 else None,
        device=header.device if header else "",
        instance_type=instance_type if isinstance(instance_type, str) else None,
        attempts=attempts,
        steps=None,
        steady_steps=None,
        wall_s=wall_s,
        rank_hours=None if wall_s is None else wall_s * world_size / _S_PER_HOUR,
        machine_hours=None if wall_s is None or world_size != 1 else wall_s / _S_PER_HOUR,
        step_s=None,
        step_error_s=None,
        step_error_freedom=None,
        step_noise=None,
        classes_s={},
        class_rank_hours={},
        verdict=None,
        verdict_severity=None,
        findings=[],
        strategy=training.strategy if training else None,
        precision=training.precision if training else None,
        global_batch=training.global_batch if training else None,
        versions=dict(manifest.versions) if manifest else {},
        arguments=fingerprint(manifest.argv[1:]) if manifest else "",
        file_bytes=run.rank_bytes,
    )
