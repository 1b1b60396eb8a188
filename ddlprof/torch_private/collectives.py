"""torch.distributed: the operators of collectives, groups, stores and symmetric memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ddlprof.base.alive import instances_of
from ddlprof.torch_private.names import PrivateName, find, imported, need

_COMM = "communication is not measured (comm_s stays empty)"
_FAKE = "waits for collectives of torch's fake process groups are not timed"
_LATE = "the first collectives of DDP are not seen"
_COUNT = "collectives that the hooks do not see are not noticed"
_RUNGS = "the links inside a machine are not timed: comm_s is not split into interconnect_s and network_s"
_SYMMETRIC = "transfers through symmetric memory are not noticed"
_C10D = "torch.distributed.distributed_c10d"


def _name(path: str, use: str, without_it: str, **others: Any) -> PrivateName:
    return PrivateName(path, use, without_it, needs=others.pop("needs", "distributed"), **others)


NAMES = (
    _name("torch:_C._distributed_c10d.ProcessGroup.unbox", "finds the group of a collective", _COMM),
    _name("torch:_C._distributed_c10d.Work.wait", "times the wait for a collective", _COMM),
    _name(
        "torch:_C._distributed_c10d.Work.unbox", "learns when a collective ends", "ends of collectives are not known"
    ),
    _name("torch:_C._distributed_c10d.FakeWork", "times the wait in a rehearsal without other ranks", _FAKE),
    _name("torch:_C.DispatchKey.BackendSelect", "puts the hooks in front of collectives", _COMM),
    _name("torch:_C._dispatch_keyset_full_after", "puts the hooks in front of collectives", _COMM),
    _name("torch:library.Library._destroy", "takes the hooks back", _COMM),
    _name("torch:ops.c10d._allgather_base_", "sees all_gather_into_tensor", "all_gather_into_tensor is not measured"),
    _name(
        "torch:ops.c10d._reduce_scatter_base_", "sees reduce_scatter_tensor", "reduce_scatter_tensor is not measured"
    ),
    _name("torch:ops._c10d_functional.wait_tensor", "times the wait for a functional collective", _COMM),
    _name(
        "torch.ops:OpOverload()._schema",
        "tells which argument of a collective names its root",
        _COMM,
        example=lambda torch: torch.ops.c10d.broadcast_.default,
    ),
    _name("torch.distributed:_broadcast_coalesced", "times DDP's broadcasts of buffers", _COMM),
    _name("torch.distributed:_verify_params_across_processes", "tells that DDP's own collectives follow", _LATE),
    _name("torch:_C._distributed_c10d.Reducer", "tells that DDP's own collectives follow", _LATE),
    _name(
        f"{_C10D}:_update_default_pg",
        "tells when there is a process group, however it was made",
        "a process group that init_device_mesh makes is not seen: its ranks are recorded as jobs of one rank",
    ),
    _name(
        f"{_C10D}:_get_default_store",
        "agrees on the run directory among the ranks",
        "each rank writes a run of its own, and links and clocks of machines are not read",
    ),
    _name(f"{_C10D}:_world.pg_names", "counts what torch counts of collectives", _COUNT),
    _name("torch.distributed:ProcessGroup._get_sequence_number_for_group", "counts what torch counts", _COUNT),
    _name(
        "torch.distributed:ProcessGroup._get_backend",
        "tells whether the wait at the end of DDP's backward blocks the host",
        "on a device, the end of the last collective of DDP's backward is known less exactly",
    ),
    _name("torch.distributed:ProcessGroup._allgather_base", "times the links inside a machine", _RUNGS),
    _name("torch.distributed:ProcessGroup._reduce_scatter_base", "times the links inside a machine", _RUNGS),
    _name(
        "torch.nn.parallel:DistributedDataParallel()._comm_hooks",
        "names the hook that the gradients of DDP go through",
        "communication hooks of DDP are not named",
    ),
    _name(
        "torch.nn.parallel:DistributedDataParallel()._get_ddp_logging_data",
        "tells whether DDP has found unused parameters",
        "a search for unused parameters that finds none is not noticed",
    ),
    _name(
        "torch:_C._distributed_c10d._dump_nccl_trace",
        "reads how long NCCL's collectives took (--time-collectives)",
        "collectives of NCCL cannot be timed by --time-collectives",
        since="2.7",
        needs="nccl",
    ),
    *(
        _name(f"torch.distributed._symmetric_memory:{name}", "tells whether it is used", _SYMMETRIC, since="2.5")
        for name in ("_group_name_to_store", "_group_name_to_workspace_tensor")
    ),
    _name("torch.distributed._symmetric_memory:_backend_streams", "tells whether it is used", _SYMMETRIC, since="2.7"),
    _name("torch.distributed._symmetric_memory:_symm_mem_pools", "tells whether it is used", _SYMMETRIC, since="2.10"),
)


class Form(NamedTuple):
    """How functions of torch.distributed call a method of `ProcessGroup` that issues one operator."""

    operator: str
    options: str
    """Name of the class of the last argument, which gives the root and whether the Work is waited for at once."""
    place: int
    """Index of that argument."""
    largest: int = 0
    """Index of the argument with the data of all ranks together."""

    @property
    def listed(self) -> bool:
        """Whether the first argument is a list, mostly of one tensor."""
        return self.place == 1

    @property
    def rooted(self) -> bool:
        """Whether the options name a root."""
        return self.operator == BROADCAST_OPERATOR


BROADCAST_OPERATOR = "broadcast_"
METHODS = {
    "allreduce": Form("allreduce_", "AllreduceOptions", 1),
    "broadcast": Form(BROADCAST_OPERATOR, "BroadcastOptions", 1),
    "_allgather_base": Form("_allgather_base_", "AllgatherOptions", 2),
    "all_gather_single": Form("_allgather_base_", "AllgatherOptions", 2),
    "_reduce_scatter_base": Form("_reduce_scatter_base_", "ReduceScatterOptions", 2, largest=1),
    "reduce_scatter_single": Form("_reduce_scatter_base_", "ReduceScatterOptions", 2, largest=1),
}
"""The methods of `ProcessGroup` that training calls often; not every version has them all."""
OPERATORS = (
    "allreduce_", "allreduce_coalesced_", BROADCAST_OPERATOR, "reduce_", "allgather_", "_allgather_base_",
    "allgather_into_tensor_coalesced_", "allgather_coalesced_", "reduce_scatter_", "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "barrier",
    "send", "recv_", "recv_any_source_",
)  # fmt: skip
"""All operators that are measured; not every version has them all."""
FUNCTIONAL_OPERATORS = {
    "all_reduce": "allreduce_",
    "all_reduce_": "allreduce_",
    "all_gather_into_tensor_out": "_allgather_base_",
    "broadcast": BROADCAST_OPERATOR,
    "broadcast_": BROADCAST_OPERATOR,
}
"""Functional collectives, and the operators of `METHODS` that they issue without calling one of these methods.

