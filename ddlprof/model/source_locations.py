"""A place in the sources at which time goes to `other` or a batch is made, and the kind of work there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ddlprof.model.annotations import Shared, SharedAs

LIBRARY = "library"
"""Not a line of the user's, but the function of an installed package that its training loop calls."""
FORWARD = "forward"
"""A forward pass that does not count as computing: without gradients, or of a module that is not timed."""
EVALUATION = "evaluation"
"""Such a forward pass in a step that evaluates."""
ROLLOUT = "rollout"
"""Such a forward pass of the trained model itself, which acts or generates for its training."""
CHECKPOINT = "checkpoint"
LOGGING = "logging"
RESULT = "result"
"""The line waits for a result of the device (`.item()`)."""
SLEEP = "sleep"
ENVIRONMENT = "environment"
"""An environment of reinforcement learning makes a step."""
PLOT = "plot"
METRIC = "metric"
COPY = "copy"
"""The line copies objects or the states of a model."""
NETWORK = "network"
"""The line waits for an answer of another machine or service."""
WRITES = "writes"
"""The line writes to a file."""
JOINS = "joins"
"""The line joins arrays or tensors to one."""
MAKES_GROUPS = "makes groups"
"""The line makes a process group."""
COLLECT = "collect"
"""The line calls the garbage collector."""
LOOP = "loop"
"""Of computing: the first line of a loop in the user's code, outside of the optimizer."""
EACH = "each module"
"""Such a loop that calls modules and hands nothing from one round to the next."""
OWN_LOOP = "own loop"
"""A loop as in `LOOP` that calls no module: it is in the loss, or in the forward of a module. Of `other`: any loop that
repeats the line that the thread is at."""
PARAMETRIZED = "parametrized"
"""A line in a loop for which a parametrization of torch's computes a weight anew."""
DECOMPOSES = "decomposes"
"""Of forwards and losses: a line that decomposes or inverts matrices."""
DERIVES = "derives"
"""The same for a line that computes gradients (`torch.autograd.grad`) which have gradients themselves."""
DERIVES_EACH = "derives each"
"""The same for a line in a loop of the script that computes gradients."""
ONE_HOT = "one-hot"
"""The same for a line that makes one-hot vectors."""
CONSTANT = "constant"
"""The same for a line that makes tensors of sizes alone, such as a mask."""
MODULE = "module"
"""The same for a line that calls a module of torch's or another package's."""
UPDATE = "update"
"""Of computing: the first line of a loop in the user's code, in an optimizer."""

BETWEEN = "between"
"""Of computing: the first line of a loop in the user's code, after the backward and before the update."""
STEPPING = "stepping"
"""Of computing: a line of the user's in no such loop, after the backward or in an optimizer."""
PRECONDITIONS = "preconditions"
"""Such a line that decomposes or inverts matrices, in a loop or not."""
START = "start-up"
"""The line that works before the first step."""
START_ITEMS = "start-up items"
"""Such a line that makes samples of a data set."""
START_WAITS = "start-up waits"
"""A line that waits for other ranks before the first step."""

DATA = "data"
"""The line at which a batch is made, and after it one of the next words, if it is known what the line does."""
DATA_CALLER = "data caller"
"""The user's outermost line when a batch is made, which called what is in the others."""
OPENS = "opens"
"""Opens a file with many samples."""
LISTS = "lists"
"""Makes a tensor of a list."""
DRAWS = "draws"
TOKENISES = "tokenises"
DECODES = "decodes"
TABLES = "tables"
"""Takes a row out of a table."""
QUERIES = "queries"
"""Asks a database."""
PARSES = "parses"
"""Makes objects of text or bytes."""
READS = "reads"
"""Reads all lines of a file."""
UNPACKS = "unpacks"
"""Decompresses data."""
COPIES = "copies"
"""Copies the objects of a sample, with all that is in them."""
ASKS = "asks"
"""Asks the process of a `multiprocessing.Manager`."""
PROGRAMS = "programs"
"""Starts a program or processes, or waits for a program to end."""
SEARCHES = "searches"
"""Lists the files of a folder."""
FINDS = "finds"
"""Searches a list for a value."""
LOCKS = "locks"
"""Takes the lock of a file."""
TURNS = "turns"
"""Takes a lock or semaphore of multiprocessing."""
STARTS = "starts"
"""Starts a loader's workers."""
SAMPLER = "sampler"
"""A sampler draws the numbers of samples."""
PER_SAMPLE = "per sample"
"""Code of torch's that takes single samples and joins them."""
NESTED = "nested"
"""Data sets of torch's in data sets of torch's ask each other for a sample."""

TENSOR = "tensor"
"""Makes the tensor of one sample, which is soon done, but lets the interpreter's lock go."""
WHOLE = "whole"
"""Code of torch's that takes whole batches by their indices."""


def in_data(what: str) -> str:
    """The word for a line at which a batch is made and that does this."""
    return f"{DATA} {what}" if what else DATA


def data_work() -> tuple[str, ...]:
    """What a line does to make a batch: with `in_data` of a loader's, else of a loop that loads its batches itself."""
    return (OPENS, LISTS, DRAWS, TOKENISES, DECODES, TABLES, QUERIES, PARSES, SEARCHES, READS, UNPACKS, COPIES, ASKS,
            FINDS, PROGRAMS, *in_turns())  # fmt: skip


def in_turns() -> tuple[str, ...]:
    """What a line does that waits while another process is there."""
    return (LOCKS, TURNS)


def data_words() -> tuple[str, ...]:
    """All words for places at which batches are made."""
    return (DATA_CALLER, *map(in_data, ("", *data_work(), STARTS, SAMPLER, PER_SAMPLE, NESTED, TENSOR, WHOLE)))


class SourceLocation(NamedTuple):
    """A place as `file:line function`, and one of the words above or of `ddlprof.model.issuers`; empty if the kind of
    work is not known."""

    text: str
    what: str = ""
    caller: str = ""
    """The line of the user's that led there from the training loop, where it is another one."""

    @property
    def is_of_data(self) -> bool:
        """Whether a batch is made there, so that its time is no `other`."""
        return self.what.partition(" ")[0] == DATA

    @property
    def is_of_start(self) -> bool:
        """Whether the job is there before its first step."""
        return self.what in (START, START_ITEMS, START_WAITS)


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A place in the sources. Written once and referred to by number."""

    number: Shared[int]
    text: Annotated[str, SharedAs("place")]
    what: Annotated[str, SharedAs("work")] = ""
    caller: Annotated[str, SharedAs("place")] = ""
