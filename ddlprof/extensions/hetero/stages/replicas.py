"""What a leader and the replicas of its stage send each other: samples of each micro-batch, results, and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.extensions.hetero.plan_file import PlanFile


@dataclass(frozen=True)
class PlannedRank:
    """Where a rank is in a plan."""

    plan: PlanFile
    rank: int

    @property
    def stage(self) -> int:
        """The number of its stage."""
        return next(number for number, each in enumerate(self.plan.stages) if self.rank in each.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of its stage, the leader first."""
        return self.plan.stages[self.stage].ranks

    @property
    def shares(self) -> list[int]:
        """Their samples in a micro-batch."""
        return [self.plan.ranks[rank].samples for rank in self.ranks]

    @property
    def micro_batch(self) -> int:
        """The samples of a micro-batch."""
        return sum(self.shares)

    @property
    def begin(self) -> int:
        """The samples of a micro-batch before its own."""
        return sum(self.shares[: self.ranks.index(self.rank)])

    @property
    def samples(self) -> int:
        """Its own samples in a micro-batch."""
        return self.plan.ranks[self.rank].samples

    @property
    def is_first(self) -> bool:
        """Whether its stage gets the batch."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether its stage computes the loss."""
        return self.stage + 1 == len(self.plan.stages)


class Division:
    """How tensors between stages are divided among replicas: along the first dimension, if that grows with samples."""

    def __init__(self, at: PlannedRank, mine: Sequence[Any], whole: Sequence[Any]) -> None:
        """`mine`: the tensors with this rank's samples; `whole`: with those of a micro-batch. Raises UserError."""
        self.whole = whole
        self._at = at
        self._rows: list[int | None] = []
        """Rows of one sample; None: replicas have the same."""
        for one, other in zip(mine, whole, strict=True):
            if one.shape == other.shape and len(at.ranks) > 1:
                self._rows.append(None)
                continue
            rows, left = divmod(len(other), at.micro_batch) if other.dim() else (0, 1)
            if left or tuple(one.shape) != (rows * at.samples, *other.shape[1:]):
                raise UserError(
                    f"a tensor of shape {tuple(other.shape)} between stages is not divided by samples along its first"
                    " dimension, as replicas need: divide the model elsewhere"
                )
            self._rows.append(rows)

    def of(self, number: int, tensor: Any, rank: int) -> Any:
        """The part of a micro-batch's tensor that belongs to a rank of the stage."""
        rows = self._rows[number]
        if rows is None:
            return tensor
        begin = rows * sum(self._at.shares[: self._at.ranks.index(rank)])
        return tensor[begin : begin + rows * self._at.plan.ranks[rank].samples]

    def is_divided(self, number: int) -> bool:
        """Whether replicas have different parts of it."""
        return self._rows[number] is not None


def gradient_of(tensor: Any) -> Any:
    """Its gradient; zeros if it has none."""
    import torch

    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


class Replicas:
    """Both ends of the links between a leader and its replicas."""

    def __init__(self, at: PlannedRank, inputs: Division, outputs: Division, group: Any, device: Any) -> None:
        """`group`: the process group of the stage; None: it has one rank."""
        import torch

        self.group = group
        self._at, self._inputs, self._outputs, self._device = at, inputs, outputs, device
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        self._under_way: list[tuple[Any, Any]] = []
        """Sends that may not have ended, with what they send."""

    def sent(self, inputs: Sequence[Any]) -> Any:
        """Sends each replica its part of a micro-batch (of the first stage, they have it). What it returns goes to
        `joined`; in backward, the gradients of these parts come back by it."""
        import torch

        replicas, at, parts_of = self, self._at, self._inputs

        class Sent(torch.autograd.Function):
            """Runs last in backward, as it is the first one here."""

            @staticmethod
            def forward(context: Any, anchor: Any, *tensors: Any) -> Any:
                for rank in () if at.is_first else at.ranks[1:]:
                    replicas.send([parts_of.of(n, each, rank) for n, each in enumerate(tensors)], rank)
                return anchor.clone()

            @staticmethod
            def backward(context: Any, _: Any) -> Any:
                if at.is_first:
                    return (None,) * (1 + len(inputs))
                found = [torch.zeros_like(each) if each.is_floating_point() else None for each in inputs]
                for rank in at.ranks[1:]:
                    parts = [parts_of.of(n, each, rank) for n, each in enumerate(found) if each is not None]
                    for part, grown in zip(parts, replicas.received(parts, rank), strict=True):
                        part += grown
                return None, *found

        apply: Any = Sent.apply
        return apply(self._anchor, *inputs)

    def joined(self, mine: Sequence[Any], token: Any) -> list[Any]:
        """The results of a micro-batch: those of the leader and of its replicas together; of the last stage, the mean
        of their losses. Gradients go to the replicas before the leader's own backward."""
        import torch

        at = self._at
        others = self._results(mine, token)
        parts = [mine, *(others[n : n + len(mine)] for n in range(0, len(others), len(mine)))]
        if at.is_last:
            return [sum(share / at.micro_batch * part[0] for share, part in zip(at.shares, parts, strict=True))]
        return [
            torch.cat([part[n] for part in parts]) if self._outputs.is_divided(n) else each
            for n, each in enumerate(mine)
        ]

    def _results(self, mine: Sequence[Any], token: Any) -> Sequence[Any]:
        """The results of all replicas, one after another."""
        import torch

        replicas, at, whole = self, self._at, self._outputs.whole

        class Received(torch.autograd.Function):
            """Runs first in backward, as it is the last one here."""

            @staticmethod
            def forward(context: Any, _: Any) -> Any:
                found: list[Any] = []
                for rank in at.ranks[1:]:
                    if at.is_last:
                        like = list(mine)
                    else:
                        like = [replicas._outputs.of(n, each, rank) for n, each in enumerate(whole)]
                    found += replicas.received(like, rank)
                context.mark_non_differentiable(*(each for each in found if not each.is_floating_point()))
                replicas.wait()
                return tuple(found)

            @staticmethod
            def backward(context: Any, *grown: Any) -> Any:
                for place, rank in enumerate(at.ranks[1:]):
                    each = grown[place * len(mine) : (place + 1) * len(mine)]
                    replicas.send([g for g, result in zip(each, mine, strict=True) if result.is_floating_point()], rank)
                return torch.zeros((), device=replicas._device)

        apply: Any = Received.apply
        found: Sequence[Any] = apply(token)
        return found

    def send(self, tensors: Sequence[Any], rank: int | None = None) -> None:
        """Starts to send to a rank, by default the leader."""
        import torch.distributed as dist

        to = self._at.ranks[0] if rank is None else rank
        for each in tensors:
            whole = each.contiguous()
            self._under_way.append((dist.isend(whole, dst=to, group=self.group), whole))

    def received(self, like: Sequence[Any], rank: int | None = None) -> list[Any]:
        """Tensors like these from a rank, by default the leader."""
        import torch
        import torch.distributed as dist

        source = self._at.ranks[0] if rank is None else rank
        found = [torch.empty(tuple(each.shape), dtype=each.dtype, device=self._device) for each in like]
        for each in found:
            dist.recv(each, src=source, group=self.group)
        return found

    def wait(self) -> None:
        """Waits until everything is sent."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way.clear()