The other functional gathers and scatters issue the operators for several tensors.
"""
OF_REDUCERS = ("allreduce_", BROADCAST_OPERATOR)
"""The operators that DDP's reducer issues without calling one of these methods."""
CHECK = "_verify_params_across_processes"
"""Function of torch.distributed that DDP calls first when it is made; it broadcasts."""
KEY = "BackendSelect"
"""Dispatch key of the hooks: below autograd, above every backend."""
FUNCTIONAL = "_c10d_functional"
"""Namespace of the operators of functional collectives."""
WAIT = "wait_tensor"
"""The operator of that namespace that waits for a functional collective."""
BROADCAST = "_broadcast_coalesced"
"""Function of torch.distributed by which DDP broadcasts its buffers; it waits."""
SET_DEFAULT_GROUP = "_update_default_pg"
"""Function of `torch.distributed.distributed_c10d` that sets the default process group."""
SYMMETRIC_MEMORY = "torch.distributed._symmetric_memory"
SYMMETRIC_UNSEEN = f"not seen: what is done through symmetric memory ({SYMMETRIC_MEMORY}), by whatever engine"


def work(torch: Any) -> Any:
    """The class `Work`, of which collectives return objects. Raises AttributeError without torch.distributed."""
    return need(torch, "_C._distributed_c10d.Work")


def works(torch: Any) -> list[Any]:
    """The classes of torch's Works that define `wait`: `Work`, and the class that its fake process groups use."""
    found = find(torch, "_C._distributed_c10d.FakeWork")
    return [kind for kind in (work(torch), found) if kind is not None and "wait" in vars(kind)]


