"""Trains in a process group, where a kernel that sleeps on the stream of the communication makes its time known.

One rank (its group is made here) or several (by a launcher). On the host gloo's completion sleeps instead.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import common
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256


def join() -> int:
    """This process's rank in the default group."""
    backend = "gloo" if common.ON_HOST or common.REHEARSAL else "nccl"
    if "RANK" in os.environ:
        if not common.ON_HOST:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group(backend)
    else:
        file = os.path.join(tempfile.mkdtemp(), "store")
        dist.init_process_group(backend, init_method=f"file://{file}", rank=0, world_size=1)
    return dist.get_rank()


class Job:
    """A network and a step of it. `comm_ms`: of the sleep beside its communication."""

    def __init__(self, device_ms: float, comm_ms: float) -> None:
        self.device = torch.device(common.DEVICE, *(() if common.ON_HOST else (torch.cuda.current_device(),)))
        self.sleeper = common.Sleeper()
        self.comm_ms = comm_ms
        self.busy = common.Busy(self.sleeper, device_ms, WIDTH, WIDTH)
        self.net: Any = nn.Sequential(self.busy, nn.Linear(WIDTH, WIDTH)).to(self.device)
        self.x = torch.ones(8, WIDTH).to(self.device)
        self.stream = None if common.ON_HOST else torch.cuda.Stream(self.device)
        self.sleeps: list[tuple[Any, Any]] = []
        self.after_backward: Callable[[], None] = lambda: None

    def sleep(self) -> None:
        """Sleeps on the current stream."""
        begin = common.stamp()
        self.sleeper(self.comm_ms)
        self.sleeps.append((begin, common.stamp()))

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Forward, backward, update."""
        optimizer.zero_grad()
        self.net(self.x).sum().backward()
        self.after_backward()
        optimizer.step()


def by_hand(job: Job) -> None:
    """Gradients are reduced on a stream of the script's own after backward, which computation then waits for."""
    stream = job.stream
    assert stream is not None

    def reduce() -> None:
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            begin = common.stamp()
            job.sleeper(job.comm_ms)
            works = [dist.all_reduce(p.grad, async_op=True) for p in job.net.parameters()]
            for work in works:
                work.wait()
            job.sleeps.append((begin, common.stamp()))
        current.wait_stream(stream)

    job.after_backward = reduce


def ddp(job: Job) -> None:
    """One bucket, whose reduction comes after a sleep on the stream that it waits for: all of it is exposed."""
    job.net = DistributedDataParallel(job.net, bucket_cap_mb=1000)

    def hook(_: Any, bucket: Any) -> Any:
        tensor, stream = bucket.buffer(), job.stream
        if stream is None:
            future = dist.all_reduce(tensor, async_op=True).get_future()

            def late(done: Any) -> Any:
                job.sleep()
                return done.value()[0]

            return future.then(late)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            job.sleep()
            future = dist.all_reduce(tensor, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    hook.__annotations__ = {"bucket": dist.GradBucket}  # type: ignore[attr-defined]  # DDP looks at them, and wants no strings
    job.net.register_comm_hook(None, hook)


def fsdp2(job: Job) -> None:
    """The gathering of parameters for the first forward comes after a sleep on FSDP's own stream.

    A single rank gathers nothing: there it is the reduction among replicas that a sleep follows.
    """
    from torch.distributed.fsdp import fully_shard

    if dist.get_world_size() == 1:
        mesh = init_device_mesh(common.DEVICE, (1, 1), mesh_dim_names=("replicate", "shard"))
        fully_shard(job.net, mesh=mesh)
        job.net.set_all_reduce_hook(lambda _: job.sleep())
        return
    mesh = init_device_mesh(common.DEVICE, (dist.get_world_size(),))
    fully_shard(job.net, mesh=mesh)
    gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

    class Late:
        """Does the same as torch's own, but late."""

        def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
            return torch.empty(*size, dtype=dtype, device=device)

        def __call__(self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False) -> Any:
            job.sleep()
            return gather(output_tensor, input_tensor, group=group, async_op=async_op)

    job.net.set_custom_all_gather(Late())


def straggler(job: Job) -> None:
    """Rank 1 computes longer than the others by the sleep."""
    if dist.get_rank() == 1:
        job.busy.ms += job.comm_ms
    job.net = DistributedDataParallel(job.net)


def tensor_parallel(job: Job) -> None:
    """Both layers are split; activations are reduced in forward."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(common.DEVICE, (dist.get_world_size(),))
    job.net = nn.Sequential(job.net[1], nn.Linear(WIDTH, WIDTH, bias=False).to(job.device), job.busy)
    parallelize_module(job.net, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})


KINDS = {"by-hand": by_hand, "ddp": ddp, "fsdp2": fsdp2, "straggler": straggler, "tensor": tensor_parallel}


def main() -> None:
    """Trains; rank 0 writes its steps and the sleeps beside its communication."""
    parser = common.parser(__doc__)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--device-ms", type=float, default=10)
    parser.add_argument("--comm-ms", type=float, default=5)
    args = parser.parse_args()
    rank = join()
    torch.manual_seed(0)
    job = Job(args.device_ms, args.comm_ms)
    KINDS[args.kind](job)
    optimizer = torch.optim.SGD(job.net.parameters(), lr=1e-6, foreach=False)
    steps = common.Steps()
    sleeps: list[float] = []
    for _ in range(args.steps):
        before = len(job.sleeps)
        job.step(optimizer)
        steps.mark("end")
        sleeps.append(len(job.sleeps) - before)
    table = steps.table()
    seconds = iter([common.seconds_between(begin, end) for begin, end in job.sleeps])
    for row, count in zip(table, sleeps, strict=True):
        row["comm"] = sum(next(seconds) for _ in range(int(count)))
    if rank == 0:
        common.write(args.truth, {"steps": table})
    time.sleep(0.1)  # a late completion of gloo's
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
