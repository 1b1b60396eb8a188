"""Trains the stage of this rank: `torch.distributed.pipelining` between stages, and replicas behind their leader.

The model is traced and divided by torch (`pipelining.pipeline`) before the modules that the plan names. The leaders of
all stages run `Schedule1F1B`. A leader sends each replica its samples of every micro-batch, computes its own, and joins
the results; in backward the same with gradients. Replicas do the passes in the order of the schedule, which is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddlprof.base.errors import UserError
from ddlprof.extensions.hetero.plan_file import PlanFile, PlannedStage, read_plan
from ddlprof.extensions.hetero.stages.replicas import Division, PlannedRank, Replicas, gradient_of
from ddlprof.extensions.hetero.stages.schedule import Compute, one_forward_one_backward

if TYPE_CHECKING:
    from torch import nn

Loss = Callable[[Any, Any], Any]


def apply_stages(
    plan: str | Path | PlanFile, model: nn.Module, loss: Loss, example: Any, device: Any = None
) -> StageTraining:
    """This rank's stage of a plan with stages, which trains by `step`.

    `model`: the whole model, equal on all ranks; on the device `meta` if it fits on none: the rank's own layers are
    then made there and filled by their `reset_parameters`. `loss`: from the model's output and the targets to a mean
    over samples. `example`: a batch of inputs, a tensor or a tuple of tensors, of which sizes are read. `device`: that
    of this rank; by default the current GPU, or the processor where there is none. Call it on every rank after
    `init_process_group`. Raises `UserError` if the plan has no stages, is for another number of ranks, or the model
    cannot be divided as it says.
    """
    import torch

    found = plan if isinstance(plan, PlanFile) else read_plan(plan)
    if not found.stages:
        raise UserError("the plan divides the batch alone: use ddlprof.hetero.apply")
    rank = found.own_rank()
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
    at = PlannedRank(found, rank)

    def traced(samples: int) -> TracedStage:
        return _traced(model, [each[:samples] for each in _several(example)], found.stages, at.stage)

    mine = traced(at.samples)
    whole = mine if at.micro_batch == at.samples else traced(at.micro_batch)
    _place(model, mine.module, torch.device(device))
    return StageTraining(at, mine, whole, loss, torch.device(device))


def _several(inputs: Any) -> Sequence[Any]:
    return inputs if isinstance(inputs, (tuple, list)) else (inputs,)


@dataclass(frozen=True)
class TracedStage:
    """The module of a stage, and its inputs and outputs as tensors without data."""

    module: Any
    inputs: list[Any]
    outputs: list[Any]


def _traced(model: Any, examples: Sequence[Any], stages: Sequence[PlannedStage], number: int) -> TracedStage:
    """The stage of the model, traced with so many samples."""
    import torch
    from torch.distributed.pipelining import SplitPoint, pipeline

    device = next(iter(model.parameters())).device
    examples = tuple(each.to(device) for each in examples)
    if len(stages) == 1:
        with torch.no_grad():
            outputs = model(*examples)
        return TracedStage(model, _empty(examples), _empty([outputs]))
    names = [each.begins for each in stages[1:]]
    try:
        with _as_they_are([model.get_submodule(name) for name in names]):
            pipe = pipeline(model, examples, split_spec=dict.fromkeys(names, SplitPoint.BEGINNING))
        module: Any = pipe.get_stage_module(number)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"torch cannot divide the model before {', '.join(names)}: {reason}") from error
    if pipe.num_stages != len(stages):
        raise UserError(f"the plan has {len(stages)} stages, and the model was divided into {pipe.num_stages}")
    nodes = module.graph.nodes
    inputs = [node.meta["val"] for node in nodes if node.op == "placeholder"]
    left = next(node for node in nodes if node.op == "output").args[0]
    results = left if isinstance(left, (tuple, list)) else (left,)
    return TracedStage(module, _empty(inputs), _empty([each.meta["val"] for each in results]))


@contextmanager
def _as_they_are(modules: Sequence[Any]) -> Iterator[None]:
    """Takes what torch adds to modules, to divide the model before them, off them again."""
    before = [dict(vars(each)) for each in modules]
    try:
        yield
    finally:
        for module, attributes in zip(modules, before, strict=True):
            for name in set(vars(module)) - set(attributes):
                delattr(module, name)
            vars(module).update(attributes)


def _empty(tensors: Sequence[Any]) -> list[Any]:
    """Tensors like these without data; those of floating point require gradients."""
    import torch

    return [
        torch.empty(tuple(each.shape), dtype=each.dtype, device="meta", requires_grad=each.is_floating_point())
        for each in tensors
    ]


def _place(model: Any, module: Any, device: Any) -> None:
    """Moves the stage's parameters and buffers to its device; those on `meta` are made there by the model's modules."""
    wanted = {name for name, _ in [*module.named_parameters(), *module.named_buffers()]}
    for name, part in model.named_modules():
        own = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        if not any(f"{name}.{each}".lstrip(".") in wanted and tensor.is_meta for each, tensor in own):
            continue
        if not hasattr(part, "reset_parameters"):
            raise UserError(f"{name or 'the model'} is on the device meta and has no reset_parameters to fill it")
        part.to_empty(device=device, recurse=False)
        part.reset_parameters()
        for each, tensor in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
            _set(module, f"{name}.{each}".lstrip("."), tensor)
    module.to(device)


def _set(module: Any, name: str, tensor: Any) -> None:
    path, _, last = name.rpartition(".")
    setattr(module.get_submodule(path), last, tensor)


class StageTraining:
    """The training of one rank's stage."""

    def __init__(self, at: PlannedRank, mine: TracedStage, whole: TracedStage, loss: Loss, device: Any) -> None:
        """`mine`: the stage with this rank's samples; `whole`: with those of a micro-batch."""
        import torch.distributed as dist

        self.module = mine.module
        """The layers of this rank."""
        self._at, self._mine, self._whole, self._loss, self._device = at, mine, whole, loss, device
        self._inputs = Division(at, mine.inputs, whole.inputs)
        self._targets: Any = None
        self._done = 0
        leaders = groups = None
        if dist.is_initialized():
            leaders = dist.new_group([each.ranks[0] for each in at.plan.stages])
            groups = [dist.new_group(list(each.ranks)) for each in at.plan.stages if len(each.ranks) > 1]
        outputs = Division(at, mine.outputs, whole.outputs)
        replicated = [number for number, each in enumerate(at.plan.stages) if len(each.ranks) > 1]
        group = groups[replicated.index(at.stage)] if groups and at.stage in replicated else None
        self._replicas = Replicas(at, self._inputs, outputs, group, device)
        self._schedule = self._scheduled(leaders) if at.rank == at.ranks[0] else None

    def parameters(self) -> Iterator[Any]:
        """The parameters of this rank's layers, for its optimizer."""
        return iter(self.module.parameters())

    def step(self, inputs: Any, targets: Any) -> float | None:
        """Forward and backward of one batch, the same on every rank; gradients of its mean loss are in the parameters.

        Gradients have to be zero or None before. Returns the loss on the leader of the last stage, None elsewhere.
        """
        at = self._at
        if len(targets) != at.micro_batch * at.plan.micro_batches:
            raise UserError(
                f"a batch of {len(targets)} samples; the plan is for {at.micro_batch * at.plan.micro_batches}: give the"
                " loader that batch_size, and drop_last=True"
            )
        arguments = [each.to(self._device) for each in _several(inputs)] if at.is_first else []
        target = targets.to(self._device) if at.is_last else None
        self._targets = None if target is None else target.split(at.micro_batch)
        self._done = 0
        losses: list[Any] = []
        if self._schedule is None:
            self._followed(arguments)
        else:
            self._schedule.step(*arguments, target=target, losses=losses, return_outputs=False)
        self._replicas.wait()
        self._reduced()
        return float(sum(losses) / len(losses)) if losses else None

    def _scheduled(self, leaders: Any) -> Any:
        import torch
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        at = self._at

        class Led(torch.nn.Module):
            """What torch takes for the stage."""

            def forward(module, *inputs: Any) -> Any:
                return self.led(*inputs)

        loss = torch.empty((), device="meta", requires_grad=True)
        outputs = [loss] if at.is_last else self._whole.outputs
        stage = PipelineStage(
            Led(), at.stage, len(at.plan.stages), self._device, input_args=tuple(self._whole.inputs),
            output_args=tuple(outputs), group=leaders,
        )  # fmt: skip
        return Schedule1F1B(stage, at.plan.micro_batches, lambda output, _: output, scale_grads=False)

    def led(self, *inputs: Any) -> Any:
        """The pass of one micro-batch on the leader: its own samples, and what the replicas make of theirs."""
        if len(self._at.ranks) == 1:
            return _single(self._passed(inputs))
        token = self._replicas.sent(inputs)
        mine = self._passed([self._inputs.of(n, each, self._at.rank) for n, each in enumerate(inputs)])
        return _single(self._replicas.joined(mine, token))

    def _passed(self, inputs: Sequence[Any]) -> list[Any]:
        """The results of the stage's own layers; of the last stage, its loss."""
        results = self.module(*inputs)
        if self._at.is_last:
            targets = self._targets[self._done][self._at.begin :][: self._at.samples]
            self._done += 1
            return [self._loss(results, targets)]
        # Every result of floating point gets a gradient from the next stage, whether it depends on a parameter or not.
        return [
            each.detach().requires_grad_() if each.is_floating_point() and not each.requires_grad else each
            for each in (results if isinstance(results, (tuple, list)) else (results,))
        ]

    def _followed(self, batch: Sequence[Any]) -> None:
        """The passes of a replica, in the order of the schedule."""
        import torch

        at, held = self._at, dict[int, tuple[list[Any], list[Any]]]()
        for action in one_forward_one_backward(at.stage, len(at.plan.stages), at.plan.micro_batches):
            if not isinstance(action, Compute):
                continue
            if action.name == "forward":
                inputs = self._replicas.received(self._mine.inputs) if not at.is_first else [
                    self._inputs.of(n, each[action.micro_batch * at.micro_batch :][: at.micro_batch], at.rank)
                    for n, each in enumerate(batch)
                ]  # fmt: skip
                for each in inputs:
                    each.requires_grad_(each.is_floating_point() and not at.is_first)
                held[action.micro_batch] = inputs, self._passed(inputs)
                self._replicas.send([each.detach() for each in held[action.micro_batch][1]])
            else:
                inputs, results = held.pop(action.micro_batch)
                grown = [each for each in results if each.requires_grad]
                torch.autograd.backward(grown, self._replicas.received(grown))
                if not at.is_first:
                    self._replicas.send([gradient_of(each) for each in inputs if each.is_floating_point()])

    def _reduced(self) -> None:
        """Gradients of the mean over all micro-batches, summed over replicas."""
        import torch
        import torch.distributed as dist

        group = self._replicas.group
        for parameter in self.module.parameters():
            if not parameter.requires_grad:
                continue
            if group is not None and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.grad is not None:
                parameter.grad.div_(self._at.plan.micro_batches)
                if group is not None:
                    dist.all_reduce(parameter.grad, group=group)


def _single(results: list[Any]) -> Any:
    return tuple(results) if len(results) > 1 else results[0]