def unboxing(torch: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Two functions that unbox a group and a Work from the ScriptObjects that operators use. Raises as `work`."""
    return need(torch, "_C._distributed_c10d.ProcessGroup.unbox"), need(torch, "_C._distributed_c10d.Work.unbox")


def process_group(torch: Any) -> Any:
    """The class of groups. Raises as `work`."""
    return need(torch, "_C._distributed_c10d.ProcessGroup")


def options(torch: Any, form: Form) -> Any:
    """The class of a method's options; None where this torch has none."""
    return find(torch, f"_C._distributed_c10d.{form.options}")


def tells_whether_asynchronous(torch: Any, form: Form) -> bool:
    """Whether a method's options say if the Work is waited for at once (`asyncOp`)."""
    return hasattr(options(torch, form), "asyncOp")


def reducer(torch: Any) -> Any:
    """The class of DDP's reducers. Raises as `work`."""
    return need(torch, "_C._distributed_c10d.Reducer")


def methods(torch: Any, operator: str) -> list[str]:
    """The names of the methods by which Python issues an operator, if they can be read in this torch."""
    return [name for name, form in METHODS.items() if form.operator == operator and options(torch, form) is not None]


def functional(torch: Any, name: str) -> Any:
    """A functional collective's operator. Raises as `work`."""
    return need(torch, f"ops.{FUNCTIONAL}.{name}.default")


def functional_operators(torch: Any) -> dict[str, str]:
    """The entries of `FUNCTIONAL_OPERATORS` that this torch has."""
    return {n: op for n, op in FUNCTIONAL_OPERATORS.items() if find(torch, f"ops.{FUNCTIONAL}.{n}.default")}


def has_reducers(dist: Any) -> bool:
    """Whether there may be a module of DDP already; takes some milliseconds if collectives have been issued."""
    try:
        if not any(issued_in(group) for group in group_names(dist)):
            return False
    except Exception:  # a backend that does not count: look
        pass
    module = imported("torch.nn.parallel.distributed")
    kind = getattr(module, "DistributedDataParallel", None)
    return kind is not None and bool(instances_of(kind))


def below_backend_selection(torch: Any) -> Any:
    """The dispatch keys beneath `BackendSelect`. Raises AttributeError in another version."""
    return need(torch, "_C._dispatch_keyset_full_after")(need(torch, f"_C.DispatchKey.{KEY}"))


def take_back(library: Any) -> Callable[[], None]:
    """The function that removes what a `torch.library.Library` has registered."""
    destroy: Callable[[], None] = library._destroy
    return destroy


def wait_operator(torch: Any) -> Any:
    """The operator that waits for functional collectives. Raises AttributeError in another version."""
    return need(torch, f"ops.{FUNCTIONAL}.{WAIT}.default")


def arguments_of(operator: Any) -> Any:
    """The arguments that an operator takes: their names and default values."""
    return operator._schema.arguments


def group_names(dist: Any) -> Mapping[Any, str]:
    """The names of all existing groups, by group. Raises AttributeError in another version."""
    names: Mapping[Any, str] = dist.distributed_c10d._world.pg_names
    return names


def issued_in(group: Any) -> int:
    """How many collectives torch has counted in a group. Raises where it does not count."""
    return int(group._get_sequence_number_for_group())


def default_store(dist: Any) -> Any:
    """The job's store. Raises AttributeError or ValueError where there is none."""
    return dist.distributed_c10d._get_default_store()


def backend_for(group: Any, device: Any) -> Any:
    """A group's backend for the tensors of a device."""
    return group._get_backend(device)


def all_gather(group: Any, whole: Any, part: Any) -> Any:
    """An all-gather of `part` into `whole` on a group not registered in torch.distributed; returns its Work."""
    return group._allgather_base(whole, part)


def reduce_scatter(group: Any, part: Any, whole: Any) -> Any:
    """A reduce-scatter of `whole` into `part` on a group not registered in torch.distributed; returns its Work."""
    return group._reduce_scatter_base(part, whole)


def comm_hooks(module: Any) -> Any:
    """The communication hooks of DDP, each with its state. Raises AttributeError where `module` is no DDP."""
    return module._comm_hooks


def ddp_log(module: Any) -> dict[str, Any]:
    """What DDP has logged of one of its latest iterations. Not to be asked during a backward: it waits for a lock."""
    return dict(module._get_ddp_logging_data())


def flight_recorder(torch: Any) -> Callable[..., bytes] | None:
    """The function that dumps torch's record of NCCL's collectives; None if torch was built without it."""
    dump: Callable[..., bytes] | None = find(torch, "_C._distributed_c10d._dump_nccl_trace")
    return dump


def symmetric_memory_in_use() -> bool:
    """Whether symmetric memory is in use. Importing its module is no proof, because compiling for several ranks imports
    it too. Cheap enough for every update.
    """
    module = imported(SYMMETRIC_MEMORY)
    if module is None:
        return False
    names = ("_group_name_to_store", "_group_name_to_workspace_tensor", "_backend_streams", "_symm_mem_pools")
    return any(getattr(module, name, None) for name in names)
