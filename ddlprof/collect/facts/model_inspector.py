"""Inspects what is trained and how: the modules, their loader, and the floating point operations of one step.

The hooks of the training thread call it in the first steps; afterwards each call costs one comparison. It keeps only
weak references to the script's modules and changes nothing. An error ends the inspection of that fact and never reaches
the script.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from ddlprof.base.guarded import attempt
from ddlprof.collect.accelerator import known
from ddlprof.collect.drops import FACT
from ddlprof.collect.facts.ddp_switches import DdpSwitches
from ddlprof.collect.facts.kept_graphs import KeptGraphs
from ddlprof.collect.facts.optimizer_facts import Update, update_of
from ddlprof.collect.facts.subnormals import Subnormals
from ddlprof.collect.facts.switches import Switches
from ddlprof.collect.loader.batch import arguments_bytes, arguments_tensors
from ddlprof.collect.loader.batch_parts import BatchParts
from ddlprof.collect.loader.orders import Orders
from ddlprof.collect.loader.tokens import TextBatches
from ddlprof.collect.recorder import Recorder
from ddlprof.model.amounts import COUNTED_UPDATE
from ddlprof.model.events import Kind
from ddlprof.model.operators import Layer
from ddlprof.operators.features import ParameterBytes, outermost
from ddlprof.operators.graph_flops import GraphFlops
from ddlprof.operators.graph_reader import GraphReader, storages, storages_of
from ddlprof.operators.needless import NeedlessGradients
from ddlprof.operators.parallel import pipeline_ranks
from ddlprof.operators.parameters import own_parameters
from ddlprof.torch_private.engine import no_torch_function

_LOADER_FACTS = ("pin_memory", "persistent_workers", "prefetch_factor", "in_order")

"""The step whose operations are counted, from 0: the second, because the first one allocates, compiles and
initialises."""
_MOST_UPDATES = 4
"""The number of updates after which the inspector stops waiting for the first optimizer's next update."""


