"""What is started: a training on equal machines, what all files say of it, and the command that they run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlprof.base.text import shell_word
from ddlprof.base.units import count, duration, significant
from ddlprof.instance_catalog.clouds import Cloud, cloud_named
from ddlprof.model.naming import RUNS_FOLDER

if TYPE_CHECKING:
    from ddlprof.instance_catalog import Catalog
    from ddlprof.recommender.plans.plan import Plan

PORT = 29500
"""The port on which machine 0 brings the ranks together: the usual one of torchrun."""
SCRIPT = "YOUR_SCRIPT"
FILL_IN_SCRIPT = {SCRIPT: "the training script and its arguments"}
IMAGE = {"YOUR_IMAGE": "an image with torch, ddlprof, the script and what it imports"}
"""What is to be filled in by its name in a file; so are other such tables."""
NOW = "$(date -u +%Y%m%d-%H%M%S)"
"""What makes the run directory of each start another one, in words of bash."""
ENDS = "The time limit is the upper end of the interval, which one job in ten exceeds."
"""What files say of the time after which a job is ended."""
_HIDDEN = "***"
_FEWEST_STARTS, _STARTS_PER_EXPECTED = 10, 3
"""A job that is interrupted is started again at least so often, and so many times as often as is expected."""


@dataclass(frozen=True)
class RentedMachine:
    """A type of machine, where it is rented, and how it is paid for."""

    cloud: str
    region: str
    """`any` where prices are the same everywhere."""
    instance_type: str
    gpu_model: str
    is_spot: bool = False
    is_amd: bool = False
    """Whether its GPUs are AMD's."""
    cpu_arch: str = "x86_64"
    efa_interfaces: int = 0
    """Network cards of AWS that a container has to ask for; 0: none, or not known."""

    @property
    def rented(self) -> Cloud:
        """What is known of its cloud."""
        return cloud_named(self.cloud)

    @property
    def attached(self) -> tuple[str, str | None]:
        """The type without the GPUs that are attached to it (GCP: `n1-standard-32+4xt4`), and these, as `T4`; None:
        its GPUs are part of the type."""
        base, plus, gpus = self.instance_type.partition("+")
        return base, gpus.partition("x")[2].upper() if plus else None

    def words(self) -> str:
        """`p4d.24xlarge (A100-SXM4-40GB), aws us-east-1, spot`."""
        region = "" if self.region == "any" else f" {self.region}"
        return (
            f"{self.instance_type} ({self.gpu_model}), {self.cloud}{region}, {'spot' if self.is_spot else 'on demand'}"
        )


@dataclass(frozen=True)
class Start:
    """One training on equal machines, all of whose GPUs are used."""

    job: str
    words: tuple[str, ...]
    """The script and its arguments, or `-m`, the module and its; empty if they are not known."""
    machine: RentedMachine
    nodes: int
    gpus_per_node: int
    time_s: float
    """The time that is predicted for the whole job."""
    longest_s: float
    """The upper end of its 80 % interval."""
    checkpoint_every_s: float | None = None
    """The work after which the plan counts on a checkpoint; None: it counts on none."""
    interruptions: float = 0.0
    """How many are expected in the whole job."""
    told: tuple[str, ...] = ()
    """What was predicted, and what it holds for, a line each."""
    others: tuple[RentedMachine, ...] = ()
    """The machines of other plans on which the same command does the same training, the best first."""

    @property
    def name(self) -> str:
        """The job's name as any file and engine but Kubernetes takes it."""
        return file_name(self.job)

    @property
    def starts(self) -> int:
        """How often a job on spot machines may be started again."""
        return max(_FEWEST_STARTS, math.ceil(self.interruptions * _STARTS_PER_EXPECTED))

    def comments(self, how: str, fill_in: Mapping[str, str], *more: str) -> list[str]:
        """The lines that a file with the command begins with. `how` says how it is started, `fill_in` what stands for
        what in it."""
        script = {} if self.words else FILL_IN_SCRIPT
        hidden = any(_HIDDEN in word for word in self.words)
        return [
            *self.of_machines(how, {**fill_in, **script}, *([self._spot()] if self.machine.is_spot else []), *more),
            *([f"{_HIDDEN} stands for what may be a credential, which no run holds: put it back."] if hidden else []),
            "This run is measured, too: without `-m ddlprof run ...` the training is the same.",
        ]

    def of_machines(self, how: str, fill_in: Mapping[str, str], *more: str) -> list[str]:
        """The same for a file that only asks for the machines."""
        return [
            f"Written by ddlprof recommend for {self.job}; start it with: {how}",
            *self.told,
            *more,
            *(["Fill in:"] if fill_in else []),
            *(f"  {name}: {meaning}" for name, meaning in fill_in.items()),
        ]

    def _spot(self) -> str:
        every_s = self.checkpoint_every_s
        often = f" every {duration(every_s)}" if every_s else "s"
        return (
            f"A spot machine can be taken away at any time: let the job write a checkpoint{often}, and go on from the"
            " last one when it starts."
        )

    def run_directory(self, folder: str = RUNS_FOLDER, stamp: str = NOW) -> str:
        """The run directory in double quotes of bash; `stamp` makes that of each start another one."""
        return f'"{folder}/{self.name}-{stamp}"'

    def torchrun(self, out: str, rank: str, address: str) -> list[str]:
        """The lines of the command on each machine: see the function."""
        return torchrun(self.words, self.nodes, self.gpus_per_node, out, rank, address)


