"""The lines in which a batch is made, of the stack of the thread that makes it."""

from __future__ import annotations

import dis
import random
import sys
import zipfile
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, RandomSampler, Subset, TensorDataset, default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from ddlprof.collect.loader.waits import BatchSource
from ddlprof.collect.process.data_places import data_places
from ddlprof.collect.process.frames import StackFrame, stack_of_frame
from ddlprof.collect.process.stacks import CodeLocator
from ddlprof.model.source_locations import SourceLocation

SCRIPT = """
import torch, zipfile

def look(): return STACK()

def item(path):
    return helper(path)

def helper(path):
    return zipfile.ZipFile(look(path))

def of_list(rows):
    return torch.tensor(look(rows))

def tokens(text):
    return torch.tensor(look(text).encode(text))

def plain(rows):
    return look(rows)

def row(base):
    return look(base) or base.execute("SELECT").fetchone()

def parsed(line):
    return look(line) or yaml.safe_load(line)

def listed(root):
    return look(root) or sorted(root.glob("*"))

def record(text):
    return look(text) or json.loads(text)

def lines(file):
    return look(file) or file.readlines()

def copied(info):
    return look(info) or copy.deepcopy(info)

def rows(path):
    return look(path) or pd.read_csv(path).values

def columns(path):
    return look(path) or pq.read_table(path)
"""


