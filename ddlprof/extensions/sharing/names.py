"""Replaces the names in a shared run by numbers, the same number everywhere for the same name.

Words chosen by torch, ddlprof or a manufacturer are kept. Each kind of word has a list or a pattern of its own.
"""

from __future__ import annotations

import re
from collections.abc import Container
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from ddlprof.model import source_locations
from ddlprof.model.dimensions import DIMENSIONS, UNKNOWN
from ddlprof.model.health import COUNTERS
from ddlprof.model.issuers import ISSUERS
from ddlprof.model.operators import BACKWARD, BY_PLACE, CAUSAL
from ddlprof.model.records import SPANS

ANYBODY = "any"
"""Part of the name of a group that is analysed differently (`ddlprof.analysis.stragglers`), so it is kept."""
_CHANNEL = re.compile(r"(?P<group>.*):(?P<way>(?:\d{1,9}|any)>\d{1,9}(?:#-?\d{1,12})?)", re.DOTALL)
"""The channel of a message, which stands in place of a group; see `ddlprof.collect.hooks.collective`."""
_GROUP_NUMBER = re.compile(r"\d{1,4}")
_FAMILIES = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")
"""Beginnings of the names of operations that all ranks do alike, without underscores."""
_OPERATIONS = frozenset(
    f"{before}{name}{after}"
    for before in ("", "_")
    for name in (
        "allreduce", "all_reduce", "allgather", "all_gather", "reduce_scatter", "alltoall", "all_to_all", "broadcast",
        "reduce", "gather", "scatter", "barrier", "monitored_barrier", "send", "recv", "isend", "irecv",
        "recv_any_source", "reducescatter", "sendrecv",
    )
    for after in (
        "", "_", "_base", "_base_", "_coalesced", "_coalesced_", "_tensor", "_tensor_coalesced", "_into_tensor",
        "_into_tensor_coalesced", "_into_tensor_coalesced_", "_tensor_coalesced_", "_single", "_sparse", "_sparse_",
        "_object", "_v",
    )
)  # fmt: skip
_PLACES = frozenset(
    {
        source_locations.LIBRARY, source_locations.FORWARD, source_locations.EVALUATION, source_locations.ROLLOUT,
        source_locations.CHECKPOINT, source_locations.LOGGING, source_locations.RESULT, source_locations.SLEEP,
        source_locations.ENVIRONMENT, source_locations.PLOT, source_locations.METRIC, source_locations.COPY,
        source_locations.COLLECT, source_locations.LOOP, source_locations.OWN_LOOP, source_locations.UPDATE,
        source_locations.BETWEEN, source_locations.STEPPING, source_locations.START, source_locations.START_ITEMS,
        source_locations.START_WAITS, source_locations.MAKES_GROUPS,
        source_locations.PARAMETRIZED, source_locations.NETWORK, source_locations.DECOMPOSES, source_locations.DERIVES,
        source_locations.DERIVES_EACH, source_locations.ONE_HOT, source_locations.CONSTANT, source_locations.WRITES,
        source_locations.JOINS, source_locations.EACH, source_locations.MODULE, source_locations.PRECONDITIONS,
        *source_locations.data_work(),
        *source_locations.data_words(),
        *ISSUERS,
    }
)  # fmt: skip
_SOURCES = frozenset(
    {"h2d", "comm", "data", "collectives", "windows", "module", "compiled", "features", "context", "stacks", "hooks",
     "graphs", "calibration", "manifest", "helper", "recorder", "optimizer", "update"}
)  # fmt: skip
_OPTIMIZERS = frozenset(
    name
    for each in (
        "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "Muon", "NAdam", "RAdam",
        "RMSprop", "Rprop", "SGD", "SparseAdam", "ZeroRedundancyOptimizer", "LAMB", "Lion", "none",
    )
    for name in (each, each.lower())
)  # fmt: skip
_PRECISIONS = frozenset({"fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "amp-bf16", "amp-fp16"})
_TYPES = _PRECISIONS | {"int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128", "fp4", "int4"}
_STRATEGIES = frozenset({"none", "ddp", "fsdp", "zero", "tp", "pp", "cp", "ep", "dp", "other"})
_BACKENDS = frozenset(
    {"nccl", "gloo", "mpi", "ucc", "ccl", "xccl", "hccl", "cpu", "cuda", "xpu", "hpu", "mps", "undefined"}
)
_SCHEDULES = frozenset(
    f"Schedule{name}"
    for name in ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
)
_LIST = re.compile(r"[\dFBIW,/]*")
"""Numbers, pairs of them, or actions of a pipeline's schedule, with commas between them."""
_COMM_HOOKS = frozenset(
    {"", "allreduce_hook", "fp16_compress_hook", "bf16_compress_hook", "fp16_compress_wrapper", "bf16_compress_wrapper",
     "powerSGD_hook", "batched_powerSGD_hook", "quantization_pertensor_hook", "quantization_perchannel_hook",
     "noop_hook", "post_localSGD_hook", "reducer"}
)  # fmt: skip
_PACKAGES = frozenset({"python", "torch", "ddlprof", "cuda"})
_VERSION = re.compile(
    r"\d{1,4}(?:\.\d{1,4}){0,3}(?:(?:a|b|rc|\.post|\.dev)\d{1,8})?(?:\+(?:cpu|cu\d{2,3}|rocm\d[\d.]{0,7}))?"
)
_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu", "hpu", "npu", "tpu"})
_GPU_NAMES = """
NVIDIA AMD Intel Tesla GeForce RTX GTX Quadro TITAN Instinct Radeon Gaudi MIG PCIe PCIE SXM SXM2 SXM3 SXM4 SXM5 NVL HBM2
HBM2e HBM3 HBM3e Ti SUPER Super Ada Generation Laptop GPU Pro Max Q OAM Graphics Data Center Grace Blackwell Server
Workstation Edition Turing Ampere Hopper PRO SE V Xp
"""
_GPU_WORDS = frozenset(_GPU_NAMES.split())
_GPU_MODEL = re.compile(r"[A-Z]{1,3}\d{1,4}[A-Z]{0,2}|\d{4}(?:Ti)?|\d{1,3}GB|\dg\.\d{1,3}gb")
_GPU_WORDS_MOST = 10


class Pseudonyms:
    """The replacements in one run. `job_id` replaces the job's id."""

    def __init__(self, job_id: str = "shared") -> None:
        self.job_id = job_id
        self._numbers: dict[str, dict[str, int]] = {}

    def number(self, kind: str, name: Any) -> int:
        """The number of a name among those of its kind, from 0, in the order of the first calls."""
        numbers = self._numbers.setdefault(kind, {})
        return numbers.setdefault(_text(name), len(numbers))

    def counts(self) -> dict[str, int]:
        """The number of replaced names of each kind."""
        return {kind: len(numbers) for kind, numbers in self._numbers.items()}

    def host(self, name: Any) -> str:
        """`host-0`: the replacement of a host's name."""
        return f"host-{self.number('host', name)}"

    def node(self, name: Any) -> str:
        """`node-0`: the replacement of a machine's identity."""
        return f"node-{self.number('machine id', name)}"

    def group(self, name: Any) -> str:
        """The replacement of a process group, or of the channel of a message between two of its ranks."""
        found = _CHANNEL.fullmatch(_text(name))
        if found:
            return f"{self._group(found['group'])}:{found['way']}"
        return self._group(_text(name))

    def _group(self, name: str) -> str:
        if _GROUP_NUMBER.fullmatch(name):
            return name
        any_in_it = ANYBODY if ANYBODY in name else ""
        return f"group-{self.number('process group', name)}{any_in_it}"

    def operation(self, name: Any) -> str:
        """A collective or message by torch's name. Of another name only the family is kept, such as `allreduce_0`."""
        if _text(name) in _OPERATIONS:
            return str(name)
        family = next((each for each in _FAMILIES if _text(name).replace("_", "").startswith(each)), "operation")
        return f"{family}_{self.number('operation', name)}"

    def port(self, name: Any) -> str:
        """`port 1`: the replacement of the name of a network interface."""
        return f"port {self.number('port', name) + 1}" if _text(name) else ""

    def place(self, text: Any) -> str:
        """`line 1`: the replacement of a place in the sources."""
        return f"line {self.number('source line', text) + 1}"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


class Words(NamedTuple):
    """The words of one kind that are kept, and what stands in place of any other."""

    known: Container[str]
    other: str | None
    """None: there must be no other word."""

    def kept(self, word: Any) -> str:
        """The word, or what stands in place of it. Raises ValueError for no text, and for a word that must not be."""
        if _text(word) in self.known:
            return str(word)
        if self.other is None:
            raise ValueError("not one of ddlprof's words")
        return self.other

    def kept_if_told(self, word: str | None) -> str | None:
        """The same; None stays None."""
        return None if word is None else self.kept(word)


WORK = Words(_PLACES, "")
"""Kinds of work at a place in the sources."""
SPAN, COUNTER, DIMENSION = Words(SPANS, None), Words(COUNTERS, None), Words((*DIMENSIONS, UNKNOWN), None)
"""What a job did besides steps, counters of a sick machine, and dimensions of the layout."""
STATUS = Words(frozenset({"ok", "exception", "exit", "interrupt", "stopped"}), "exit")
"""How a rank ended."""
SOURCE = Words(_SOURCES, "ddlprof")
"""The parts of ddlprof that notes come from."""
CLOCK = Words(("host", "device"), "host")
OPTIMIZER = Words(_OPTIMIZERS, "optimizer")
PRECISION = Words(_PRECISIONS, "other")
DTYPE = Words(_TYPES, "other")
SCHEDULE = Words(_SCHEDULES, "other")
COMM_HOOK = Words(_COMM_HOOKS, "hook")


def device(name: Any) -> str:
    """The model of a device if it consists of words that manufacturers use; otherwise `device`."""
    words = re.split(r"[ /-]+", _text(name))
    known = all(word in _GPU_WORDS or _GPU_MODEL.fullmatch(word) for word in words) and len(words) <= _GPU_WORDS_MOST
    return str(name) if name in _DEVICES or known else "device"


def precision(name: str | None) -> str | None:
    """The precision; None for a word that is not ddlprof's."""
    return name if name in _PRECISIONS else None


def strategy(name: str | None) -> str | None:
    """The strategy: one word or several joined by `+`."""
    return None if name is None else "+".join(each if each in _STRATEGIES else "other" for each in name.split("+"))


def backend(name: str | None) -> str | None:
    """The backend, such as `nccl` or `cpu:gloo,cuda:nccl`."""
    known = name is not None and all(word in _BACKENDS for word in re.split("[:,]", name))
    return name if known else None


def plain_list(text: Any) -> str:
    """A list of numbers or of actions as a text. Raises ValueError if it is none."""
    if not isinstance(text, str) or not _LIST.fullmatch(text):
        raise ValueError("not a list of numbers")
    return text


def versions(found: dict[str, str]) -> dict[str, str]:
    """The versions of packages that matter for the analysis, if they have the form of versions."""
    return {name: text for name, text in found.items() if name in _PACKAGES and _VERSION.fullmatch(text)}


def version(text: Any) -> str | None:
    """The text if it has the form of a version."""
    return text if isinstance(text, str) and _VERSION.fullmatch(text) else None


def operator(name: str, kind: str) -> str:
    """The name of an operator if it is one of torch's; otherwise its kind."""
    known = _operator_names()
    plain = name.removesuffix(BY_PLACE).removesuffix(BACKWARD).removesuffix(CAUSAL)
    return name if known & {name, plain, f"_{plain}"} else kind


@cache
def _operator_names() -> frozenset[str]:
    return frozenset(
        files("ddlprof.extensions.sharing").joinpath("operator_names.txt").read_text(encoding="ascii").split()
    )
