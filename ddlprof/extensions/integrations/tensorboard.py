"""TensorBoard: `ddlprof.extensions.integrations.tensorboard.log(run, "logs/run-1")`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import UserError
from ddlprof.extensions.integrations.scalars import EVERY, points

if TYPE_CHECKING:
    from ddlprof.api import Run


def log(run: Run, to: str | Path | Any, every: int = EVERY) -> int:
    """Writes the classes as scalars `ddlprof/compute_s`, ..., a point for every so many steps; returns their number.

    `to` is a directory for event files, or a writer with `add_scalar(tag, value, step, ...)`: that of
    `torch.utils.tensorboard` or of `tensorboard.summary`. A writer stays open.
    """
    if isinstance(to, (str, os.PathLike)):
        try:
            from tensorboard.summary import Writer
        except ImportError:
            raise UserError("TensorBoard is not installed: pip install 'ddlprof[tensorboard]'") from None
        from tensorboard.summary import DirectoryOutput

        writer = Writer(DirectoryOutput(os.fspath(to)))
        try:
            return _write(run, writer, every)
        finally:
            writer.close()
    written = _write(run, to, every)
    to.flush()
    return written


def _write(run: Run, writer: Any, every: int) -> int:
    found = list(points(run, every))
    for point in found:
        for tag, value in point.values.items():
            writer.add_scalar(tag, value, point.step, **_at(writer, point.unix_s))
    return len(found)


def _at(writer: Any, unix_s: float) -> dict[str, float]:
    """The argument that gives the writer the time of the point, under the name that this writer takes."""
    return {"walltime": unix_s} if type(writer).__module__.startswith("torch.") else {"wall_time": unix_s}
