"""A communication hook of DistributedDataParallel for plans with parameter servers.

A bucket whose layers have a server is summed there and sent back to all ranks (reduce, then broadcast); other buckets
are all-reduced. All ranks must start collectives in the same order, so the broadcast of a bucket starts when the next
bucket comes, or after the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import UserError

if TYPE_CHECKING:
    from ddlprof.extensions.hetero.plan_file import GroupExchange


def serve(model: Any, groups: Sequence[GroupExchange]) -> None:
    """Registers the hook. Raises `UserError` if the model is no DistributedDataParallel or already has a hook."""
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(model, DistributedDataParallel):
        raise UserError("the plan has parameter servers, which need a DistributedDataParallel")
    served = Served(model, groups)
    try:
        model.register_comm_hook(None, lambda _, bucket: served.exchange(bucket))  # torch would check annotations
    except RuntimeError as error:
        raise UserError(f"the plan has parameter servers, and the model's own hook is in the way: {error}") from None


def servers_of(sizes: Sequence[int], groups: Sequence[GroupExchange]) -> list[int | None]:
    """The server's rank of each parameter; None: all-reduce.

    Parameters and groups are both in the model's order; they are matched by their bytes.
    """
    found: list[int | None] = []
    total = sum(sizes) or 1
    of_groups = sum(group.gradient_bytes for group in groups) or 1.0
    ends: list[float] = []
    for group in groups:
        ends.append((ends[-1] if ends else 0.0) + group.gradient_bytes / of_groups)
    before = 0
    for size in sizes:
        middle = (before + size / 2) / total
        before += size
        number = next((number for number, end in enumerate(ends) if middle <= end), len(groups) - 1)
        found.append(groups[number].server_rank)
    return found


class Served:
    """The buckets of one backward that are being exchanged. `model` has a `process_group` and parameters."""

    def __init__(self, model: Any, groups: Sequence[GroupExchange]) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._group = model.process_group
        parameters = [each for each in model.parameters() if each.requires_grad]
        servers = servers_of([each.numel() * each.element_size() for each in parameters], groups)
        self._servers = {id(each): server for each, server in zip(parameters, servers, strict=True)}
        self._reducing: list[tuple[Any, Any, int]] = []
        self._under_way: list[tuple[Any, Any, Any]] = []

    def exchange(self, bucket: Any) -> Any:
        """The future of the bucket's mean; see `DistributedDataParallel.register_comm_hook`."""
        import torch

        self._hand_out()
        tensor = bucket.buffer()
        tensor.div_(self._dist.get_world_size(self._group))
        devices = [tensor.device] if tensor.is_cuda else None
        future: Any = torch.futures.Future(devices=devices) if devices else torch.futures.Future()
        server = self._server(bucket)
        if server is None:
            work = self._dist.all_reduce(tensor, group=self._group, async_op=True)
        else:
            work = self._dist.reduce(tensor, dst=server, group=self._group, async_op=True)
            self._reducing.append((work, tensor, server))
        self._under_way.append((future, work, tensor))
        if bucket.is_last():
            self._finish()
        return future

    def _server(self, bucket: Any) -> int | None:
        """The server of most of the bucket's elements."""
        elements: Counter[int | None] = Counter()
        for parameter in bucket.parameters():
            elements[self._servers.get(id(parameter))] += parameter.numel()
        return elements.most_common(1)[0][0]

    def _hand_out(self) -> None:
        for work, tensor, server in self._reducing:
            work.wait()
            handed = self._dist.broadcast(tensor, src=server, group=self._group, async_op=True)
            self._under_way = [
                (future, handed if tensor is each else before, each) for future, before, each in self._under_way
            ]
        self._reducing.clear()

    def _finish(self) -> None:
        """Waits for what is left. DistributedDataParallel looks at the futures only after the last bucket."""
        self._hand_out()
        for _, work, _ in self._under_way:
            work.wait()
        for future, _, tensor in self._under_way:
            future.set_result(tensor)
        self._under_way.clear()
