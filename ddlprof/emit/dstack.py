"""A plan as a task of dstack, which rents the machines and starts the job on them."""

from __future__ import annotations

import math
from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.emit.pods import job_name
from ddlprof.emit.start import ENDS, Start
from ddlprof.emit.yaml_text import yaml_text

ENDING = "dstack.yml"
_HERE = "/job"
_KEPT = "/checkpoints"
_WAITS = "4h"
"""How long dstack looks for machines when there are none."""
DDLPROF = {"YOUR_DDLPROF": "what pip installs ddlprof from: a wheel in this folder, a path or a URL"}


def how(start: Start) -> str:
    """How the file is used; `{path}` stands for it."""
    return "dstack apply -f {path}"


def render(start: Start) -> str:
    """The YAML. Raises UserError for machines that dstack does not rent."""
    machine = start.machine
    if not machine.rented.dstack:
        raise UserError(f"dstack rents no machines of {machine.cloud}: choose another --emit, or name a --cloud")
    if start.nodes > 1 and not machine.rented.dstack_nodes:
        raise UserError(f"dstack connects no machines of {machine.cloud}: name another --plan, --cloud or --emit")
    if machine.cpu_arch != "x86_64" or machine.is_amd:
        raise UserError(
            f"dstack rents no {machine.instance_type}, only machines with x86 processors and NVIDIA's GPUs: name"
            " another --plan, --instance or --emit"
        )
    out = start.run_directory(f"{_KEPT if machine.is_spot else _HERE}/ddlprof-runs")
    volume = {"YOUR_VOLUME": f"a volume of dstack for checkpoints and the run, in {_KEPT}"}
    if start.nodes > 1:
        volume = {"YOUR_VOLUME": f"volumes of dstack, YOUR_VOLUME-0 for the first machine and so on, each in {_KEPT}"}
    task = {
        "type": "task",
        "name": job_name(start.job),
        "nodes": start.nodes,
        "files": [f".:{_HERE}"],
        "working_dir": _HERE,
        "shell": "bash",
        "commands": [
            "if [ -f requirements.txt ]; then pip install -r requirements.txt; fi",
            "pip install YOUR_DDLPROF",
            _verbatim("\n".join(start.torchrun(out, '"$DSTACK_NODE_RANK"', '"$DSTACK_MASTER_NODE_IP"')) + "\n"),
        ],
        **_machines(start),
        **(_spot(start) if machine.is_spot else {"spot_policy": "on-demand"}),
        "max_duration": f"{max(math.ceil(start.longest_s / 60), 1)}m",
    }
    fill_in = {**DDLPROF, **(volume if machine.is_spot else {})}
    lost = f"What the job writes in {_HERE}, this run too, ends with it: let the script send away what is to be kept."
    more = () if machine.is_spot else (lost,)
    return yaml_text([(start.comments(how(start).format(path="THIS_FILE"), fill_in, ENDS, *more), task)])


def _verbatim(command: str) -> str:
    """A command of dstack's file that reaches the shell as `command`: `$$` is one dollar, and `${{ }}` is replaced."""
    return command.replace("$", "$$") if "$$" in command or "${{" in command else command


def _machines(start: Start) -> dict[str, Any]:
    machine = start.machine
    type_, gpu = machine.attached
    return {
        "resources": {"gpu": {**({"name": gpu} if gpu else {}), "count": start.gpus_per_node}},
        "backends": [machine.rented.dstack],
        **({} if machine.region == "any" else {"regions": [machine.region]}),
        "instance_types": [type_],
    }


def _spot(start: Start) -> dict[str, Any]:
    volume = "YOUR_VOLUME" if start.nodes == 1 else "YOUR_VOLUME-${{ dstack.node_rank }}"
    return {
        "spot_policy": "spot",
        "retry": {"on_events": ["no-capacity", "interruption"], "duration": _WAITS},
        "volumes": [f"{volume}:{_KEPT}"],
    }
