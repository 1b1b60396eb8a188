"""All regions asked side by side, each with its calls one after the other. Nothing is judged or written here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from instance_catalog.refresh.providers import aws
from instance_catalog.refresh.providers.aws_answers import TypeAnswer
from instance_catalog.refresh.providers.aws_failures import CallFailed, explained
from instance_catalog.refresh.report import KINDS

Answer = TypeVar("Answer")


@dataclass
class RegionAnswers:
    """What one region answered; None where the call failed."""

    region: str
    types: list[TypeAnswer] | None = None
    offerings: set[str] | None = None
    on_demand: dict[str, float] | None = None
    """USD per hour by type, of all types that have a price in the region."""
    spot: dict[str, float] | None = None
    errors: dict[str, str] = field(default_factory=dict)
    """By kind, one line each."""


class Progress:
    """Counts calls over all threads."""

    def __init__(self, on_progress: Callable[[int, int], None], total: int) -> None:
        self._on_progress = on_progress
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def advance(self) -> None:
        """One more call has ended."""
        with self._lock:
            self._done += 1
            self._on_progress(self._done, self._total)


def fetch(
    regions: Sequence[str],
    clients: aws.Clients,
    names: Sequence[str],
    known_types: Iterable[str],
    now: datetime,
    on_progress: Callable[[int, int], None],
) -> list[RegionAnswers]:
    """One entry a region, in their order. `names` may hold `*` and `?`; `known_types` have spot prices asked for where
    a region does not say which types it has."""
    progress = Progress(on_progress, len(regions) * len(KINDS))
    known = tuple(known_types)
    found = [_in_thread(partial(_ask, region, clients, names, known, now, progress)) for region in regions]
    return [future.result() for future in found]


def _in_thread(work: Callable[[], Answer]) -> Future[Answer]:
    """Not a ThreadPoolExecutor: after Ctrl-C, Python would wait for its threads, and they for AWS."""
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _ask(
    region: str, clients: aws.Clients, names: Sequence[str], known: Sequence[str], now: datetime, progress: Progress
) -> RegionAnswers:
    answers = RegionAnswers(region)
    calls = _Calls(clients, answers.errors, progress)
    answers.types = calls.make("types", "ec2", region, lambda ec2: aws.instance_types(ec2, names))
    answers.offerings = calls.make("offerings", "ec2", region, aws.offerings)
    answers.on_demand = calls.make(
        "on_demand", "pricing", aws.pricing_region(region), lambda pricing: aws.on_demand(pricing, region)
    )
    types = known if answers.types is None else [answer.instance_type for answer in answers.types]
    answers.spot = calls.make("spot", "ec2", region, lambda ec2: aws.spot(ec2, types, now))
    return answers


class _Calls:
    """Makes calls and notes how they failed; an endpoint that cannot answer anything is asked once only."""

    def __init__(self, clients: aws.Clients, errors: dict[str, str], progress: Progress) -> None:
        self._clients = clients
        self._errors = errors
        self._progress = progress
        self._dead: dict[str, str] = {}

    def make(self, kind: str, service: str, region: str, call: Callable[[Any], Answer]) -> Answer | None:
        if service in self._dead:
            self._errors[kind] = self._dead[service]
            self._progress.advance()
            return None
        try:
            with explained(f"a client of {service}"):
                client = self._clients(service, region)
            return call(client)
        except CallFailed as failure:
            self._errors[kind] = str(failure)
            if failure.lasting:
                self._dead[service] = str(failure)
            return None
        finally:
            self._progress.advance()
