"""Says that the helper thread did not end with the script, without touching what that thread may still write."""

from __future__ import annotations

import threading
from contextlib import suppress

from ddlprof.base.errors import complain
from ddlprof.collect.job.rank_output import RankOutput
from ddlprof.model.unfinished import Unfinished
from ddlprof.writing.writer import rank_files

_WRITING_S = 2.0


def leave_word(place: RankOutput, said: Unfinished, quiet: bool) -> None:
    """Writes a file for the report, and a line for the user. Raises nothing, and takes no more than two seconds: the
    disk may be what the thread waits for.
    """

    def write() -> None:
        with suppress(OSError):
            if place.directory is not None:
                text, _ = rank_files(place.directory, place.header.attempt, place.rank)
                said.write(text.parent, place.rank)

    with suppress(RuntimeError):  # no thread can be started any more
        writing = threading.Thread(target=write, name="ddlprof", daemon=True)
        writing.start()
        writing.join(_WRITING_S)
    if not quiet:
        complain(f"rank {place.rank}: {said.message}; the training is not affected")
