"""The frameworks that a plan with a layout is started with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ddlprof.base.errors import UserError
from ddlprof.base.units import percent, significant
from ddlprof.emit.frameworks import accelerate, megatron, torchtitan
from ddlprof.emit.frameworks.training import DividedTraining
from ddlprof.recommender.layout import Layout, parse_layout

if TYPE_CHECKING:
    from ddlprof.recommender import Workload
    from ddlprof.recommender.plans.plan import Plan


class Framework(NamedTuple):
    """A framework: the ending of its file, how it is started, what raises UserError for a layout that it has no word
    for, and what makes the file."""

    ending: str
    start: str
    check: Callable[[DividedTraining], None]
    render: Callable[[DividedTraining], str]


FRAMEWORKS = {
    "megatron": Framework("megatron.args", megatron.START, megatron.check, megatron.render),
    "torchtitan": Framework("torchtitan.toml", torchtitan.START, torchtitan.check, torchtitan.render),
    "accelerate": Framework("accelerate.yaml", accelerate.START, accelerate.check, accelerate.render),
}


def allows(engine: str, workload: Workload, precision: str) -> Callable[[Layout], bool]:
    """Tells whether a framework has words for a layout of the job. Raises UserError where it cannot with any."""
    model = workload.transformer
    assert model is not None

    def trained(layout: Layout) -> DividedTraining:
        return DividedTraining(workload.name, model, layout, 1, 1, 1, layout.model_ranks, 1, precision)

    def allowed(layout: Layout) -> bool:
        try:
            FRAMEWORKS[engine].check(trained(layout))
        except UserError:
            return False
        return True

    FRAMEWORKS[engine].check(trained(Layout()))
    return allowed


def training_of(plan: Plan, workload: Workload, precision: str = "bf16") -> DividedTraining:
    """The training of a plan with a layout."""
    assert plan.layout is not None  # the best plans of a search have one
    assert workload.transformer is not None
    return DividedTraining(
        job=workload.name,
        model=workload.transformer,
        layout=parse_layout(plan.layout).layout,
        micro_batch=plan.batch_per_gpu,
        micro_batches=plan.grad_accum,
        nodes=plan.nodes,
        gpus_per_node=plan.placement[0],
        steps=plan.steps,
        precision=precision,
        predicted=_predicted(plan),
    )


def _predicted(plan: Plan) -> str:
    step = f"{significant(plan.step_s or 0.0)} [{significant(plan.step_low_s or 0.0)} -"
    step += f" {significant(plan.step_high_s or 0.0)}] s a step (80 % interval)"
    parts = [f"Predicted on {plan.nodes} x {plan.instance_type}: {step}"]
    parts += [f"MFU {percent(plan.mfu)}"] if plan.mfu is not None else []
    parts += [f"{plan.memory_gib_needed:.0f} GiB of a GPU"] if plan.memory_gib_needed is not None else []
    return ", ".join(parts) + "."
