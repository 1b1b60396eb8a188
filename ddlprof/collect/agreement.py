"""What the ranks of a job agree on once their process group is there: directory, job and attempt.

Through the job's own store. Torch's launcher may keep one store for all attempts of a job, and its restart counts
differ from machine to machine, so what lies in the store may be of an attempt that is over. Nothing is believed that
does not answer a number drawn in this attempt: rank 0 calls with one, each rank answers with its own, and rank 0 sends
the agreement to those. Nobody waits longer than `PATIENCE_S`.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

PATIENCE_S = 30.0
_CALL = "call"
_FIRST_LOOKS_S = (0.1, 0.2, 0.5)  # then every second
_GLANCE_S = 0.01


@dataclass(frozen=True)
class Agreement:
    """What rank 0 tells the others."""

    directory: str
    job_id: str
    attempt: int
    token: str = ""
    """Different for each attempt: keys that begin with it are of this one."""
    complete: bool = False
    """Every rank takes part."""

    def store(self, dist: Any) -> Any:
        """A store for the ranks of this attempt alone. Raises RuntimeError if not all of them take part."""
        if not self.complete:
            raise RuntimeError("not every rank is run by ddlprof")
        return dist.PrefixStore(self.token, shared_store(dist))


def shared_store(dist: Any) -> Any:
    """The store that all ranks share, perhaps with those of earlier attempts."""
    return dist.PrefixStore("ddlprof", dist.distributed_c10d._get_default_store())


def lead(store: Any, world_size: int, proposal: Agreement, patience_s: float = PATIENCE_S) -> Agreement:
    """Rank 0's part: the attempt is the first that no rank has files of. Raises the errors of the store."""
    token = uuid.uuid4().hex
    store.set(_CALL, token)
    keys = [f"{token}/{rank}" for rank in range(1, world_size)]
    complete = _there(store, keys, patience_s)
    answers = [json.loads(store.get(key)) for key in keys if complete or _there(store, [key], _GLANCE_S)]
    attempt = max([proposal.attempt, *(free_attempt for _, free_attempt in answers)])
    agreement = replace(proposal, attempt=attempt, token=token, complete=complete)
    for number, _ in answers:
        store.set(number, json.dumps(asdict(agreement)))
    return agreement


def follow(store: Any, rank: int, free_attempt: int, patience_s: float = PATIENCE_S) -> Agreement | None:
    """Another rank's part; `free_attempt` is the first that its directory has no files of.

    None if rank 0 does not call in time. Raises the errors of the store.
    """
    number = uuid.uuid4().hex
    if not _there(store, [_CALL], patience_s):
        return None
    for look_s in (*_FIRST_LOOKS_S, *[1.0] * int(patience_s)):
        call = store.get(_CALL).decode()  # again and again: the first may be of an earlier attempt
        store.set(f"{call}/{rank}", json.dumps([number, free_attempt]))
        if _there(store, [number], look_s):
            return Agreement(**json.loads(store.get(number)))
    return None


def _there(store: Any, keys: list[str], seconds: float) -> bool:
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except Exception:  # which one depends on the kind of store and the version of torch
        return False
    return True
