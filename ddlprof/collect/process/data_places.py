"""The lines in which a batch is made, of the stack of a thread that makes one.

A batch is made between the call of a data set and the hook that times it, in the training process or in a worker of a
loader. Two lines are told of one stack: the innermost of the user's, and the outermost, which called the functions
with the others in them.
"""

from __future__ import annotations

import linecache
import re
from itertools import pairwise
from typing import Protocol

from ddlprof.collect.process.frames import INSTALLED, OURS, USER, StackFrame
from ddlprof.model.source_locations import (
    ASKS,
    COPIES,
    DATA_CALLER,
    DECODES,
    DRAWS,
    FINDS,
    LISTS,
    LOCKS,
    NESTED,
    OPENS,
    PARSES,
    PER_SAMPLE,
    PROGRAMS,
    QUERIES,
    READS,
    SAMPLER,
    SEARCHES,
    STARTS,
    TABLES,
    TENSOR,
    TOKENISES,
    TURNS,
    UNPACKS,
    WHOLE,
    SourceLocation,
    in_data,
)
from ddlprof.torch_private.loader import WAITING

_LOADER = "torch.utils.data"
_PER_SAMPLE = "torch.utils.data, sample by sample"
"""The place of all code of torch's that takes single samples and joins them."""

_WHOLE = "torch.utils.data, whole batches"
_IN_DATA_SETS = "torch.utils.data, data sets in data sets"
_NESTED = 4
"""So many data sets ask one of the same class on the stack of a chain; splits of joined parts do so by turns."""
_STARTING = "the start of the loader's workers"

DRAWING = frozenset(("choice", "permutation", "randperm", "multinomial"))
"""Functions that draw random numbers."""
WRITING = frozenset((
    "dump", "dumps", "to_csv", "to_json", "to_parquet", "to_pickle", "savetxt", "savez", "savez_compressed", "write",
    "writelines", "writerow", "writerows", "flush", "fsync",
))  # fmt: skip
"""Functions that write, or make what is written."""
_CALLS = {
    OPENS: frozenset(("ZipFile", "TarFile", "File", "connect", "read_parquet", "read_table", "open_dataset")),
    DRAWS: DRAWING,
    TOKENISES: frozenset(("encode", "encode_plus", "encode_batch", "batch_encode_plus", "tokenize", "word_tokenize")),
    DECODES: frozenset(("imread", "imdecode", "decode_image", "decode_jpeg", "decode_png", "read_image")),
    QUERIES: frozenset(("executemany", "fetchone", "fetchmany", "fetchall", "read_sql", "find_one")),
    PARSES: frozenset((
        "loads", "safe_load", "literal_eval", "read_csv", "read_json", "read_excel", "loadtxt", "genfromtxt",
    )),
    SEARCHES: frozenset(("listdir", "scandir", "glob", "iglob", "rglob", "iterdir")),
    READS: frozenset(("readlines", "read_text")),
    UNPACKS: frozenset(("decompress",)),
    COPIES: frozenset(("deepcopy",)),
    LOCKS: frozenset(("flock", "lockf", "FileLock")),
}  # fmt: skip
"""What a line does, by the name of a function that it calls."""
_OF_LISTS = frozenset(("tensor", "as_tensor", "Tensor", "FloatTensor", "LongTensor", "DoubleTensor", "IntTensor"))
_PLAIN = frozenset((
    "from_numpy", "stack", "cat", "float", "int", "long", "list", "len", "range", "zip", "enumerate", "view", "reshape",
    "unsqueeze", "to",
))  # fmt: skip
"""Functions that take little time beside a tensor of a list."""
_CALLED = re.compile(r"(\w+)\s*\(")
_MODULES = {
    "zipfile": OPENS, "tarfile": OPENS, "h5py": OPENS, "sqlite3": OPENS, "lmdb": OPENS, "netCDF4": OPENS,
    "zarr": OPENS,
    "pandas": TABLES, "polars": TABLES, "pyarrow": TABLES,
    "transformers": TOKENISES, "tokenizers": TOKENISES, "sentencepiece": TOKENISES, "nltk": TOKENISES,
    "PIL": DECODES, "cv2": DECODES, "imageio": DECODES, "json": PARSES, "yaml": PARSES, "xml": PARSES, "csv": PARSES,
    "torch.serialization": PARSES, "gzip": UNPACKS, "bz2": UNPACKS, "lzma": UNPACKS, "copy": COPIES,
    "multiprocessing.managers": ASKS, "filelock": LOCKS, "portalocker": LOCKS,
    "subprocess": PROGRAMS, "random": DRAWS,
}  # fmt: skip
"""What a line does, by the package, or the module, of the code that it calls."""
_UNPACKING = frozenset(("zipfile", "h5py", "zarr"))
"""The packages of `OPENS` that unpack what they read, if that is compressed. `tarfile` calls others to unpack."""
_FUNCTIONS = {
    OPENS: frozenset(("__init__", "open", "_RealGetContents", "make_fid", "connect")),
    COPIES: frozenset(("deepcopy",)),
    DRAWS: frozenset(("sample",)),
}
"""The functions of packages that do what is said of these; others read what is open, or copy one object alone."""


