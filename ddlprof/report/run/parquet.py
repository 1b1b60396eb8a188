"""The tables of a run as Parquet files: the columns, names and units of the CSV files, with types.

`DIR/TABLE/job=NAME/run=ID/part-0.parquet`: a file a run and table, in the form of partitions that Hive began and that
DuckDB, Spark, Athena and pandas read. NULL was not measured; names are as they are, not made harmless as in CSV files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ddlprof.analysis.run import Attempt
from ddlprof.base.errors import UserError, refusing
from ddlprof.base.files import replacing_all
from ddlprof.base.text import is_visible
from ddlprof.model.records import MISSING
from ddlprof.report.run.tables import Progress, RunTable, Types, tables_of
from ddlprof.store import RunData

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_A_GROUP = 131_072
"""The rows of a row group, which readers take at once; no more are turned into Arrow's form at a time."""
FILE_NAME = "part-0.parquet"
_KEPT_IN_NAMES = "._-"
_MOST_NAME_BYTES = 200
"""The longest value of a partition: file systems allow names of 255 bytes, which include the key."""


def export(run: RunData, attempts: Sequence[Attempt], directory: Path, progress: Progress | None = None) -> list[Path]:
    """Writes the run's partition of every table, or replaces it; each file is there whole, old or new."""
    _require_pyarrow()
    tables = list(tables_of(run, attempts, progress))
    paths = [directory / table.name / partition(run) / FILE_NAME for table in tables]
    try:
        with refusing(f"{directory}: cannot be written", "; choose another --out"):
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
            with replacing_all(paths) as temporary:
                for path, table in zip(temporary, tables, strict=True):
                    _write(path, table)
    finally:
        for path in paths:
            with suppress(OSError):  # there is a table in it, or another run beside it
                path.parent.rmdir()
                path.parent.parent.rmdir()
    return paths


def partition(run: RunData) -> Path:
    """`job=NAME/run=ID`: the job's name and its id, or the directory's name where the run has no id."""
    job_id = run.manifest.job_id if run.manifest else ""
    job_id = job_id or next((rank.header.job_id for rank in run.ranks if rank.header.job_id), "")
    directory = run.paths[0].rstrip("/").rpartition("/")[2]
    return Path(f"job={_value(run.name)}", f"run={_value(job_id or directory)}")


def _value(text: str) -> str:
    """The value of a partition as part of a path: letters and digits as they are, the rest as Hive escapes it, %2F."""
    clean = text.encode(errors="replace").decode()
    value = "".join(c if is_visible(c) and (c.isalnum() or c in _KEPT_IN_NAMES) else _escaped(c) for c in clean)
    if len(value.encode()) > _MOST_NAME_BYTES:
        begin = clean[: _MOST_NAME_BYTES // 12]  # an escaped character takes up to 12 bytes
        value = f"{_value(begin)}-{sha256(clean.encode()).hexdigest()[:16]}"
    return value or "unnamed"  # Hive has NULL for a value without characters


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode())


def _require_pyarrow() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise UserError("--format parquet needs pyarrow: pip install 'ddlprof[parquet]'") from None


def schema_of(columns: Types) -> pa.Schema:
    """The types of a table, by its columns alone: the files of all runs have the same."""
    import pyarrow as pa

    types = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def _write(path: Path, table: RunTable) -> None:
    from pyarrow.parquet import ParquetWriter

    schema = schema_of(table.columns)
    with ParquetWriter(path, schema, compression="zstd") as writer:
        for rows in _groups(table, schema):
            writer.write_table(rows)


def _groups(table: RunTable, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows in groups; small pieces, of many ranks with few steps, share one."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    for columns in table.pieces:
        for begin in range(0, len(next(iter(columns.values()))), ROWS_A_GROUP):
            piece = slice(begin, begin + ROWS_A_GROUP)
            arrays = [_array(columns[field.name][piece], field.type) for field in schema]
            batch = pa.record_batch(arrays, schema=schema)
            if waiting and sum(each.num_rows for each in waiting) + batch.num_rows > ROWS_A_GROUP:
                yield pa.Table.from_batches(waiting, schema)
                waiting = []
            waiting.append(batch)
    if waiting:
        yield pa.Table.from_batches(waiting, schema)


def _array(column: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """A column in Arrow's form; MISSING and NaN become NULL."""
    import pyarrow as pa

    if column.dtype.kind not in "fib":
        clean = {value: value.encode(errors="replace").decode() for value in set(column.tolist())}
        return pa.array([clean[value] for value in column.tolist()], kind)
    if column.dtype.kind == "f":
        return pa.array(column, kind, mask=np.isnan(column))
    if column.dtype.kind == "i":
        return pa.array(column, kind, mask=column == MISSING)
    return pa.array(column, kind)
