"""A plan as a task of SkyPilot, which rents the machines and starts the job on them."""

from __future__ import annotations

from typing import Any

from ddlprof.base.errors import UserError
from ddlprof.base.units import duration
from ddlprof.emit.dstack import DDLPROF
from ddlprof.emit.start import RentedMachine, Start
from ddlprof.emit.yaml_text import yaml_text

ENDING = "sky.yaml"
_KEPT = "/checkpoints"
_MOST_OTHERS = 4


def how(start: Start) -> str:
    """How the file is used; `{path}` stands for it. Managed jobs start again when a spot machine is taken away."""
    return "sky jobs launch {path}" if start.machine.is_spot else "sky launch {path}"


def render(start: Start) -> str:
    """The YAML. The machines of other plans that train alike are tried in their order where the first are not to be
    had. Raises UserError for a cloud whose machines SkyPilot cannot be told to rent, or not for such a job."""
    machine = start.machine
    if lacking := _lacking(machine, start.nodes):
        raise UserError(f"SkyPilot {lacking}: choose another --emit, or name a --cloud")
    others = [each for each in start.others if each.is_spot == machine.is_spot and not _lacking(each, start.nodes)]
    others = others[:_MOST_OTHERS]
    folder = f"{_KEPT}/ddlprof-runs" if machine.is_spot else "ddlprof-runs"
    command = start.torchrun(
        start.run_directory(folder), '"$SKYPILOT_NODE_RANK"', '"$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"'
    )
    task = {
        "name": start.name,
        "resources": _resources(start, others),
        "num_nodes": start.nodes,
        "workdir": ".",
        **({"file_mounts": {_KEPT: {"name": "YOUR_BUCKET", "mode": "MOUNT_CACHED"}}} if machine.is_spot else {}),
        "setup": "if [ -f requirements.txt ]; then pip install -r requirements.txt; fi\npip install YOUR_DDLPROF\n",
        "run": "\n".join(command) + "\n",
    }
    bucket = {"YOUR_BUCKET": f"a bucket for checkpoints and the run, in {_KEPT}; SkyPilot makes it if it is new"}
    comments = start.comments(
        how(start).format(path="THIS_FILE"), {**DDLPROF, **(bucket if machine.is_spot else {})},
        f"SkyPilot shows the price of one hour; the job is expected to take {duration(start.time_s)}.",
        *_tried(others),
        *([] if machine.is_spot else ["Its machines are paid for until `sky down`: fetch the run first."]),
    )  # fmt: skip
    return yaml_text([(comments, task)])


def _lacking(machine: RentedMachine, nodes: int) -> str | None:
    """What SkyPilot does not do that a job on so many of these machines needs; None: nothing."""
    if not machine.rented.skypilot:
        return f"rents no machines of {machine.cloud} by type"
    if nodes > 1 and not machine.rented.skypilot_nodes:
        return f"connects no machines of {machine.cloud}"
    if machine.is_spot and not machine.rented.skypilot_buckets:
        return f"mounts no bucket on {machine.cloud}, where a spot job would keep its checkpoints"
    return None


def _tried(others: list[RentedMachine]) -> list[str]:
    """Why there are several machines in the file."""
    if not others:
        return []
    return ["If its machines are not to be had, those of the next plans that train alike are, in this order."]


def _resources(start: Start, others: list[RentedMachine]) -> dict[str, Any]:
    machines = [_resource(each, start.gpus_per_node) for each in (start.machine, *others)]
    recovery = {"job_recovery": {"strategy": "EAGER_NEXT_REGION"}} if start.machine.is_spot else {}
    return {**({"ordered": machines} if others else machines[0]), **recovery}


def _resource(machine: RentedMachine, gpus: int) -> dict[str, Any]:
    cloud = machine.rented.skypilot
    where = cloud if machine.region == "any" else f"{cloud}/{machine.region}"
    type_, gpu = machine.attached
    accelerators = {"accelerators": f"{gpu}:{gpus}"} if gpu else {}
    return {"infra": where, "instance_type": type_, **accelerators, "use_spot": machine.is_spot}
