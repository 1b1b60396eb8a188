"""Plans to start, and the files of them with everything filled in."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ddlprof.report.launch.machines.engines import MACHINES
from ddlprof.report.launch.machines.start import Machine, Start

P4D = Machine("aws", "us-east-1", "p4d.24xlarge", "A100-SXM4-40GB", efa_interfaces=4)
SPOT = replace(P4D, is_spot=True)
TWO = Start(
    "bert", ("train.py", "--lr", "0.1"), P4D, 2, 8, 7200.0, 10_000.0,
    told=("Plan 1: 2 x p4d.24xlarge.",), others=(replace(P4D, instance_type="p4de.24xlarge"),),
)  # fmt: skip
ONE = replace(TWO, nodes=1, others=())
TWO_ON_SPOT = replace(TWO, machine=SPOT, checkpoint_every_s=600.0, interruptions=4.5, others=())
ONE_ON_SPOT = replace(TWO_ON_SPOT, nodes=1)
STARTS = {"one": ONE, "two": TWO, "one on spot": ONE_ON_SPOT, "two on spot": TWO_ON_SPOT}
FILLED_IN = {
    "YOUR_IMAGE": "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1",
    "YOUR_ROLE_ARN": "arn:aws:iam::123456789012:role/train",
    "YOUR_BUCKET": "a-bucket-of-ours",
    "YOUR_SUBNET": "subnet-0123456789abcdef0",
    "YOUR_PRIVATE_SUBNET": "subnet-0123456789abcdef1",
    "YOUR_KEY": "key",
    "YOUR_CLAIM": "data",
    "YOUR_QUEUE": "team",
    "YOUR_TOPOLOGY_LEVEL": "cloud.provider.com/topology-rack",
    "YOUR_RACK_LABEL": "cloud.provider.com/topology-rack",
    "YOUR_VOLUME": "data",
    "YOUR_DDLPROF": "ddlprof.whl",
    "YOUR_SCRIPT": "train.py",
}
_NAME = re.compile(r"YOUR_[A-Z]+(?:_[A-Z]+)*")


def rendered(engine: str, start: Start) -> str:
    """The file of an engine."""
    return MACHINES[engine].render(start)


def filled_in(text: str) -> str:
    """The text with what a user would have filled in."""
    return _NAME.sub(lambda name: FILLED_IN[name[0]], text)


def to_fill_in(text: str) -> tuple[set[str], set[str]]:
    """The names that the comments explain, and those that stand for something."""
    comments = [line for line in text.splitlines() if line.startswith("#")]
    explained = {found[1] for line in comments if (found := re.match(r"#   (YOUR_\w+): .", line))}
    used = {name for line in text.splitlines() if not line.startswith("#") for name in _NAME.findall(line)}
    return explained, used


def container(pod: dict[str, Any]) -> dict[str, Any]:
    """The only container of a pod."""
    (found,) = pod["containers"]
    return dict(found)
