"""One rank's part in finding out why a job hangs. Fails open: what fails here is noted, and the training goes on."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ddlprof.base.errors import complain
from ddlprof.collect.hang.last_words import LastWords
from ddlprof.collect.hang.state import StateMaker, how_it_failed
from ddlprof.collect.hang.watch import HangWatch
from ddlprof.model.hang import LAST_WORDS_SUFFIX
from ddlprof.model.options import Options

if TYPE_CHECKING:
    from ddlprof.collect.helper import Helper
    from ddlprof.collect.job.rank_output import RankOutput
    from ddlprof.collect.seen_groups import SeenGroups


class Hangs:
    """Watches this rank, and writes what it does: when it stands still, when it is asked, and when an error ends it."""

    def __init__(
        self,
        options: Options,
        rank_output: RankOutput,
        helper: Helper,
        groups: Callable[[], tuple[SeenGroups | None, dict[str, str]]],
    ) -> None:
        self._states = states = StateMaker(rank_output, helper, groups)
        self.watch = HangWatch(
            helper.recorder, options.hang_after, lambda: states.folder, states.state, states.begin_look
        )
        self.error: BaseException | None = None
        """The exception that ended the script."""
        self._helper = helper
        self._rank_output = rank_output
        self._quiet = options.quiet
        self._failed = self._told = self._ended = False
        self._last_words: LastWords | None = None

    def step_ended(self, step_ns: int) -> None:
        """Called after each step, once the rank's files are open if they can be."""
        self.watch.step_ended(step_ns)
        if self.watch.steps == 1 and not self._failed:
            with suppress(OSError):  # `poll` tries again, and says why
                self._prepare_last_words()

    def poll(self) -> None:
        """Called by the helper thread about once a second."""
        if self._failed:
            return
        try:
            self._prepare_last_words()
            self.watch.poll()
        except Exception as error:  # fail open
            self._failed = True
            self._helper.writer.note("hang", f"not watched: {type(error).__name__}: {error}")
        if self.watch.failure and not self._told:
            self._told = True
            self._helper.writer.note("hang", f"a standstill could not be written: {self.watch.failure}")
            if not self._quiet:
                complain(f"rank {self._rank_output.rank} stands still and cannot say so: {self.watch.failure}")

    def _prepare_last_words(self) -> None:
        """Has Python write the stacks to a file if the process is aborted, as by a collective of another size.

        A script that asks for such stacks itself gets them where it wants them.
        """
        folder = self._states.folder
        if folder is None or self._last_words is not None or self._rank_output.world_size < 2 or not self.watch.steps:
            return
        if self._ended:  # the helper thread goes on for a while, and its file is just being removed
            return
        if not faulthandler.is_enabled():
            self._last_words = LastWords(folder / f"rank-{self._rank_output.rank}{LAST_WORDS_SUFFIX}")

    def forked(self) -> None:
        """Called in a forked child process, whose stack is not that of the rank."""
        if self._last_words is not None:
            self._last_words.forked()

    def ended(self, status: str) -> None:
        """Called when the script has ended: in a job of several ranks, an error may be why others wait."""
        self._ended = True
        last_words, self._last_words = self._last_words, None
        if last_words is not None:
            with suppress(OSError):
                last_words.remove()
        error, self.error = self.error, None
        if status != "exception" or error is None or self._rank_output.world_size < 2 or self._failed:
            return
        with suppress(Exception):  # fail open
            fields = how_it_failed(error, self._helper.stacks.places)
            self.watch.write(self.watch.stands, status=status, **fields)
            self.watch.ask()  # what do those for which it may have waited do? Soon nobody can tell
