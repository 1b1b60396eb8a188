"""Counts and settings of a model and its training, found by inspection only.

It never changes the module, allocates, draws random numbers or communicates, and imports nothing that the script has
not imported. What cannot be determined is None.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

from ddlprof.base.guarded import Failed, attempt, class_names, nobody
from ddlprof.model.manifest import ModelFacts
from ddlprof.model.operators import MOST_LAYERS, Layer
from ddlprof.operators.parallel import pieces
from ddlprof.operators.parameters import own_buffers, own_parameters
from ddlprof.torch_private import collectives, modules, sharding

_MOST_NAMES = 3
_MOST_NAME = 200
"""The most characters of a layer's name. The end is kept, as it tells more than the beginning."""
_PRECISIONS = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def model_facts(module: Any, *others: Any, failed: Failed = nobody) -> ModelFacts:
    """Facts of the model in `module`, which may be wrapped. FLOPs are not counted here.

    `others`: modules that are trained as well, such as the discriminator of a GAN. What two of them share counts once.
    """
    whole = JoinedModules([module, *others]) if others else module
    parameters = attempt(lambda: list(_parameters(whole)), "parameters", failed)
    distinct = {p.key: p for p in parameters}.values() if parameters is not None else None
    trained = [p for p in distinct if p.trained] if distinct is not None else None
    return ModelFacts(
        name=attempt(lambda: _joined([model_name(each) for each in (module, *others)]), "name", failed),
        layers=None if parameters is None else attempt(lambda: _layers(whole, parameters), "layers", failed),
        parameter_tensors=None if trained is None else len(trained),
        parameters=None if distinct is None else sum(p.elements for p in distinct),
        gradient_bytes=None if trained is None else sum(p.elements // p.pieces * p.dtype.itemsize for p in trained),
        compiled=attempt(lambda: _is_compiled(whole), "compiled", failed),
        channels_last=None
        if parameters is None
        else attempt(lambda: has_channels_last(whole), "channels_last", failed),
    )


def model_name(module: Any) -> str:
    """The class of the model in `module`, which may be wrapped."""
    return _class_name(_unwrap(module))


def has_channels_last(module: Any) -> bool:
    """Whether weights of convolutions lie in memory with channels last. That of windows of one pixel does not tell."""
    last = sys.modules["torch"].channels_last
    every = (p for part in module.modules() for p in modules.parameters_of(part).values() if p is not None)
    images = (p for p in every if p.dim() == 4)
    return any(p.is_contiguous(memory_format=last) and not p.is_contiguous() for p in images)


def weight_elements(module: Any) -> tuple[int, int]:
    """The number of elements of trained parameters, and of frozen matrices; without tables that are looked up."""
    parts = list(module.modules())
    tables = {id(part) for part in parts if any(name.startswith("Embedding") for name in class_names(part))}
    parameters = list(_parameters(module))
    looked_up = {p.key for p in parameters if p.owner in tables}
    distinct = {p.key: p for p in parameters}.values()
    frozen = (p for p in distinct if not p.trained and len(p.shape) >= 2 and p.key not in looked_up)
    return sum(p.elements for p in distinct if p.trained), sum(p.elements for p in frozen)


class ParameterBytes(NamedTuple):
    """Bytes of the parameters in their own data types."""

    all: int
    """All bytes, buffers included."""
    trained: int
    largest: int
    """The bytes of the largest trained parameter."""


def parameter_bytes(module: Any) -> ParameterBytes:
    """Bytes of the parameters and buffers inside. Raises an error if a lazy parameter has no shape yet."""
    distinct = {p.key: p for p in _parameters(module)}.values()
    sizes = [(p.bytes, p.trained) for p in distinct]
    trained = [size for size, is_trained in sizes if is_trained]
    buffers = {id(each): each.numel() * each.element_size() for part in module.modules() for each in own_buffers(part)}
    return ParameterBytes(sum(size for size, _ in sizes) + sum(buffers.values()), sum(trained), max(trained, default=0))


def layers(modules: Iterable[Any], flops: Mapping[int, float]) -> tuple[Layer, ...]:
    """Modules with trained parameters of their own, in the model's order; at most `MOST_LAYERS`.

    `flops`: FLOPs of forward by the `id` of the parameter. Raises an error if a lazy parameter has no shape yet.
    """
    whole = [_unwrap(module) for module in modules]
    parts = {id(part): (name, part) for module in reversed(whole) for name, part in module.named_modules()}
    found: dict[int, tuple[float, float]] = {}
    shapes: dict[int, tuple[int, int]] = {}
    seen: set[Hashable] = set()
    for p in _parameters(JoinedModules(whole)):
        if p.trained and p.key not in seen:
            seen.add(p.key)
            size, its_flops = found.get(p.owner, (0.0, 0.0))
            its_flops += flops.get(p.key, 0.0) if isinstance(p.key, int) else 0.0
            found[p.owner] = size + p.elements // p.pieces * p.dtype.itemsize, its_flops
            if p.name == "weight" and len(p.shape) == 2:
                turned = "Conv1D" in class_names(parts[p.owner][1]) if p.owner in parts else False  # of transformers
                shapes[p.owner] = (p.shape[1], p.shape[0]) if turned else (p.shape[0], p.shape[1])
    if len(found) > MOST_LAYERS:
        return ()
    return tuple(
        Layer(parts[owner][0][-_MOST_NAME:] if owner in parts else "", size, its_flops, shapes.get(owner))
        for owner, (size, its_flops) in found.items()
    )


class JoinedModules:
    """Several modules as one. Parts that two of them share occur once."""

    def __init__(self, modules: Iterable[Any]) -> None:
        self._modules = list(modules)

    def modules(self) -> Iterator[Any]:
        """Every module inside, like `nn.Module.modules`."""
        yield from {id(part): part for module in self._modules for part in module.modules()}.values()

    def parameters(self) -> Iterator[Any]:
        """Every parameter inside, like `nn.Module.parameters`."""
        for module in self._modules:
            yield from own_parameters(module)


def outermost(modules: Iterable[Any]) -> list[Any]:
    """The modules that are not inside another one, the one with most trained parameters first."""
    found = list(modules)
    inside = {id(part) for module in found for part in module.modules() if part is not module}
    return sorted((module for module in found if id(module) not in inside), key=_trained_elements, reverse=True)


def _trained_elements(module: Any) -> int:
    return sum(p.numel() for p in own_parameters(module) if p.requires_grad)


def comm_hook_of(module: Any) -> str | None:
    """The name of DDP's communication hook; empty if there is none, None without DDP.

    DDP's own logger is not asked: it waits for a lock under which a backward pass may wait for the GIL.
    """
    return attempt(lambda: next((_qualified_name(hook) for hook, _ in collectives.comm_hooks(module)), ""))


def reduced_in(module: Any, comm_hook: str | None = None) -> str | None:
    """The type in which gradients are reduced, as in `TrainingFacts.reduced_in`.

    FSDP reduces in the type of its parameters' policy where it names no other. `comm_hook`: the name of DDP's hook.
    """
    compressed = next((name for name in ("bf16", "fp16") if f"{name}_compress" in (comm_hook or "")), None)
    return compressed or attempt(lambda: _reduced_in(module))


def _qualified_name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


UsesTf32 = Callable[[Any, bool], bool]
"""Whether convolutions (True), or products of matrices (False), run in TF32 on a device."""


def precision_of(
    module: Any, autocast: Any = None, failed: Failed = nobody, uses_tf32: UsesTf32 = lambda device, convolutions: False
) -> str | None:
    """The precision in which most of the trained parameters are computed, as in `TrainingFacts.precision`.

    `autocast`: the data type of autocast in the forward pass, or its name; None if it was off.
    """
    return attempt(lambda: _precision(module, autocast, uses_tf32), "precision", failed)


class _Parameter(NamedTuple):
    """A parameter of one module. `shape`: that of the whole parameter if it is sharded."""

    key: Hashable
    """Equal for tied parameters."""
    owner: int
    name: str
    shape: tuple[int, ...]
    dtype: Any
    trained: bool
    pieces: int = 1
    """The number of pieces into which tensor parallelism divides it. A rank reduces the gradient of one piece."""
    packed: int | None = None
    """The bytes of a quantised one with its scales; None where it is not quantised."""

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """What a rank has of it."""
        return self.elements // self.pieces * self.dtype.itemsize if self.packed is None else self.packed


def _unwrap(module: Any) -> Any:
    while (held := _held(module)) is not None:
        module = held
    return module


def _held(module: Any) -> Any:
    """The module inside a wrapper of any library; None if this is no wrapper.

    A wrapper either forwards attributes that it lacks to the inner module, or holds it as its only child, `module`, as
    torch's wrappers do. The inner module has most of the parameters, as some wrappers train a few of their own.
    """
    plain = sys.modules["torch"].nn.Module
    if not isinstance(module, plain):
        return None
    children = dict(module.named_children())
    if type(module).__getattr__ is plain.__getattr__ and list(children) != ["module"]:
        return None
    inside = {name: sum(1 for _ in own_parameters(child)) for name, child in children.items()}
    most = max(inside, key=lambda name: inside[name], default=None)
    if most is None or 2 * inside[most] <= sum(1 for _ in own_parameters(module)):
        return None
    return children[most]


def _class_name(module: Any) -> str:
    # fully_shard and parametrize give a module a class made at run time
    made_up = ("torch.distributed.", "torch.nn.utils.parametrize")
    return next(cls.__name__ for cls in type(module).__mro__ if not cls.__module__.startswith(made_up))


def _joined(names: list[str]) -> str:
    """`Generator + Discriminator`; of many names only the first."""
    return " + ".join(names) if len(names) <= _MOST_NAMES else f"{names[0]} + {len(names) - 1} more"


def _is_compiled(module: Any) -> bool:
    return any("OptimizedModule" in class_names(m) or modules.compiled_call(m) is not None for m in module.modules())


def _parameters(module: Any) -> Iterator[_Parameter]:
    """Every parameter of every module; tied ones occur several times.

    Raises an error if a lazy one has no shape yet.
    """
    flattened = {(p.owner, p.name): p for p in _flattened(module)}
    yield from flattened.values()
    divided = attempt(lambda: pieces(module)) or {}
    for owner in module.modules():
        for name, tensor in modules.parameters_of(owner).items():
            if tensor is None or sharding.is_flat(tensor) or (id(owner), name) in flattened:
                continue
            in_pieces = divided.get((id(owner), name), 1)
            yield _Parameter(
                id(tensor), id(owner), name, _shape(tensor), tensor.dtype, tensor.requires_grad, in_pieces,
                _packed_bytes(tensor),
            )  # fmt: skip


def _shape(tensor: Any) -> tuple[int, ...]:
    """The logical shape: the original one of parameters that DeepSpeed partitions or bitsandbytes packs."""
    packed = getattr(getattr(tensor, "quant_state", None), "shape", None)
    return tuple(getattr(tensor, "ds_shape", None) or packed or tensor.shape)


def _packed_bytes(tensor: Any) -> int | None:
    """The bytes of bitsandbytes' packed parameter: two elements a byte, and the scales of its blocks, which may be
    packed themselves. None for any other."""
    state = getattr(tensor, "quant_state", None)
    if state is None:
        return None
    scales = [getattr(each, "absmax", None) for each in (state, getattr(state, "state2", None))]
    return sum(int(each.numel() * each.element_size()) for each in (tensor, *scales) if each is not None)


def _flattened(module: Any) -> Iterator[_Parameter]:
    """The original parameters in the flat parameters of FullyShardedDataParallel."""
    for part in module.modules():
        for owner, name, shape, dtype, trained, tied_to in sharding.flat_parameters(part):
            key = (id(owner), name) if tied_to is None else (id(tied_to[0]), tied_to[1])
            yield _Parameter(key, id(owner), name, shape, dtype, trained)


def _layers(module: Any, parameters: list[_Parameter]) -> int:
    """The number of leaf modules with a weight of two or more dimensions.

    A module that has a weight besides its children counts, too (the input projection of MultiheadAttention), but not
    its positional tables and tokens. A parametrised weight belongs to its module.
    """
    names: defaultdict[int, list[str]] = defaultdict(list)
    for p in parameters:
        if len(p.shape) >= 2:
            names[p.owner].append(p.name)
    hidden: set[int] = set()
    layers = 0
    for part in module.modules():
        if id(part) in hidden:
            continue
        owned = names[id(part)]
        children = dict(part.named_children())
        parametrizations = children.pop("parametrizations", None)
        if parametrizations is not None:
            hidden.update(map(id, parametrizations.modules()))
            owned = owned + [name for name, originals in parametrizations.items() if names[id(originals)]]
        layers += any(not children or "weight" in name for name in owned)
    return layers


def _precision(module: Any, autocast: Any, uses_tf32: UsesTf32) -> str | None:
    parameters = list(_parameters(module))
    sizes: Counter[str] = Counter()
    for p in [p for p in parameters if p.trained] or parameters:
        sizes[_name(p.dtype)] += p.elements
    stored = _PRECISIONS.get(sizes.most_common(1)[0][0])
    lower = _PRECISIONS.get(_name(autocast or _policy_dtype(module)))
    if stored == "fp32" and lower in ("bf16", "fp16"):
        return f"amp-{lower}"
    return "tf32" if stored == "fp32" and _uses_tf32(module, uses_tf32) else stored


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _policy_dtype(module: Any) -> Any:
    """The data type to which FSDP's or DDP's mixed precision casts parameters; None if there is none."""
    return next((dtype for policy in _policies(module) if (dtype := getattr(policy, "param_dtype", None))), None)


def _reduced_in(module: Any) -> str | None:
    for policy in _policies(module):
        if dtype := getattr(policy, "reduce_dtype", None) or getattr(policy, "param_dtype", None):
            return _PRECISIONS.get(_name(dtype))
    return None


def _policies(module: Any) -> Iterator[Any]:
    """The mixed precision of FSDP and DDP inside."""
    for part in module.modules():
        yield sharding.policy(part) if "FSDPModule" in class_names(part) else getattr(part, "mixed_precision", None)


def _uses_tf32(module: Any, uses_tf32: UsesTf32) -> bool:
    """Whether the most frequent kind of layer in the model runs in TF32 on its device."""
    kinds = Counter(name for part in module.modules() for name in class_names(part))
    return uses_tf32(next(module.parameters()).device, kinds[modules.CONVOLUTION] > kinds["Linear"])
