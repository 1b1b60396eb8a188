"""Tries the files that `ddlprof recommend --emit` writes on the engines' own packages: their schemas and parsers.

    python -m scripts.lab.emitted_files FOLDER

FOLDER gets an environment for each package, as their requirements collide, and the files. Nothing is rented or
submitted; nothing but the registry of packages is reached. `scripts/lab/slurm_submits.sh` does the same for Slurm. It
ends with a line for each engine; the exit code is 1 where one refuses a file.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddlprof.emit.engines import ENGINES
from ddlprof.emit.start import RentedMachine, Start

P4D = RentedMachine("aws", "us-east-1", "p4d.24xlarge", "A100-SXM4-40GB", efa_interfaces=4)
TWO = Start(
    "bert", ("train.py", "--lr", "0.1"), P4D, 2, 8, 7200.0, 10_000.0,
    told=("Plan 1: 2 x p4d.24xlarge.",), others=(replace(P4D, instance_type="p4de.24xlarge"),),
)  # fmt: skip
TWO_ON_SPOT = replace(
    TWO, machine=replace(P4D, is_spot=True), checkpoint_every_s=600.0, interruptions=4.5,
    others=(replace(P4D, instance_type="p4de.24xlarge", is_spot=True),),
)  # fmt: skip
STARTS = {
    "one": replace(TWO, nodes=1, others=()),
    "two": TWO,
    "one on spot": replace(TWO_ON_SPOT, nodes=1, others=()),
    "two on spot": TWO_ON_SPOT,
}
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
"""What a user might write for each name."""
NAME = re.compile(r"YOUR_[A-Z]+(?:_[A-Z]+)*")
SKY_COLUMNS = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,"
SKY_COLUMNS += "AvailabilityZone,Arch"
_SKY = f'''
import os, pathlib, sys
home = pathlib.Path(sys.argv[1]).resolve().parent / "home"
os.environ["HOME"] = str(home)  # its catalogue, which it would download
catalog = home / ".sky/catalogs/v8/aws/vms.csv"
catalog.parent.mkdir(parents=True, exist_ok=True)
row = "{{}},A100,8,96,1152,,32.8,9.8,us-east-1,us-east-1a,x86_64"
catalog.write_text("\\n".join(["{SKY_COLUMNS}", *map(row.format, ("p4d.24xlarge", "p4de.24xlarge"))]) + "\\n")
import sky
for path in sys.argv[1:]:
    task = sky.Task.from_yaml(path)
    machines = [(each.instance_type, each.use_spot, bool(each.job_recovery)) for each in task.resources]
    print(path, task.num_nodes, machines)
    assert all(spot == recovers == ("spot" in path) for _, spot, recovers in machines), path
'''
_DSTACK = """
import sys, yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
for path in sys.argv[1:]:
    task = parse_apply_configuration(yaml.safe_load(open(path)))
    print(path, task.nodes, task.max_duration, task.retry)
"""
_PCLUSTER = """
import os, sys, yaml
os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
from pcluster.schemas.cluster_schema import ClusterSchema
for path in sys.argv[1:]:
    cluster = ClusterSchema(cluster_name="bert").load(yaml.safe_load(open(path)))
    print(path, cluster.scheduling.queues[0].capacity_type)
"""
_KUBERNETES = """
import json, sys, types, yaml, kubernetes_validate
from kubeflow.training.api_client import ApiClient
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

def texts(value):  # a quantity may come back as a text
    if isinstance(value, dict):
        return {key: texts(each) for key, each in value.items()}
    return [texts(each) for each in value] if isinstance(value, list) else str(value)

def pods_of(job):
    parts = job["spec"].get("pytorchReplicaSpecs", {}).values()
    jobs = [each["template"]["spec"] for each in job["spec"].get("replicatedJobs", [])]
    return [each["template"]["spec"] for each in (*parts, *jobs)]

for path in sys.argv[1:]:
    for job in yaml.safe_load_all(open(path)):
        if job["kind"] == "JobSet":
            read = JobsetV1alpha2JobSet.from_dict(job)
            assert read.to_dict() == job, path  # what is unknown does not come back
        else:
            response = types.SimpleNamespace(data=json.dumps(job))
            read = ApiClient().deserialize(response, "KubeflowOrgV1PyTorchJob")
            assert texts(ApiClient().sanitize_for_serialization(read)) == texts(job), path
        for part in pods_of(job):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": part}
            kubernetes_validate.validate(pod, "1.33", strict=True)
        for part in job["spec"].get("replicatedJobs", []):
            template = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, **part["template"]}
            kubernetes_validate.validate(template, "1.33", strict=True)
        print(path, job["kind"])
