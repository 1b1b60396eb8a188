"""Looks once at what is trained and how: the module, its loader, and the floating point operations of one step.

Called from the hooks of the training thread in the first steps only; afterwards each call is one comparison.
Nothing of the user's is kept alive, and nothing is changed: an error ends the inspection and reaches nobody.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

from ddlprof.base.guarded import attempt
from ddlprof.collect.accelerator import known
from ddlprof.collect.drops import FACT
from ddlprof.collect.facts.optimizer_facts import Update, update_of
from ddlprof.collect.loader.batch import arguments_bytes, arguments_tensors
from ddlprof.collect.recorder import Recorder
from ddlprof.model.events import Kind
from ddlprof.model.operators import Layer
from ddlprof.operators.features import ParameterBytes, outermost
from ddlprof.operators.graph_flops import GraphFlops
from ddlprof.operators.graph_reader import GraphReader, storages, storages_of
from ddlprof.operators.parallel import pipeline_ranks
from ddlprof.operators.parameters import own_parameters
from ddlprof.torch_private.engine import no_torch_function

_LOADER_FACTS = ("pin_memory", "persistent_workers", "prefetch_factor")
_COUNTED_STEP = 1
"""The second step: the first one allocates, compiles and initialises lazily."""
_MOST_UPDATES = 4
"""By other optimizers than the first one, before it is its turn again."""


class ModelInspector:
    """What was seen of the model and its data; read by the helper thread after some steps."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.autocast: str | None = None
        self.loader_workers: int | None = None
        self.loader: dict[str, Any] = {}
        """Other facts of it, by their name in the manifest."""
        self.dataset_samples: int | None = None
        self.flops = GraphFlops()
        self.counted: tuple[float, float] | None = None
        """Operations of a micro-batch, forward and backward, worked out while there is a model."""
        self.graphs = GraphReader()
        self.backwards = 0
        """In the step whose graphs are read, whether there was time to read them or not."""
        self.updates: dict[int, Update] = {}
        """The update of each optimizer, by its id."""
        self.owned: frozenset[int] = frozenset()
        """Where the memory of parameters, buffers and the batch begins."""
        self.inputs: frozenset[int] = frozenset()
        self.input_bytes: int | None = None
        """Of the last micro-batch that was looked at, over all models."""
        self.sizes: ParameterBytes | None = None
        """Of the parameters, worked out while there is a model."""
        self.layers: tuple[Layer, ...] = ()
        """Worked out while there is a model, as the two above."""
        self.pipeline_ranks = 1
        self._modules: dict[int, weakref.ref[Any]] = {}
        self._counting = self._reading = self._round_is_over = False
        self._first_optimizer: int | None = None
        self._failed: set[str] = set()

    @property
    def modules(self) -> list[Any]:
        """The outermost modules that are trained, the largest first; those that are gone are left out."""
        return outermost(module for ref in self._modules.values() if (module := ref()) is not None)

    @property
    def all_alive(self) -> bool:
        """Whether none of the modules seen is gone."""
        return all(ref() is not None for ref in self._modules.values())

    def training_forward(self, module: Any, inputs: Any) -> None:
        """Runs before an outermost forward with gradients; in a compiled function the module may not be known: None."""
        if self.recorder.boundaries <= _COUNTED_STEP:
            try:
                self._look(module)
                self.input_bytes = arguments_bytes(inputs)
                if self.recorder.boundaries == _COUNTED_STEP and not self.backwards:
                    self.inputs |= storages_of(arguments_tensors(inputs))
            except Exception as error:
                self.failed("module", error)

    def _look(self, module: Any) -> None:
        import torch

        if module is not None:
            seen = self._modules.get(id(module))
            with no_torch_function(torch):  # of parameters that are a tensor class of the script's
                trained = any(p.requires_grad for p in own_parameters(module))
            if trained and (seen is None or seen() is not module):
                self._modules[id(module)] = weakref.ref(module)
        self.pipeline_ranks = max(self.pipeline_ranks, pipeline_ranks())
        accelerator = known.in_use()
        device = "cpu" if accelerator is None else accelerator.kind
        if torch.is_autocast_enabled(device):
            self.autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")

    def backward_begin(self, roots: Any, nested: bool, kept: bool) -> None:
        """A backward of the training thread begins, see `GraphFlops.count`."""
        try:  # no context manager: dynamo would look at it
            if self.recorder.boundaries == _COUNTED_STEP:
                if not nested:
                    self._counting = not self.flops.enough
                    if self._counting and not self.flops.microbatches:
                        self.recorder.emit(Kind.TRACED)
                if self._counting:
                    self.flops.count(roots, nested, kept)
            if self._in_round:
                self._read(roots, nested, kept)
        except Exception as error:
            self.failed("operations", error)

    @property
    def _in_round(self) -> bool:
        """Whether this is the step whose operators are read: from the first update to the next of that optimizer."""
        updates = self.recorder.boundaries
        if self._first_optimizer is None:
            return updates == _COUNTED_STEP
        return not self._round_is_over and _COUNTED_STEP <= updates <= _MOST_UPDATES

    def _read(self, roots: Any, nested: bool, kept: bool) -> None:
        if not nested:
            self._reading = not self.graphs.enough
            self.backwards += 1
            if self._reading and self.recorder.boundaries > _COUNTED_STEP:
                self.recorder.emit(Kind.TRACED)
            if self.backwards == 1:
                self.owned = storages(self.modules) | self.inputs
        if self._reading:
            self.graphs.read(roots, nested, kept)

    def update_begin(self, optimizer: Any) -> None:
        """An outermost update begins: in the step whose operators are read, what it updates is read, too."""
        if self.recorder.boundaries < _COUNTED_STEP:
            self._first_optimizer = id(optimizer)
        elif self._in_round:
            self._round_is_over = self._first_optimizer in (None, id(optimizer))
            update = attempt(lambda: update_of(optimizer))  # of a duck-typed one, what is missing is not told
            if update is not None:
                self.updates[id(optimizer)] = update

    def forget_graphs(self) -> None:
        """What was read of the graphs is worked out, or of no use."""
        self.graphs.graphs.clear()
        self.owned = self.inputs = frozenset()

    def failed(self, fact: str, error: Exception) -> None:
        """A fact could not be read: counted once, however often it is tried again."""
        if fact not in self._failed:
            self._failed.add(fact)
            self.recorder.drops.add(FACT, f"{fact}: {type(error).__name__}: {error}")

    def iterated(self, loader: Any) -> None:
        """A loader was asked for an iterator; the first one is taken for the training data's."""
        if self.loader_workers is None:
            self.loader = {name: getattr(loader, name, None) for name in _LOADER_FACTS}
            with contextlib.suppress(Exception):  # an iterable data set has no length
                self.loader_workers = int(loader.num_workers)
                self.dataset_samples = len(loader.dataset)
