"""Queries all regions at the same time; the calls of one region follow one another.

Answers are neither checked nor written here.

Every call ends: when it is answered, when nothing more arrives, or when the refresh runs out of time. A thread that
still hangs in such a call is abandoned; it does not keep the process alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar

from ddlprof.instance_catalog.refresh.providers.base import Allowance, CallFailed, Provider, TypeAnswer
from ddlprof.instance_catalog.refresh.report import KINDS

PAGE_S = 30.0
"""The time for one page of an answer, all tries included. Real pages take a second or two."""

Answer = TypeVar("Answer")


class Deadline:
    """The end of the time that a refresh may take."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._end = clock() + seconds

    def left_s(self) -> float:
        """The seconds that are left; 0 once the time is over."""
        return max(0.0, self._end - self._clock())


@dataclass
class RegionAnswers:
    """The answers of one region; None if the call failed."""

    region: str
    types: list[TypeAnswer] | None = None
    offerings: set[str] | None = None
    on_demand: dict[str, float] | None = None
    """USD per hour by type, of all types that have a price in the region."""
    spot: dict[str, float] | None = None
    errors: dict[str, str] = field(default_factory=dict)
    """The failures by kind, one line each."""


class CallProgress:
    """Counts calls over all threads."""

    def __init__(self, on_progress: Callable[[int, int], None], total: int) -> None:
        self._on_progress = on_progress
        self._total = total
        self._done = 0
        self._lock = threading.Lock()

    def advance(self) -> None:
        """Notes that one more call has ended."""
        with self._lock:
            self._done += 1
            self._on_progress(self._done, self._total)


def fetch(
    provider: Provider,
    regions: Sequence[str],
    names: Sequence[str],
    known_types: Iterable[str],
    now: datetime,
    on_progress: Callable[[int, int], None],
    deadline: Deadline,
) -> list[RegionAnswers]:
    """The answers of each region, in their order.

    `names` may contain `*` and `?`. `known_types`: the types whose spot prices are asked for if a region does not tell
    which types it has.
    """
    progress = CallProgress(on_progress, len(regions) * len(KINDS))
    known = tuple(known_types)
    found = [in_thread(partial(_ask, provider, region, names, known, now, progress, deadline)) for region in regions]
    return [future.result() for future in found]


def bounded(work: Callable[[], Answer], deadline: Deadline, allowance: Allowance | None = None) -> Answer:
    """The result of `work`, run in another thread. Raises CallFailed if it takes too long or makes no progress."""
    allowance = allowance or Allowance()
    future = in_thread(work)
    while True:
        waited = allowance.last_page_s
        patience_s = max(0.0, waited + PAGE_S - time.monotonic())
        left_s = deadline.left_s()
        try:
            return future.result(min(patience_s, left_s))
        except NotYet:
            if future.done():  # at the last moment, or the error is that of the work
                return future.result()
            if left_s <= patience_s:
                raise CallFailed(f"{_over(deadline)}, and not all was answered") from None
            if allowance.last_page_s == waited:
                message = f"no complete answer within {PAGE_S:g} s: check the network, proxy and endpoint"
                raise CallFailed(message, lasting=True) from None


def _over(deadline: Deadline) -> str:
    return f"the {deadline.seconds:g} s that the refresh may take (--timeout) are over"


def in_thread(work: Callable[[], Answer]) -> Future[Answer]:
    """Runs `work` in its own thread. Python would wait for threads of a ThreadPoolExecutor at the end."""
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _ask(
    provider: Provider,
    region: str,
    names: Sequence[str],
    known: Sequence[str],
    now: datetime,
    progress: CallProgress,
    deadline: Deadline,
) -> RegionAnswers:
    answers = RegionAnswers(region)
    calls = _Calls(provider, answers.errors, progress, deadline)
    answers.types = calls.make("types", lambda allowance: provider.types(region, names, allowance))
    answers.offerings = calls.make("offerings", lambda allowance: provider.offerings(region, allowance))
    answers.on_demand = calls.make("on_demand", lambda allowance: provider.on_demand(region, allowance))
    types = known if answers.types is None else [answer.instance_type for answer in answers.types]
    answers.spot = calls.make("spot", lambda allowance: provider.spot(region, types, now, allowance))
    return answers


class _Calls:
    """Makes calls and notes failures. An endpoint that cannot answer anything is asked only once."""

    def __init__(self, provider: Provider, errors: dict[str, str], progress: CallProgress, deadline: Deadline) -> None:
        self._endpoints = provider.endpoints
        self._errors = errors
        self._progress = progress
        self._deadline = deadline
        self._dead: dict[str, str] = {}

    def make(self, kind: str, call: Callable[[Allowance], Answer]) -> Answer | None:
        endpoint = self._endpoints[kind]
        allowance = Allowance()
        try:
            if endpoint in self._dead:
                raise CallFailed(self._dead[endpoint])
            if not self._deadline.left_s():
                raise CallFailed(f"{_over(self._deadline)}: not asked")
            return bounded(partial(call, allowance), self._deadline, allowance)
        except CallFailed as failure:
            self._errors[kind] = str(failure)
            if failure.lasting:
                self._dead[endpoint] = str(failure)
            return None
        finally:
            self._progress.advance()
