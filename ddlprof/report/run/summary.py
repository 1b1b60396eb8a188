"""Makes the summary of a run: its report and its files, without a step."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from ddlprof.analysis.compare import step_error, usual_noise
from ddlprof.analysis.health import moved_of
from ddlprof.analysis.run import Attempt, headline_attempt
from ddlprof.analysis.trials import status_of, trials_of
from ddlprof.model.classes import TIMES
from ddlprof.model.manifest import Manifest
from ddlprof.model.run_summary import RunSummary, fingerprint
from ddlprof.report.run.data import RankLine, ReportData
from ddlprof.store import RankData, RunData

_HOUR_S = 3600.0
_OF_STEPS = TIMES[1:]  # all but the step itself


def summarise_run(run: RunData, analysed: Sequence[Attempt], report: ReportData) -> RunSummary:
    manifest, headline = run.manifest, headline_attempt(analysed)
    attempts = [[rank for rank in run.ranks if rank.attempt == n] for n in sorted({r.attempt for r in run.ranks})]
    walls = [_wall_s(ranks) for ranks in attempts]
    error = step_error(headline) if headline and headline.steady_steps else None
    host_type = manifest.host.get("instance_type") if manifest else None
    return RunSummary(
        job=manifest.name if manifest else "",
        job_id=_job_id(run),
        model=report.model,
        created_unix_ns=min((rank.header.origin_unix_ns for rank in run.ranks), default=_created(manifest)),
        ended_unix_ns=max((rank.last_seen_unix_ns for rank in run.ranks), default=_created(manifest)),
        status=status_of(attempts[-1]) if attempts else "torn",
        world_size=report.world_size,
        ranks=len(report.headline_ranks),
        hosts=report.nodes,
        device=report.device,
        instance_type=host_type if isinstance(host_type, str) else None,
        attempts=report.attempts,
        steps=report.steps,
        steady_steps=report.steady_steps,
        wall_s=sum(walls),
        rank_hours=sum(w * ranks[0].header.world_size for w, ranks in zip(walls, attempts, strict=True)) / _HOUR_S,
        machine_hours=sum(w * len({r.node for r in ranks}) for w, ranks in zip(walls, attempts, strict=True)) / _HOUR_S,
        step_s=report.step_s,
        step_error_s=sqrt(error.variance) / 1e9 if error else None,
        step_error_freedom=error.freedom if error else None,
        step_noise=usual_noise(headline.queued_share, report.context.cpu_percent) if headline else None,
        classes_s={name: report.times[name].mean_s for name in _OF_STEPS if name in report.times},
        class_rank_hours={name: _hours_in(name, report.ranks) for name in _OF_STEPS},
        verdict=report.verdict.name if report.verdict and report.step_s is not None else None,
        verdict_severity=report.verdict.severity if report.verdict and report.step_s is not None else None,
        findings=[finding.rule for finding in report.findings],
        strategy=report.strategy,
        precision=manifest.training.precision if manifest else None,
        global_batch=manifest.training.global_batch if manifest else None,
        versions=dict(manifest.versions) if manifest else {},
        arguments=fingerprint(manifest.argv[1:]) if manifest else "",
        file_bytes=run.file_bytes,
        trials=trials_of(analysed),
        host_names=sorted({rank.host for rank in report.headline_ranks}),
        late_host=_late_host(report),
        moved=[each.counter.name for each in moved_of(headline)] if headline else [],
    )


def _late_host(report: ReportData) -> str | None:
    late = report.late_rank
    return None if late is None else next((r.host for r in report.headline_ranks if r.rank == late.rank), None)


def _created(manifest: Manifest | None) -> int:
    return manifest.created_unix_ns if manifest else 0


def _job_id(run: RunData) -> str:
    if run.manifest:
        return run.manifest.job_id
    return next((rank.header.job_id for rank in run.ranks if rank.header.job_id), "")


def _wall_s(ranks: Sequence[RankData]) -> float:
    """The time of one attempt, from the start of its first rank to the last entry of any rank."""
    first = min(rank.header.origin_unix_ns for rank in ranks)
    return max(max(rank.last_seen_unix_ns for rank in ranks) - first, 0) / 1e9


def _hours_in(name: str, ranks: Sequence[RankLine]) -> float | None:
    known = [rank.steps * mean for rank in ranks if (mean := rank.means_s.get(name)) is not None]
    return sum(known) / _HOUR_S if known else None