class Places(Protocol):
    """What is needed of a `CodeLocator`."""

    def owner(self, filename: str, main: bool = False) -> str:
        """Whose code a file is."""

    def is_users(self, frame: StackFrame) -> bool:
        """Whether a frame is of the user's code."""

    def package(self, filename: str) -> str:
        """The installed package that a file belongs to."""

    def text(self, frame: StackFrame) -> str:
        """A frame as `file:line function`."""

    def call_of(self, frame: StackFrame) -> str:
        """The name of the function that a frame calls; empty if unknown."""


def data_places(places: Places, stack: list[StackFrame]) -> list[SourceLocation]:
    """The lines of a stack (innermost frame first) in which a batch is made; empty if none is."""
    owners = [places.owner(frame.code.co_filename, frame.module == "__main__") for frame in stack]
    end = owners.index(OURS) if OURS in owners else 0
    inside, owners = stack[:end], owners[:end]
    if any(frame.module.startswith(_LOADER) and frame.code.co_name in WAITING for frame in inside):
        return []
    users = [number for number, owner in enumerate(owners) if owner == USER]
    if _starts_workers(inside, users):
        return [SourceLocation(_STARTING, in_data(STARTS))]
    if not users:
        return _in_libraries(places, inside, owners)
    inner, outer = inside[users[0]], inside[users[-1]]
    one_sample = any(inside[number].code.co_name == "__getitem__" for number in users)
    what = in_data(work_of_data(places, inside[: users[0]], inner, one_sample))
    return [SourceLocation(places.text(inner), what), SourceLocation(places.text(outer), DATA_CALLER)]


def _in_libraries(places: Places, inside: list[StackFrame], owners: list[str]) -> list[SourceLocation]:
    installed = [frame for frame, owner in zip(inside, owners, strict=True) if owner == INSTALLED]
    if not installed:
        return []
    sampler = next((frame for frame in installed if frame.module == f"{_LOADER}.sampler"), None)
    if sampler is not None:
        return [SourceLocation(places.text(sampler), in_data(SAMPLER))]
    called = [frame for frame in installed if places.package(frame.code.co_filename) != "torch"]
    if not called:
        asked = [frame for frame in installed if frame.code.co_name == "__getitem__"]
        sets = [frame.code for frame in asked if frame.module == f"{_LOADER}.dataset"]
        if sum(inner is outer for inner, outer in pairwise(sets)) >= _NESTED:
            return [SourceLocation(_IN_DATA_SETS, in_data(NESTED))]
        single = any(map(_takes_samples, installed))
        return [SourceLocation(_PER_SAMPLE, in_data(PER_SAMPLE)) if single else SourceLocation(_WHOLE, in_data(WHOLE))]
    what = in_data(work_of_data(places, called, None))
    return [SourceLocation(places.text(called[-1]), what)]


def _takes_samples(frame: StackFrame) -> bool:
    """Whether it is code of torch's that takes single samples, or joins them."""
    if frame.module == f"{_LOADER}._utils.fetch":
        return " for " in linecache.getline(frame.code.co_filename, frame.line())
    return frame.module == f"{_LOADER}._utils.collate" and "collate" in frame.code.co_name


def work_of_data(places: Places, called: list[StackFrame], line: StackFrame | None, one_sample: bool = False) -> str:
    """What a line does, by the functions named in it or the frames that it called; empty if that is not known.

    The tensor of one sample is soon made, but lets the interpreter's lock go, so that looks fall on it and not on the
    line that makes what is in it.
    """
    names = names_called(line) if line is not None else set()
    for what, known in _CALLS.items():
        if names & known:
            return what
    if starts_processes(called):
        return PROGRAMS
    if called and called[-1].module == "multiprocessing.synchronize":  # `with lock:`, and no queue that takes its own
        return TURNS
    for frame in reversed(called):
        package = frame.module.partition(".")[0]
        what = _MODULES.get(frame.module) or _MODULES.get(package, "")
        if what in _FUNCTIONS and not any(each.code.co_name in _FUNCTIONS[what] for each in called):
            what = UNPACKS if package in _UNPACKING else ""
        if what == PARSES and any(each.code.co_name in WRITING for each in called):
            what = ""
        if what:
            return what
    if line is not None and not called and places.call_of(line) == "index":  # in C: no method of the user's
        return FINDS
    if not names & _OF_LISTS or names - _OF_LISTS - _PLAIN:
        return ""
    return TENSOR if one_sample else LISTS


def _starts_workers(inside: list[StackFrame], users: list[int]) -> bool:
    """Whether processes are started by a loader, or by no line of the user's: further in may be one that pickles."""
    start = next((number for number, frame in enumerate(inside) if starts_processes([frame])), None)
    if start is None:
        return False
    user = next((number for number in users if number > start), None)
    return user is None or any(frame.module.startswith(_LOADER) for frame in inside[start:user])


def starts_processes(called: list[StackFrame]) -> bool:
    """Whether these frames start processes of multiprocessing, make a pool of them, or end one."""
    return any(
        frame.module.startswith("multiprocessing") and frame.code.co_name in ("start", "Pool", "_terminate_pool")
        for frame in called
    )


def names_called(line: StackFrame) -> set[str]:
    """The names of the functions that the text of a line calls: while C code runs, it is not known which of them."""
    return set(_CALLED.findall(linecache.getline(line.code.co_filename, line.line())))
