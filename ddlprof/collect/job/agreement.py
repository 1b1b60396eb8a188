"""What the ranks of a job agree on once there is a process group: directory, job and attempt.

They use the job's own store. Torch's launcher may keep one store for all attempts of a job, and its counts of restarts
differ between machines, so the store may still contain values of an earlier attempt. Values are therefore believed only
if they answer a random number of this attempt: rank 0 publishes one, each rank answers with its own, and rank 0 sends
the agreement to these ranks.

Ranks that run without ddlprof never answer. The training waits a second or two at most, as creating the group has just
brought all ranks together. Slower ranks are answered later, by the helper thread.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

from ddlprof.base.real_time import time
from ddlprof.torch_private.collectives import default_store

LEAD_S = 1.0
"""Seconds for which rank 0 waits for answers, and the others for its call."""
FOLLOW_S = 1.0
"""Seconds for which the other ranks wait longer than rank 0."""
LATE_S = 60.0
"""Seconds for which the helper thread looks for ranks that came later."""
_CALL = "call"
_FIRST_LOOKS_S = (0.1, 0.2, 0.5)  # then every second
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.1


@dataclass(frozen=True)
class Agreement:
    """What rank 0 tells the other ranks."""

    directory: str
    job_id: str
    attempt: int
    token: str = ""
    """A random word of this attempt, which its keys in the store begin with."""
    complete: bool = False
    """Whether every rank answered before the training began."""

    def store(self, dist: Any) -> Any:
        """A store for the ranks of this attempt only. Raises RuntimeError if not all of them take part."""
        if not self.complete:
            raise RuntimeError("not every rank answered in time")
        return dist.PrefixStore(self.token, shared_store(dist))


def shared_store(dist: Any) -> Any:
    """The store that all ranks share, maybe also with ranks of earlier attempts."""
    return dist.PrefixStore("ddlprof", default_store(dist))


class Lead:
    """Rank 0's part. It chooses the first attempt of which no rank has files. Raises the errors of the store."""

    def __init__(self, store: Any, world_size: int, proposal: Agreement) -> None:
        self._store = store
        self._agreement = replace(proposal, token=uuid.uuid4().hex)
        self._silent = [f"{self._agreement.token}/{rank}" for rank in range(1, world_size)]
        store.set(_CALL, self._agreement.token)

    @property
    def silent(self) -> int:
        """The number of ranks that have not answered so far."""
        return len(self._silent)

    def agree(self, patience_s: float = LEAD_S) -> Agreement:
        """Waits for the answers, and sends the agreement to the ranks that answered."""
        complete = _there(self._store, self._silent, patience_s)
        answers = self._answers()
        complete = complete and not any(late for _, _, late in answers)
        attempt = max([self._agreement.attempt, *(free_attempt for _, free_attempt, _ in answers)])
        self._agreement = replace(self._agreement, attempt=attempt, complete=complete)
        self._tell(answers)
        return self._agreement

    def poll(self) -> None:
        """Sends the agreement to ranks that answered later; does not wait."""
        self._tell(self._answers())

    def _answers(self) -> list[tuple[str, int, bool]]:
        there = [key for key in self._silent if _is_there(self._store, [key])]
        self._silent = [key for key in self._silent if key not in there]
        return [json.loads(self._store.get(key)) for key in there]

    def _tell(self, answers: list[tuple[str, int, bool]]) -> None:
        for number, *_ in answers:
            self._store.set(number, json.dumps(asdict(self._agreement)))


class Follow:
    """The part of another rank. `free_attempt`: the first attempt of which this rank's directory has no files.

    Raises the errors of the store.
    """

    def __init__(self, store: Any, rank: int, free_attempt: int) -> None:
        self._store = store
        self._rank = rank
        self._number = uuid.uuid4().hex
        self._free_attempt = free_attempt

    def agree(self, patience_s: float = LEAD_S, further_s: float = FOLLOW_S) -> Agreement | None:
        """Waits for rank 0's agreement. None if rank 0 is late; the training then goes on without it."""
        if not _there(self._store, [_CALL], patience_s):
            return None
        left_s = patience_s + further_s
        for look_s in (*_FIRST_LOOKS_S, *[1.0] * int(left_s)):
            self._reply()
            if _there(self._store, [self._number], min(look_s, left_s)):
                return self._told()
            left_s -= look_s
            if left_s <= 0:
                break
        self._reply(late=True)
        return None

    def poll(self) -> Agreement | None:
        """Looks for the agreement again; does not wait."""
        if not _is_there(self._store, [_CALL]):
            return None
        self._reply(late=True)
        return self._told() if _is_there(self._store, [self._number]) else None

    def _reply(self, late: bool = False) -> None:
        """Answers rank 0. `late`: this rank takes no part in what all ranks do together before the training."""
        call = self._store.get(_CALL).decode()  # read again each time: the first may be of an earlier attempt
        self._store.set(f"{call}/{self._rank}", json.dumps([self._number, self._free_attempt, late]))

    def _told(self) -> Agreement:
        return Agreement(**json.loads(self._store.get(self._number)))


def _there(store: Any, keys: list[str], seconds: float) -> bool:
    """Whether all keys exist within so many seconds. Polls, as torch prints an error when its `wait` times out."""
    deadline, pause_s = time.perf_counter() + seconds, _FIRST_PAUSE_S
    while not _is_there(store, keys):
        if time.perf_counter() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return True


def _is_there(store: Any, keys: list[str]) -> bool:
    if hasattr(store, "check"):
        return bool(store.check(keys))
    try:
        store.wait(keys, timedelta(milliseconds=1))
    except Exception:  # the type of the error depends on torch's version and the kind of store
        return False
    return True