class ModelInspector:
    """What was seen of the model and its data. The hooks fill it in; the helper thread reads it after some steps."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.autocast: str | None = None
        self.loader_workers: int | None = None
        self.loader: dict[str, Any] = {}
        """Further settings of the loader, by their names in the manifest."""
        self.dataset_samples: int | None = None
        self.flops = GraphFlops()
        self.counted: tuple[float, float] | None = None
        """FLOPs of one micro-batch, of forward and of backward. Computed while the modules are alive."""
        self.recomputed: float | None = None
        """The part of the backward's in which a forward is done again."""
        self.graphs = GraphReader()
        self.backwards = 0
        """The backward passes in the step whose graphs are read, including those that there was no time to read."""
        self.updates: dict[int, Update] = {}
        """The update of each optimizer, by the optimizer's `id`."""
        self.owned: frozenset[int] = frozenset()
        """Addresses of the storages of parameters, buffers and batch: memory that does not belong to activations."""
        self.inputs: frozenset[int] = frozenset()
        self.input_bytes: int | None = None
        """The bytes of the inputs of the last micro-batch that was looked at."""
        self.sizes: ParameterBytes | None = None
        """Sizes of the parameters. Computed while the modules are alive."""
        self.layers: tuple[Layer, ...] = ()
        """The layers of the model. Computed while the modules are alive."""
        self.pipeline_ranks = 1
        self.frozen = False
        """Whether a forward with gradients was seen of a module with a parameter that is not trained."""
        self.text = TextBatches()
        self.parts = BatchParts()
        self.orders = Orders()
        self.ddp = DdpSwitches()
        self.switches = Switches()
        self.needless = NeedlessGradients()
        self.kept_graphs = KeptGraphs()
        self.subnormals = Subnormals()
        self._modules: dict[int, weakref.ref[Any]] = {}
        self._counting = self._reading = self._round_is_over = False
        self._first_optimizer: int | None = None
        self._failed: set[str] = set()

    @property
    def modules(self) -> list[Any]:
        """The outermost trained modules that are still alive, the largest first."""
        with no_torch_function():  # the script's tensor classes are not asked
            return outermost(self._alive())

    @property
    def _trains(self) -> bool:
        """Whether a forward with gradients or an update was seen."""
        return bool(self._modules) or self.recorder.boundaries > 0

    def _alive(self) -> Iterator[Any]:
        return (module for ref in self._modules.values() if (module := ref()) is not None)

    @property
    def all_alive(self) -> bool:
        """Whether all modules that were seen are still alive."""
        return all(ref() is not None for ref in self._modules.values())

    def at_update(self, updates: int) -> None:
        """Called in the training thread after the first updates, and then ever more rarely."""
        attempt(self.switches.look_at_hooks)
        attempt(lambda: self.ddp.look(sys.modules["torch"], self._alive(), updates), "ddp", self.failed)
        attempt(lambda: self.needless.look(updates), "needless gradients", self.failed)
        attempt(lambda: self.kept_graphs.look(updates), "kept graphs", self.failed)
        attempt(self.flops.look_at_zeros, "operations", self.failed)
        attempt(lambda: self.subnormals.look(updates), "subnormal numbers", self.failed)

    def mark_graph(self, made: Any) -> None:
        """Called in the first steps with what an outermost forward returns, and with the roots of a backward."""
        try:
            self.kept_graphs.mark(made, self.recorder.boundaries)
        except Exception as error:
            self.failed("kept graphs", error)

    def training_forward(self, module: Any, inputs: Any) -> None:
        """Called before an outermost forward pass with gradients. `module` may be None in a compiled function."""
        try:
            self.text.forward(module, inputs)
        except Exception as error:
            self.failed("tokens", error)
        if self.recorder.boundaries <= COUNTED_UPDATE:
            try:
                self._look(module)
                self.input_bytes = arguments_bytes(inputs)
                if self.recorder.boundaries == COUNTED_UPDATE and not self.backwards:
                    self.inputs |= storages_of(arguments_tensors(inputs))
            except Exception as error:
                self.failed("module", error)

    def loaded(self, batch: Any) -> None:
        """Called with a batch of a loader in the first steps."""
        self.text.loaded(batch)
        self.parts.loaded(batch)

    def _look(self, module: Any) -> None:
        import torch

        if module is not None:
            seen = self._modules.get(id(module))
            with no_torch_function(torch):  # parameters may be of a tensor subclass
                train = {p.requires_grad for p in own_parameters(module)}
            trained, self.frozen = True in train, self.frozen or False in train
            if trained and (seen is None or seen() is not module):
                self._modules[id(module)] = weakref.ref(module)
        self.pipeline_ranks = max(self.pipeline_ranks, pipeline_ranks())
        accelerator = known.in_use()
        device = "cpu" if accelerator is None else accelerator.kind
        if torch.is_autocast_enabled(device):
            self.autocast = str(torch.get_autocast_dtype(device)).removeprefix("torch.")

    def backward_begin(self, roots: Any, nested: bool, kept: bool, created: bool = False) -> None:
        """Called when a backward pass begins in the training thread; for the arguments see `GraphFlops.count`."""
        self.mark_graph(roots)
        if not nested:
            self.kept_graphs.backward(kept, self.recorder.boundaries)
            self._gradients_begin(roots)
        try:  # no context manager, which torch.compile would trace
            if self.recorder.boundaries == COUNTED_UPDATE:
                if not nested:
                    self._counting = not self.flops.enough
                    if self._counting and not self.flops.microbatches:
                        self.recorder.emit(Kind.TRACED)
                if self._counting:
                    self.flops.count(roots, nested, kept, created)
            if self._in_round:
                self._read(roots, nested, kept)
        except Exception as error:
            self.failed("operations", error)

    def _gradients_begin(self, roots: Any) -> None:
        try:
            self.needless.backward(roots, self._in_round)
        except Exception as error:
            self.failed("needless gradients", error)

    @property
    def _in_round(self) -> bool:
        """Whether operators are read now: between the first update and the next update of the same optimizer."""
        updates = self.recorder.boundaries
        if self._first_optimizer is None:
            return updates == COUNTED_UPDATE
        return not self._round_is_over and COUNTED_UPDATE <= updates <= _MOST_UPDATES

    def _read(self, roots: Any, nested: bool, kept: bool) -> None:
        if not nested:
            self._reading = not self.graphs.enough
            self.backwards += 1
            if self._reading and self.recorder.boundaries > COUNTED_UPDATE:
                self.recorder.emit(Kind.TRACED)
            if self.backwards == 1:
                self.owned = storages(self.modules) | self.inputs
        if self._reading:
            self.graphs.read(roots, nested, kept)

    def update_begin(self, optimizer: Any) -> None:
        """Called when an outermost update begins. Reads the optimizer if this is the step whose operators are read."""
        attempt(lambda: self.needless.update(optimizer))
        attempt(lambda: self.subnormals.update(optimizer))
        if self.recorder.boundaries < COUNTED_UPDATE:
            self._first_optimizer = id(optimizer)
        elif self._in_round:
            self._round_is_over = self._first_optimizer in (None, id(optimizer))
            update = attempt(lambda: update_of(optimizer))  # it may only resemble an optimizer
            if update is not None:
                self.updates[id(optimizer)] = update

    def forget_graphs(self) -> None:
        """Frees the graphs that were read, once they are evaluated or not needed."""
        self.graphs.graphs.clear()
        self.owned = self.inputs = frozenset()

    def failed(self, fact: str, error: Exception) -> None:
        """Notes that a fact could not be read. Each fact is counted once."""
        if fact not in self._failed:
            self._failed.add(fact)
            self.recorder.drops.add(FACT, f"{fact}: {type(error).__name__}: {error}")

    def iterated(self, loader: Any) -> None:
        """Called when a loader is asked for an iterator. The first loader is taken for that of the training data; the
        next one in place of one that gave batches before the training, as for an evaluation or a mean."""
        attempt(lambda: self.orders.iterated(loader))
        if self.loader_workers is None or (self.parts.bytes is not None and not self._trains):
            self.loader_workers = self.dataset_samples = None
            self.parts = BatchParts()
            self.loader = {name: getattr(loader, name, None) for name in _LOADER_FACTS}
            with contextlib.suppress(Exception):  # an iterable data set has no length
                whole = loader.batch_size is None and loader.batch_sampler is None
                self.loader["whole_batches"] = whole or hasattr(type(loader.dataset), "__getitems__")
                self.loader_workers = int(loader.num_workers)
                if self.loader_workers:
                    self.loader["worker_start"] = _start_method(loader)
                    self.parts.repeats.begin(loader)
                self.dataset_samples = len(loader.dataset)


def _start_method(loader: Any) -> str | None:
    """How the workers of a loader were started: fork, spawn or forkserver."""
    multiprocessing: Any = loader.multiprocessing_context or sys.modules.get("multiprocessing")
    method: str | None = multiprocessing.get_start_method(allow_none=True)
    return method
