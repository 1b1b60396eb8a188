"""Finds the GPU that a name means. `T4`, `T4-16GB` and `Tesla T4` are one, as are all spellings of an A100.

A name is split into its base (`a100`), its memory (`40GB`) and its form (`sxm`, `pcie`, `nvl`). What a name leaves open
is decided by the order of the table: the first GPU with a base is its default.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from ddlprof.base.typed import shown
from ddlprof.instance_catalog.errors import CatalogError
from ddlprof.instance_catalog.records import Gpu

_VENDOR = re.compile(r"\b(nvidia|tesla|geforce|quadro|grid|gpu|amd|instinct|oam|dlc)\b")
_MEMORY = re.compile(r"(?<![a-z\d.])(\d+(?:\.\d+)?) ?g(?:i?b)?\b")  # not the 4G of T4G
_FORM = re.compile(r"(sxm|pcie|nvl\b)\d*")
_MEMORY_TYPE = re.compile(r"\bhbm\d\w?\b")
_ASIDE = re.compile(r"\(.*?\)")
_MEMORY_TOLERANCE = 0.1
"""The tolerance of memory sizes. EC2 reports 22888 MiB for nominal 24 GB; sizes of variants differ by more than
this."""


class GpuName(NamedTuple):
    """The parts of a name. Memory and form are empty if the name does not contain them."""

    base: str
    memories_gib: tuple[float, ...]
    form: str


@lru_cache(maxsize=4096)
def parse(name: str) -> GpuName:
    """The parts of a GPU's name, in any spelling."""
    text = _VENDOR.sub(" ", _ASIDE.sub(" ", name.lower()).replace("_", " "))
    memories = tuple(float(number) for number in _MEMORY.findall(text))
    form = _FORM.search(text)
    rest = _MEMORY_TYPE.sub(" ", _FORM.sub(" ", _MEMORY.sub(" ", text)))
    return GpuName(_letters(rest), memories, form.group(1) if form else "")


def matching(name: str, gpus: Sequence[Gpu], memory_gib: float | None = None) -> list[Gpu]:
    """The GPUs that a name can mean, in the order of the table. An exact name or alias means only one."""
    spelled = _spelling(name)
    exact = [gpu for gpu in gpus if spelled in {_spelling(known) for known in (gpu.gpu_model, *gpu.aliases)}]
    if exact:
        return exact
    wanted = parse(name)
    memories = (memory_gib,) if memory_gib is not None else wanted.memories_gib
    return [gpu for gpu in gpus if _fits(gpu, wanted, memories)]


def resolve(name: str, gpus: Sequence[Gpu], memory_gib: float | None = None) -> Gpu:
    """The GPU a name means; `memory_gib` tells variants apart that an API calls by one name.

    Raises CatalogError naming the closest where there is none.
    """
    found = matching(name, gpus, memory_gib)
    if found:
        return found[0]
    raise CatalogError(unknown("GPU", name, [gpu.gpu_model for gpu in gpus]))


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """One line for an unknown name, with the closest known names."""
    from difflib import get_close_matches  # needed for errors only

    spelled = {text.lower(): text for text in known}
    close = get_close_matches(name.strip().lower(), list(spelled), n=3, cutoff=0.5)
    hint = f"closest: {', '.join(spelled[text] for text in close)}" if close else "see `ddlprof instances`"
    return f"unknown {kind} {shown(name)}; {hint}"


def _fits(gpu: Gpu, wanted: GpuName, memories_gib: Sequence[float]) -> bool:
    own = parse(gpu.gpu_model)
    if own.base != wanted.base or (wanted.form and own.form != wanted.form):
        return False
    if not memories_gib or gpu.memory_gib is None:
        return True
    return any(abs(gpu.memory_gib / memory - 1) <= _MEMORY_TOLERANCE for memory in memories_gib if memory)


@lru_cache(maxsize=4096)
def _spelling(name: str) -> str:
    return _letters(_VENDOR.sub(" ", name.lower().replace("_", " ")))


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text)
