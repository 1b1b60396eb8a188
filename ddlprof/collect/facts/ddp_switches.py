"""Whether switches of DDP that cost time are of use: looked at after a few updates, in the training thread.

DDP's own log of an iteration is asked there only, outside of a backward: it waits for a lock under which a backward may
wait for the interpreter's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ddlprof.torch_private.collectives import ddp_log
from ddlprof.torch_private.engine import graph_task, version_of

_VERSIONS_AT = (2, 4, 8, 16, 64)
"""The numbers of updates after which the versions of buffers are compared."""
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""The names of the buffers in which normalisation keeps its running statistics."""


class DdpSwitches:
    """What was seen of DDP. None: nothing was looked at."""

    def __init__(self) -> None:
        self.finds_unused: bool | None = None
        """Whether DDP searches for unused parameters in each forward."""
        self.unused: bool | None = None
        """Whether a parameter was unused in one of the iterations looked at."""
        self.buffers_change: bool | None = None
        """Whether buffers that DDP broadcasts have changed, other than the statistics of normalisation."""
        self.statistics: bool | None = None
        """Whether such statistics are among them."""
        self._iterations: set[int] = set()
        self._versions: dict[str, int] = {}

    @property
    def iterations(self) -> int:
        """The number of iterations whose unused parameters were looked at."""
        return len(self._iterations)

    def look(self, torch: Any, modules: Iterable[Any], updates: int) -> None:
        """Looks at the DDP among the trained modules, unless a backward is under way. Errors are the caller's."""
        if not torch.distributed.is_available() or graph_task(torch)() != -1:
            return
        for module in modules:
            if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                self._look_at_unused(module)
                if module.broadcast_buffers and updates in _VERSIONS_AT:
                    self._compare(dict(module.named_buffers()))
                return

    def _look_at_unused(self, module: Any) -> None:
        self.finds_unused = bool(module.find_unused_parameters)
        if not self.finds_unused:
            return
        log = ddp_log(module)
        iteration, unused = log.get("iteration"), log.get("unused_parameter_size")
        if isinstance(iteration, int) and isinstance(unused, int) and iteration > 1:  # the first one says nothing
            self._iterations.add(iteration)
            self.unused = bool(self.unused or unused)

    def _compare(self, buffers: dict[str, Any]) -> None:
        self.statistics = any(name.rpartition(".")[2] in _STATISTICS for name in buffers)
        others = {name: each for name, each in buffers.items() if name.rpartition(".")[2] not in _STATISTICS}
        versions = {name: version_of(each) for name, each in others.items()}  # counts changes in place
        if self._versions.keys() == versions.keys() and versions:
            self.buffers_change = bool(self.buffers_change or versions != self._versions)
        elif not versions:
            self.buffers_change = False
        self._versions = versions