@pytest.fixture
def script(tmp_path: Path) -> tuple[Any, list[list[StackFrame]]]:
    """A module of the user's, and the stacks from which `look` was called in it."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    module, stacks = ModuleType("train"), list[list[StackFrame]]()
    exec(compile(SCRIPT, str(path), "exec"), vars(module))

    def look(*_: Any) -> Any:
        frame = sys._getframe(1)
        stacks.append(stack_of_frame(frame))
        raise StopIteration

    vars(module).update(look=look)
    return module, stacks


def inside_a_hook(function: Callable[..., Any]) -> None:
    """Calls it as our hook of a data call does."""
    hook = BatchSource.__new__(BatchSource)

    class NoWaits:
        inside, recorder = False, None
        is_compiling = staticmethod(lambda: True)

    hook._waits = NoWaits()  # type: ignore[assignment]
    with pytest.raises(StopIteration):
        hook.wait(0, function, "rows")


@pytest.mark.parametrize(
    ("function", "inner", "what", "outer"),
    [
        ("item", ":10 helper", "data opens", ":7 item"),
        ("of_list", ":13 of_list", "data", ":13 of_list"),  # `look` is called there, too
        ("tokens", ":16 tokens", "data tokenises", ":16 tokens"),
        ("plain", ":19 plain", "data", ":19 plain"),
        ("row", ":22 row", "data queries", ":22 row"),
        ("parsed", ":25 parsed", "data parses", ":25 parsed"),
        ("listed", ":28 listed", "data searches", ":28 listed"),
        ("record", ":31 record", "data parses", ":31 record"),
        ("lines", ":34 lines", "data reads", ":34 lines"),
        ("copied", ":37 copied", "data copies", ":37 copied"),
        ("rows", ":40 rows", "data parses", ":40 rows"),
        ("columns", ":43 columns", "data opens", ":43 columns"),
    ],
)
def test_the_innermost_line_and_the_outermost(
    script: tuple[Any, list[list[StackFrame]]], function: str, inner: str, what: str, outer: str
) -> None:
    module, stacks = script
    inside_a_hook(getattr(module, function))
    places = data_places(CodeLocator(), stacks[0])
    assert [place.text.partition("train.py")[2] for place in places] == [inner, outer]
    assert [place.what for place in places] == [what, "data caller"]


def test_a_tensor_of_a_list_is_known_where_nothing_else_is_called(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = torch.tensor(rows)\n")
    code = compile(path.read_text(), str(path), "exec")
    stack = [StackFrame(code, len(code.co_code) - 2, "train"), _ours()]
    assert data_places(CodeLocator(), stack)[0].what == "data lists"
    item = StackFrame(code.replace(co_name="__getitem__"), stack[0].instruction, "train")
    assert data_places(CodeLocator(), [stack[0], item, _ours()])[0].what == "data tensor"  # of one sample
    places = CodeLocator()
    assert places.find(places.inside(stack[:1], [])) == SourceLocation(
        f"{path}:1 <module>", "lists"
    )  # without a loader


def test_reading_an_open_archive_is_not_opening_it(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("raw = archive.read(name)\n")
    user = StackFrame(compile(path.read_text(), str(path), "exec"), 0, "train")
    read = StackFrame(zipfile.ZipFile.read.__code__, 0, "zipfile")
    assert data_places(CodeLocator(), [read, user, _ours()])[0].what == "data unpacks"
    opening = StackFrame(zipfile.ZipFile._RealGetContents.__code__, 0, "zipfile")  # type: ignore[attr-defined]
    assert data_places(CodeLocator(), [opening, user, _ours()])[0].what == "data opens"


@pytest.mark.parametrize(
    ("module", "name", "what"),
    [("gzip", "read", "data unpacks"), ("multiprocessing.managers", "call", "data asks"),
     ("torch.serialization", "load", "data parses"), ("multiprocessing.pool", "get", "data"),
     ("h5py._hl.dataset", "read", "data unpacks"), ("torch.functional", "norm", "data"), ("tarfile", "read", "data"),
     ("json.decoder", "decode", "data parses"), ("json", "dump", "data"),
     ("tarfile", "open", "data opens"), ("zipfile", "read", "data unpacks"), ("copy", "deepcopy", "data copies"),
     ("copy", "copy", "data"), ("filelock._api", "acquire", "data locks"),
     ("multiprocessing.synchronize", "__enter__", "data turns"), ("subprocess", "communicate", "data programs"),
     ("multiprocessing.process", "start", "data programs"),
     ("multiprocessing.pool", "_terminate_pool", "data programs"), ("multiprocessing.context", "Pool", "data programs"),
     ("random", "sample", "data draws"), ("random", "randint", "data"),
     ("torch.distributions.normal", "sample", "data"), ("threading", "acquire", "data")],
)  # fmt: skip
def test_a_line_is_known_by_the_function_it_calls(tmp_path: Path, module: str, name: str, what: str) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = source[index]\n")
    user = StackFrame(compile(path.read_text(), str(path), "exec"), 0, "train")
    called = StackFrame(zipfile.ZipFile.read.__code__.replace(co_name=name), 0, module)
    assert data_places(CodeLocator(), [called, user, _ours()])[0].what == what


def test_draws_of_a_loop_that_loads_its_batches_itself_are_told(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = random.sample(memory, 64)\n")
    code, places = compile(path.read_text(), str(path), "exec"), CodeLocator()
    user = StackFrame(code, len(code.co_code) - 2, "train")
    called = StackFrame(random.sample.__code__, 0, random.__name__)
    assert places.find(places.inside([called, user], [])) == SourceLocation(f"{path}:1 <module>", "draws")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="which call a line is at is not told before Python 3.11")
@pytest.mark.parametrize(
    ("at", "calls", "what"),
    [("index", False, "data finds"), ("sort", False, "data"), ("index", True, "data")],
)
def test_a_search_through_a_list_is_told_where_it_is_under_way(tmp_path: Path, at: str, calls: bool, what: str) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = words.index(word) if word in words else words.sort()\n")
    code, places = compile(path.read_text(), str(path), "exec"), CodeLocator()
    found = (StackFrame(code, each.offset, "train") for each in dis.get_instructions(code) if each.opname == "CALL")
    user = next(each for each in found if places.call_of(each) == at)
    called = [StackFrame(zipfile.ZipFile.read.__code__, 0, "words")] if calls else []  # the user's own `index`
    assert data_places(places, [*called, user, _ours()])[0].what == what


def test_a_queue_that_is_waited_for_is_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("fcntl.flock(file, fcntl.LOCK_EX)\nready.acquire()\nx = results.get()\n")
    code = compile(path.read_text(), str(path), "exec")
    lock, queue = StackFrame(code, 0, "train"), StackFrame(code, len(code.co_code) - 2, "train")
    ready = next(each.offset for each in dis.get_instructions(code) if each.argval == "acquire")
    thread = StackFrame(code, ready, "train")
    assert data_places(CodeLocator(), [thread, _ours()])[0].what == "data"
    read = zipfile.ZipFile.read.__code__
    called = [StackFrame(read, 0, "multiprocessing.synchronize"), StackFrame(read, 0, "multiprocessing.queues")]
    assert data_places(CodeLocator(), [*called, queue, _ours()])[0].what == "data"
    assert data_places(CodeLocator(), [lock, _ours()])[0].what in ("data", "data locks")


def test_a_tar_file_is_unpacked_where_it_is_compressed(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = source[index]\n")
    user = StackFrame(compile(path.read_text(), str(path), "exec"), 0, "train")
    read = zipfile.ZipFile.read.__code__
    called = [StackFrame(read, 0, "gzip"), StackFrame(read, 0, "tarfile")]
    assert data_places(CodeLocator(), [*called, user, _ours()])[0].what == "data unpacks"


def test_torchs_own_code_is_one_place() -> None:
    item = StackFrame(TensorDataset.__getitem__.__code__, 0, "torch.utils.data.dataset")
    joining = StackFrame(default_collate.__code__, 0, "torch.utils.data._utils.collate")
    for stack, place in (([joining], "sample by sample"), ([item], "whole batches")):
        (found,) = data_places(CodeLocator(), [*stack, _ours()])
        assert found.text == f"torch.utils.data, {place}"


def test_a_chain_of_data_sets_is_told() -> None:
    item = StackFrame(ConcatDataset.__getitem__.__code__, 0, "torch.utils.data.dataset")
    asking = StackFrame(_MapDatasetFetcher.fetch.__code__, 0, "torch.utils.data._utils.fetch")
    for depth, what in ((2, "data whole"), (4, "data whole"), (5, "data nested"), (200, "data nested")):
        assert data_places(CodeLocator(), [*[item] * depth, asking, _ours()])[0].what == what
    split = item._replace(code=Subset.__getitem__.__code__)
    assert data_places(CodeLocator(), [*[item, split] * 4, asking, _ours()])[0].what == "data whole"  # not a + b + c


@pytest.mark.parametrize(("batched", "place"), [(True, "sample by sample"), (False, "whole batches")])
def test_single_samples_are_told_from_whole_batches(batched: bool, place: str) -> None:
    """By the stacks from which torch's fetcher asks a data set of torch's."""
    stacks: list[list[StackFrame]] = []

    class Looks(list[int]):
        def __getitem__(self, index: Any) -> Any:
            stacks.append(stack_of_frame(sys._getframe(1)))
            raise StopIteration

    fetcher = _MapDatasetFetcher(Looks([1, 2]), batched, default_collate, False)
    inside_a_hook(lambda _: fetcher.fetch([0, 1]))
    inside = [frame for frame in stacks[0] if frame.module.startswith("torch.utils.data")]
    (found,) = data_places(CodeLocator(), [*inside, _ours()])
    assert found.text == f"torch.utils.data, {place}"


def test_what_an_epoch_begins_with() -> None:
    code = BaseProcess.start.__code__
    (place,) = data_places(CodeLocator(), [StackFrame(code, 0, "multiprocessing.process"), _ours()])
    assert place[:2] == ("the start of the loader's workers", "data starts")
    user = StackFrame(compile("pool = Pool(2)", "/home/train.py", "exec"), 0, "train")
    starting = StackFrame(code, 0, "multiprocessing.process")
    within = StackFrame(code.replace(co_name="__init__"), 0, "torch.utils.data.dataloader")
    state = user._replace(code=user.code.replace(co_name="__getstate__"))  # of a data set that is sent to the worker
    dumping = starting._replace(code=code.replace(co_name="dump"), module="multiprocessing.reduction")
    for called, what in (
        ([starting, within], "data starts"),  # a loader of the user's
        ([state, dumping, starting, within], "data starts"),
        ([starting], "data programs"),
        ([state, dumping, starting], "data"),  # a pool of the user's
    ):
        assert data_places(CodeLocator(), [*called, user, _ours()])[0].what == what
    (place,) = data_places(CodeLocator(), [state, dumping, starting, within, _ours()])
    assert place.what == "data starts"
    sampling = StackFrame(RandomSampler.__iter__.__code__, 0, "torch.utils.data.sampler")
    (place,) = data_places(CodeLocator(), [sampling, _ours()])
    assert place.what == "data sampler"
    assert place.text.startswith("torch/utils/data/sampler.py:")


def test_waiting_for_workers_is_no_line() -> None:
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Iterator

    code = Iterator._try_get_data.__code__
    assert data_places(CodeLocator(), [StackFrame(code, 0, "torch.utils.data.dataloader"), _ours()]) == []
    assert data_places(CodeLocator(), []) == []


def _ours() -> StackFrame:
    return StackFrame(BatchSource.wait.__code__, 0, "ddlprof.collect.loader.waits")