"""
_CHECKS = {
    "skypilot": (["skypilot"], _SKY, ["skypilot"]),
    "dstack": (["dstack"], _DSTACK, ["dstack"]),
    "parallelcluster": (["aws-parallelcluster", "setuptools<81"], _PCLUSTER, ["parallelcluster"]),
    "kubernetes": (
        ["kubeflow-trainer-api", "kubeflow-training", "kubernetes-validate"], _KUBERNETES,
        ["kubernetes", "pytorchjob"],
    ),
}  # fmt: skip
"""The packages of an environment, what is run in it, and the engines whose files it takes."""
_FIELDS = ("num_nodes", "max_duration", "CapacityType", "completionMode", "cleanPodPolicy")
"""A field of each kind of file."""


def filled_in(text: str) -> str:
    """The text with what a user would have filled in."""
    return NAME.sub(lambda name: FILLED_IN[name[0]], text)


def write_files(folder: Path) -> dict[str, list[Path]]:
    """The files of each engine."""
    texts = {
        engine: {f"{case}.{made.ending}": made.render(start) for case, start in STARTS.items()}
        for engine, made in ENGINES.items()
    }
    return written(folder, texts)


def written(folder: Path, texts: Mapping[str, Mapping[str, str]]) -> dict[str, list[Path]]:
    """The files of these texts, as a user would have filled them in."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, list[Path]] = {engine: [] for engine in texts}
    for engine, files in texts.items():
        for name, text in files.items():
            path = folder / name.replace(" ", "-")
            path.write_text(filled_in(text), encoding="utf-8")
            paths[engine].append(path)
    return paths


def checked(folder: Path, name: str, files: Mapping[str, Sequence[Path]]) -> bool:
    """Whether the packages take the files of their engines; what they say is printed."""
    packages, code, engines = _CHECKS[name]
    environment = folder / name
    if not environment.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        subprocess.run([environment / "bin/pip", "install", "-qq", *packages], check=True)
    paths = [str(path) for engine in engines for path in files[engine]]
    python = [str(environment / "bin/python"), "-c", code]
    done = subprocess.run([*python, *paths], capture_output=True, text=True)
    fooled = [
        path for path in map(_spoiled, paths) if subprocess.run([*python, path], capture_output=True).returncode == 0
    ]
    listed = subprocess.run([environment / "bin/pip", "list"], capture_output=True, text=True).stdout.split("\n")
    wanted = {package.partition("<")[0].replace("-", "_") for package in packages} - {"setuptools"}
    versions = [" ".join(line.split()) for line in listed if line.partition(" ")[0].replace("-", "_") in wanted]
    print(done.stdout, done.stderr if done.returncode else "", sep="", end="")
    print(*(f"{path}: TAKEN WITH A MISSPELT FIELD" for path in fooled), sep="\n", end="\n" * bool(fooled))
    print(f"{name}: {'taken' if done.returncode == 0 else 'REFUSED'} by {', '.join(versions)}")
    return done.returncode == 0 and not fooled


def _spoiled(path: str) -> str:
    """The file with a misspelt field, which shows that the packages look at all of them."""
    made = Path(path)
    text = made.read_text(encoding="utf-8")
    spoiled = made.with_name(f"spoiled-{made.name}")
    field = next(field for field in _FIELDS if f" {field}:" in text or f"\n{field}:" in text)
    spoiled.write_text(text.replace(f"{field}:", f"{field}x:"), encoding="utf-8")
    return str(spoiled)


def write_for_slurm(folder: Path) -> None:
    """The scripts for sbatch, and two that train the example on two ranks on each of two nodes."""
    write_files(folder)
    for path in folder.iterdir():
        if not path.name.endswith(ENGINES["slurm"].ending):
            path.unlink()
    example = Path(__file__).parents[2] / "examples" / "digits.py"
    for name, start in (("trained", TWO), ("interrupted", TWO_ON_SPOT)):
        trained = replace(start, job=name, words=(str(example),), gpus_per_node=2, longest_s=300.0)
        (folder / f"{name}.sbatch.sh").write_text(ENGINES["slurm"].render(trained), encoding="utf-8")


def main(folder: Path) -> int:
    """Tries all files; returns the exit code."""
    files = write_files(folder / "files")
    taken = [checked(folder, name, files) for name in _CHECKS]
    return 0 if all(taken) else 1


if __name__ == "__main__":
    if sys.argv[1] == "--slurm":
        write_for_slurm(Path(sys.argv[2]))
    else:
        sys.exit(main(Path(sys.argv[1])))
