"""A run in memory, with one array for each field, so that 512 ranks of thousands of steps stay small and fast.

Only data and conversions: `ddlprof.store.reader` reads them, `ddlprof.analysis` interprets them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ddlprof.base.text import shell_word
from ddlprof.base.typed import optional_fields
from ddlprof.model.amounts import BatchAmount
from ddlprof.model.blocks import STEP_FIELDS
from ddlprof.model.checkpoint_files import CheckpointFile
from ddlprof.model.classes import CLASSES
from ddlprof.model.experts import RoutedTokens
from ddlprof.model.hang import RankState
from ddlprof.model.health import HealthReading
from ddlprof.model.manifest import Manifest
from ddlprof.model.pipeline import PipelineSchedule
from ddlprof.model.records import (
    MISSING,
    Aggregate,
    Calibration,
    ClockReading,
    CollectiveShape,
    CollectorPauses,
    ContextRow,
    Drop,
    End,
    GraphBreak,
    GroupFacts,
    JobSpan,
    LoaderCost,
    LossValue,
    Note,
    Overhead,
    Phase,
    RankHeader,
    StepRow,
    Stride,
    WindowRow,
)
from ddlprof.model.source_locations import SourceLocation

if TYPE_CHECKING:
    from ddlprof.model.operators import StepOperators

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
_Record = TypeVar("_Record", StepRow, Aggregate)

OPTIONAL_FIELDS = optional_fields(StepRow) | optional_fields(ContextRow)
"""The columns that may not have been measured."""
CLASS_FIELDS = tuple(f"{name}_ns" for name in CLASSES)
CONTEXT_FIELDS = tuple(f.name for f in fields(ContextRow))


def column_default(name: str) -> int:
    """What stands in a column of `StepTable` that a file does not have. Raises ValueError if there must be one."""
    default = next((f.default for f in fields(StepRow) if f.name == name), 0)
    if isinstance(default, int):
        return default
    if name in OPTIONAL_FIELDS:
        return MISSING
    raise ValueError(f"the header names no column {name}")


def records_of(kind: type[_Record], names: Sequence[str], rows: Iterable[Iterable[int]]) -> list[_Record]:
    """A record of `kind` for each row of the values of these fields; MISSING is None where a field may be."""
    optional = [name in OPTIONAL_FIELDS for name in names]
    found = []
    for row in rows:
        values: list[Any] = [None if v == MISSING and may else v for v, may in zip(row, optional, strict=True)]
        found.append(kind(**dict(zip(names, values, strict=True))))
    return found


class StepTable:
    """The steps of one rank. `table["data_ns"]` is a column; names are those of the fields of `StepRow`.

    A column that is the same in each step takes no memory. Columns are not to be changed.
    """

    def __init__(self, values: IntArray) -> None:
        """`values`: a row for each step, with the columns `STEP_FIELDS`."""
        self._length = len(values)
        self._columns = [_held(column) for column in values.T]

    @classmethod
    def from_rows(cls, rows: Iterable[StepRow]) -> StepTable:
        """Makes a table from rows, for tests and for the end of a run."""
        values = [[MISSING if (v := getattr(row, name)) is None else v for name in STEP_FIELDS] for row in rows]
        return cls(np.array(values, dtype=np.int64).reshape(-1, len(STEP_FIELDS)))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str) -> IntArray:
        return self._columns[STEP_FIELDS.index(name)]

    def only(self, kept: NDArray[np.bool_]) -> StepTable:
        """The steps of a mask."""
        return StepTable(np.stack([self[name][kept] for name in STEP_FIELDS]).T)

    def rows(self) -> list[StepRow]:
        """The steps as records, without the sequence numbers of their collectives."""
        return records_of(StepRow, STEP_FIELDS, zip(*(self[name].tolist() for name in STEP_FIELDS), strict=True))


def _held(column: IntArray) -> IntArray:
    """A copy of the column; of equal values, one."""
    if len(column) and (column == column[0]).all():
        return np.broadcast_to(column[0], column.shape)
    return np.array(column)


class ContextTable:
    """The counters of one rank. `table["cpu_percent"]` is a column, NaN where a counter was not available."""

    def __init__(self, values: FloatArray) -> None:
        self._values = values

    @classmethod
    def empty(cls) -> ContextTable:
        """A table without readings."""
        return cls(np.zeros((0, len(CONTEXT_FIELDS))))

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, name: str) -> FloatArray:
        return self._values[:, CONTEXT_FIELDS.index(name)]


@dataclass(frozen=True)
class CollectiveTable:
    """The collectives of one rank in the order of issue. All columns have equal lengths."""

    shapes: list[CollectiveShape]
    row: IntArray
    """The index into the rank's `StepTable`."""
    shape: IntArray
    """The index into `shapes`."""
    seq: IntArray
    """The sequence number in its group."""
    ready_us: IntArray
    """The time since the start of the step, in µs; also in the next two fields."""
    end_us: IntArray
    need_us: IntArray
    exposed_us: IntArray

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def empty(cls) -> CollectiveTable:
        """A table without collectives."""
        return cls([], *(np.zeros(0, dtype=np.int64) for _ in range(7)))


