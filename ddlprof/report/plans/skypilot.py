"""A plan as a task file for SkyPilot, which rents the machines and starts the job on them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ddlprof.base.errors import UserError
from ddlprof.base.text import plain, shell_word
from ddlprof.base.units import count, duration, significant
from ddlprof.report.text import text_of

if TYPE_CHECKING:
    from recommender.plans.plan import Plan

_HIDDEN = "***"
_ATTACHED = re.compile(r"(?P<machine>.+)\+(?P<count>\d+)x(?P<gpu>.+)")
"""GCP machines with GPUs attached: `n1-standard-32+4xt4`."""

_PLACEHOLDER = ("train.py",)
_NOT_BY_TYPE = ("coreweave", "vast")
"""Clouds whose machines SkyPilot does not rent by the catalogue's names of types."""


def render(plan: Plan, job: str, words: Sequence[str], asked: str = "") -> str:
    """The YAML of the plan, ending with a line end.

    `words` are the script and its arguments, or `-m`, the module and its; empty if the command is not known. They are
    the words that were profiled: the user must adapt the batch in them, and the settings in `asked`, which the plan
    has in place of the run's. Raises UserError for a cloud whose machines SkyPilot cannot be told to rent.
    """
    if plan.cloud in _NOT_BY_TYPE:
        raise UserError(f"SkyPilot rents no machines of {plan.cloud} by type: leave --emit out, or name a --cloud")
    lines = [
        "# Written by ddlprof recommend; start it with: sky launch THIS_FILE",
        f"# Predicted: {_range(plan.time_s, plan.time_low_s, plan.time_high_s, duration)},"
        f" {_range(plan.cost_usd, plan.cost_low_usd, plan.cost_high_usd, significant)} USD (80 % intervals).",
        f"# It holds for {plan.batch_per_gpu} samples per GPU and forward pass,"
        f" {count(plan.grad_accum, 'pass', 'passes')} an update, {plan.global_batch} samples an update in all.",
        *([f"# It is with {asked}: see that the command below asks for it."] if asked else []),
        *([f"# A spot machine can be taken away at any time: let the job {_saving(plan)}."] if _spot(plan) else []),
        f"name: {_quoted(task_name(job))}",
        "resources:",
        *(f"  {key}: {value}" for key, value in _resources(plan).items()),
        f"num_nodes: {plan.nodes}",
        "workdir: .",
        "setup: |",
        "  # Install what the job needs, torch included.",
        "  if [ -f requirements.txt ]; then pip install -r requirements.txt; fi",
        "run: |",
        *(f"  {line}" for line in _run(plan, words)),
    ]
    return text_of(lines)


def _saving(plan: Plan) -> str:
    """How often the plan counts on a checkpoint."""
    every_s = plan.checkpoint_every_s
    return f"write a checkpoint every {duration(every_s)}" if every_s else "write checkpoints"


def _spot(plan: Plan) -> bool:
    return plan.pricing == "spot"


def _range(mean: float | None, low: float | None, high: float | None, text: Callable[[float], str]) -> str:
    return f"{text(mean or 0.0)} [{text(low or 0.0)} - {text(high or 0.0)}]"


def _resources(plan: Plan) -> dict[str, str]:
    where = plan.cloud if plan.region == "any" else f"{plan.cloud}/{plan.region}"
    resources = {"infra": _quoted(where)}
    attached = _ATTACHED.fullmatch(plan.instance_type)
    if attached:
        resources["instance_type"] = _quoted(attached["machine"])
        resources["accelerators"] = _quoted(f"{attached['gpu'].upper()}:{attached['count']}")
    else:
        resources["instance_type"] = _quoted(plan.instance_type)
    resources["use_spot"] = str(_spot(plan)).lower()
    return resources


def _run(plan: Plan, words: Sequence[str]) -> list[str]:
    """The shell lines that each node runs."""
    lines = []
    if not words:
        lines.append("# Put the training script and its arguments here.")
    if any(_HIDDEN in word for word in words):
        lines.append(f"# {_HIDDEN} stands for a credential that was left out: put it in a secret of the task.")
    command = [
        "torchrun",
        f"--nnodes {plan.nodes}",
        f"--nproc-per-node {plan.placement[0]}",
        '--node-rank "$SKYPILOT_NODE_RANK"',
        '--master-addr "$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"',
        "--master-port 29500",
        " ".join(map(shell_word, words or _PLACEHOLDER)),
    ]
    return [*lines, *(f"{part} \\" for part in command[:-1]), command[-1]]


def task_name(job: str) -> str:
    """The name as SkyPilot takes it: letters, digits, dashes, underscores and dots."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", job).strip("-.") or "train"


def _quoted(text: str) -> str:
    """The text as YAML: JSON's double quotes are YAML's, and so are the escapes of `plain`."""
    return plain(json.dumps(text, ensure_ascii=False))
