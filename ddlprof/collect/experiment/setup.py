"""What makes a run one of `ddlprof characterize`: replayed or watched input, and an end after some steps.

Nothing of this is installed in a run of the user's own.
"""

from __future__ import annotations

import os
from pathlib import Path

from ddlprof.collect.compiler.untraced import leave_to_python
from ddlprof.collect.hook_context import HookContext
from ddlprof.collect.install import Uninstall, all_of
from ddlprof.model.options import Experiment


def install(context: HookContext, experiment: Experiment, steps: int, reads: Path) -> Uninstall:
    """Ends the script after `steps` steps; `reads`: file for what the loaders read.

    To be installed after the hooks of the loader and the optimizer.
    """
    from ddlprof.collect.experiment import limit, reading, replay

    leave_to_python(context.torch)
    context.torch.manual_seed(0)  # a script that seeds nothing shall read the same files in the same order every time
    limited = limit.install(context.recorder, steps)  # first: if the rest fails, this is still not a whole training
    if experiment.replayed:
        return all_of(limited, replay.install())
    if not os.path.exists("/proc/self/io"):
        return limited
    return all_of(limited, reading.install(str(reads), experiment.drop_cache))