@dataclass
class RankData:
    """The data of one rank of one attempt."""

    header: RankHeader
    steps: StepTable
    node: int = 0
    expand: Callable[[], CollectiveTable] = CollectiveTable.empty
    """Makes the table of collectives from a compact form that takes a quarter of its memory."""
    untold: NDArray[np.bool_] | None = None
    """For each step whether its collectives are missing or unexplained, as a file is damaged. None: of none."""
    aggregates: list[Aggregate] = field(default_factory=list)
    strides: list[Stride] = field(default_factory=list)
    """From which step on fewer steps were kept as rows."""
    phases: list[Phase] = field(default_factory=list)
    """The phases of the training, in order; empty if there is one."""
    samples: list[tuple[int, SourceLocation, int]] = field(default_factory=list)
    """Stack samples taken in `other`: step, source line, number of samples."""
    collector: list[CollectorPauses] = field(default_factory=list)
    """The pauses of the garbage collector so far, at each time when there had been more."""
    recompiled: list[str] = field(default_factory=list)
    """Why torch.compile compiled again, in its own words."""
    graph_breaks: list[GraphBreak] = field(default_factory=list)
    """Where torch.compile breaks graphs."""
    first_batches: int | None = None
    """The same number on ranks whose first two batches were equal; None: not known."""
    compute_samples: list[tuple[int, SourceLocation, int]] = field(default_factory=list)
    """Stack samples taken while it computed."""
    places: dict[int, SourceLocation] = field(default_factory=dict)
    """The places in the sources, by the numbers that shapes of collectives have of their issuers."""
    context: ContextTable = field(default_factory=ContextTable.empty)
    windows: list[WindowRow] = field(default_factory=list)
    calibration: list[Calibration] = field(default_factory=list)
    clock_readings: list[ClockReading] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    """Readings that failed."""
    training_loss: list[LossValue] = field(default_factory=list)
    """The values of the training's loss, in the order in which they were noted."""
    groups: dict[str, GroupFacts] = field(default_factory=dict)
    """The dimensions of the process groups, by group; channels of messages are those of their group."""
    spans: list[JobSpan] = field(default_factory=list)
    """What the job did besides steps, see `RankHeader.spans`."""
    pipelines: list[PipelineSchedule] = field(default_factory=list)
    """The places of the rank in pipelines, in the order in which their schedules were made."""
    health: list[HealthReading] = field(default_factory=list)
    """The counters of a sick machine, each when it had changed."""
    routed: list[RoutedTokens] = field(default_factory=list)
    """The tokens that were routed to experts, in a few steps."""
    amounts: list[BatchAmount] = field(default_factory=list)
    """How much the model got, in some steps."""
    checkpoint_files: list[CheckpointFile] = field(default_factory=list)
    """The checkpoints that it wrote and read, in this order of events."""
    overhead: Overhead | None = None
    loader_costs: list[LoaderCost] = field(default_factory=list)
    end: End | None = None

    @property
    def collectives(self) -> CollectiveTable:
        """The table of collectives, made anew at each use. With hundreds of ranks, keep one at a time."""
        return self.expand()

    @property
    def rank(self) -> int:
        """The number of the rank in the job."""
        return self.header.rank

    @property
    def attempt(self) -> int:
        """The number of this start of the job, from 0."""
        return self.header.attempt

    @property
    def complete(self) -> bool:
        """Whether the rank said how it ended; otherwise it was killed, or is still running."""
        return self.end is not None

    @property
    def status(self) -> str:
        """How the rank ended, `torn` if it did not say."""
        return self.end.status if self.end else "torn"

    @property
    def step_count(self) -> int:
        """The number of steps measured, including those kept only as sums."""
        return len(self.steps) + sum(a.steps for a in self.aggregates)

    @property
    def last_seen_unix_ns(self) -> int:
        """The latest moment in the file, as unix time in ns."""
        times = [0]
        if len(self.steps):
            times.append(int(self.steps["start_ns"][-1] + self.steps["step_ns"][-1]))
        if len(self.context):
            times.append(int(self.context["time_ns"][-1]))
        if self.end:
            times.append(self.end.time_ns)
        return self.header.origin_unix_ns + max(times)


@dataclass
class RunData:
    """One run, from one or more directories, with ranks ordered by attempt and rank.

    `manifest` is None if the job died before it was written.
    """

    paths: tuple[str, ...]
    """The directories as the user named them, without credentials of URLs."""
    manifest: Manifest | None
    ranks: list[RankData]
    notes: list[Note] = field(default_factory=list)
    step: StepOperators | None = None
    """The operators of one step; None where they are not known."""
    file_bytes: int = 0
    """The size of the ranks' files when they were listed."""
    standing: list[RankState] = field(default_factory=list)
    """What ranks of the latest attempt wrote when they stood still."""

    @property
    def origin_unix_ns(self) -> int:
        """The unix time in ns from which `start_s` counts in reports."""
        if self.manifest:
            return self.manifest.origin_unix_ns
        return self.ranks[0].header.origin_unix_ns if self.ranks else 0

    @property
    def name(self) -> str:
        """The short name of the job."""
        return self.manifest.name if self.manifest else self.paths[0].rstrip("/").rpartition("/")[2]

    @property
    def typed(self) -> str:
        """The directories as one types them after a command."""
        return " ".join(shell_word(path, path=True) for path in self.paths)