def torchrun(words: Sequence[str], nodes: int, gpus_per_node: int, out: str, rank: str, address: str) -> list[str]:
    """The lines of the command on each machine, for bash. `out`, `rank` and `address` are quoted where they have to be:
    the run directory, the number of the machine and the address of machine 0. That machine alone names the directory,
    and the ranks of the others learn of it, as no two clocks agree."""
    several = [f"--nnodes {nodes}", f"--node-rank {rank}", f"--master-addr {address}", f"--master-port {PORT}"]
    parts = [
        "torchrun",
        *(several if nodes > 1 else ["--standalone"]),
        f"--nproc-per-node {gpus_per_node}",
        f"-m ddlprof run --out {out}" if nodes == 1 else '-m ddlprof run ${RUN:+--out "$RUN"}',
        " ".join(map(shell_word, words or (SCRIPT,))),
    ]
    named = [f"if [ {rank} = 0 ]; then RUN={out}; else RUN=; fi"] if nodes > 1 else []
    return [*named, f"{parts[0]} \\", *(f"  {part} \\" for part in parts[1:-1]), f"  {parts[-1]}"]


def file_name(job: str) -> str:
    """A name of letters and digits, with single dashes, underscores and dots between them."""
    return "-".join(re.findall(r"[A-Za-z0-9]+(?:[_.][A-Za-z0-9]+)*", job)) or "train"


def start_of(
    plans: Sequence[Plan], plan: Plan, number: int, job: str, words: Sequence[str], asked: str, catalog: Catalog
) -> Start:
    """What this plan, of this number in the table, starts; the others may have machines for it, too.

    `words` are those that were profiled: the user must adapt the batch in them, and the settings in `asked`, which the
    plan has in place of the run's.
    """
    machine = _machine(plan, catalog)
    others = dict.fromkeys(_machine(other, catalog) for other in plans if _training(other) == _training(plan))
    return Start(
        job=job,
        words=tuple(words),
        machine=machine,
        nodes=plan.nodes,
        gpus_per_node=plan.placement[0],
        time_s=plan.time_s or 0.0,
        longest_s=plan.time_high_s or 0.0,
        checkpoint_every_s=plan.checkpoint_every_s,
        interruptions=plan.interruptions or 0.0,
        told=tuple(_told(plan, number, machine, asked)),
        others=tuple(other for other in others if other != machine),
    )


def _training(plan: Plan) -> tuple[object, ...]:
    """What plans have in common that train alike with one command."""
    return plan.placement, plan.batch_per_gpu, plan.grad_accum, plan.global_batch, plan.layout


def _machine(plan: Plan, catalog: Catalog) -> RentedMachine:
    name = plan.cloud, plan.instance_type
    found = next((each for each in catalog.instances if (each.cloud, each.instance_type) == name), None)
    architecture = catalog.gpu(plan.gpu_model).architecture or ""
    return RentedMachine(
        plan.cloud, plan.region, plan.instance_type, plan.gpu_model, plan.pricing == "spot",
        architecture.startswith("CDNA"), plan.cpu_arch or "x86_64", (found.efa_interfaces if found else None) or 0,
    )  # fmt: skip


def _told(plan: Plan, number: int, machine: RentedMachine, asked: str) -> list[str]:
    return [
        f"Plan {number}: {plan.nodes} x {machine.words()}.",
        f"Predicted: {_range(plan.time_s, plan.time_low_s, plan.time_high_s, duration)},"
        f" {_range(plan.cost_usd, plan.cost_low_usd, plan.cost_high_usd, significant)} USD (80 % intervals).",
        f"It holds for {plan.batch_per_gpu} samples per GPU and forward pass,"
        f" {count(plan.grad_accum, 'pass', 'passes')} an update, {plan.global_batch} samples an update in all.",
        *([f"It is with {asked}: see that the command below asks for it."] if asked else []),
        *([f"Its layout is {plan.layout}: see that the command below asks for it."] if plan.layout else []),
    ]


def _range(mean: float | None, low: float | None, high: float | None, text: Callable[[float], str]) -> str:
    return f"{text(mean or 0.0)} [{text(low or 0.0)} - {text(high or 0.0)}]"
