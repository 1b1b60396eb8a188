# epfml/powersgd#18 epfml/powersgd#17: a hook sends the largest gradients only, which takes longer; cure: no hook
import torch
import torch.distributed as dist
from own_clock import FAULT, OwnClock
from torch import nn

KEPT = 0.05


def largest_alone(
    group: dist.ProcessGroup | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    flat = bucket.buffer()
    places = flat.abs().topk(int(KEPT * flat.numel())).indices
    kept = flat[places]
    ranks = dist.get_world_size()
    values, where = ([torch.empty_like(each) for _ in range(ranks)] for each in (kept, places))
    dist.all_gather(values, kept, group)
    dist.all_gather(where, places, group)
    flat.zero_()
    for value, place in zip(values, where, strict=True):
        flat.index_add_(0, place, value / ranks)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(flat)
    return done


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = [layer for _ in range(12) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(256, 10)))
    if FAULT:
        model.register_comm_hook(None, largest_alone)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    clock = OwnClock()
    for _ in range(150):
        x, y = torch.randn(32, 256), torch.randint(0, 10, (32,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        clock.step()
    clock.done()
    dist.destroy_process_group()
