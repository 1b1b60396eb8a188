"""Every private name that ddlprof uses is there in the installed torch, as far as its table says that it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddlprof.torch_private import check
from ddlprof.torch_private.check import NAMES, NamesFound, can_be_there, exists, is_expected, look
from ddlprof.torch_private.names import NEWEST, OLDEST, PrivateName, find, need

GONE = PrivateName("torch:_C._gone_away", "does this", "that is not measured")


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_the_installed_torch_has_it(name: PrivateName) -> None:
    if not can_be_there(name, torch):
        pytest.skip(f"this torch is without {name.needs}")
    if not is_expected(name, torch.__version__):
        pytest.skip(f"in torch {name.since} to {name.until}")
    assert exists(name, torch), f"{name} is gone: {name.without_it}. Do without it, and say in the table since when"


@pytest.mark.parametrize(
    ("since", "until", "version", "expected"),
    [
        ("2.4", NEWEST, "2.13.0+cpu", True),
        ("2.7", NEWEST, "2.6.1", False),
        ("2.4", "2.6", "2.7.0", False),
        ("2.4", "2.6", "2.4.1+cu121", True),
        (OLDEST, NEWEST, "3.0.0a0+git1234", True),
        ("2.4", "2.6", "3.0.0", False),
    ],
)
def test_which_versions_should_have_it(since: str, until: str, version: str, expected: bool) -> None:
    name = PrivateName("torch:_x", "", "", since, until)
    assert is_expected(name, version) is expected


@pytest.mark.parametrize(
    "path",
    [
        "torch:_C._gone_away",
        "torch._gone:away",
        "torch:Gone._away",
        "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter()._gone_away",
        "torch.distributed.fsdp._init_utils:()._gone_away",
    ],
)
def test_one_that_is_gone_is_missing(path: str) -> None:
    assert not exists(GONE._replace(path=path), torch)


def test_an_object_made_to_look_at_lacks_it() -> None:
    def broken(torch: Any) -> Any:
        raise RuntimeError("another version")

    assert not exists(GONE._replace(example=lambda torch: torch.ones(1)), torch)
    assert not exists(GONE._replace(example=broken), torch)


def test_what_this_build_cannot_have_is_not_missing() -> None:
    of_cuda = GONE._replace(needs="cuda")
    without = SimpleNamespace(__version__="2.13.0", version=SimpleNamespace(cuda=None, hip=None))
    having = SimpleNamespace(__version__="2.13.0", version=SimpleNamespace(cuda="12.8", hip=None))
    assert look(without, (of_cuda,)) == NamesFound(0, [])
    assert look(having, (of_cuda,)) == NamesFound(0, [of_cuda])


def test_a_name_as_people_write_it() -> None:
    assert str(NAMES[0]) == "torch._C._current_graph_task_id"
    path = "torch.distributed.fsdp._init_utils:()._inter_node_pg"
    assert str(GONE._replace(path=path)) == "torch.distributed.fsdp._init_utils._inter_node_pg"
    assert GONE._replace(path=path).attribute == "_inter_node_pg"


def test_what_is_missing_is_none_or_one_line() -> None:
    assert find(torch, "_C._gone.away") is None
    assert find(torch, "_C._current_graph_task_id") is torch._C._current_graph_task_id
    with pytest.raises(AttributeError, match=r"^torch 2\.\S+ has no torch\._C\._gone\.away$"):
        need(torch, "_C._gone.away")


def test_every_table_is_looked_at() -> None:
    from pathlib import Path

    files = {path.stem for path in Path(str(check.__file__)).parent.glob("*.py")} - {"__init__", "names", "check"}
    assert files == {part.__name__.rpartition(".")[2] for part in check.PARTS}
