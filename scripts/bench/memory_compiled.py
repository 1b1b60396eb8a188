"""What a cross entropy over logits takes at its peak, run operator by operator and compiled: bytes for each logit.

Trains a product and a loss on the CPU; the peak is that of torch's allocator. Compiling needs a C++ compiler.

    python -m scripts.bench.memory_compiled
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from scripts.bench.memory_truth import STEP_NAME, peak_of

_ROWS, _CLASSES, _WIDTH = 512, 16384, 64


def bytes_for_each_logit(dtype: torch.dtype, compiled: bool, returned: bool) -> float:
    """The peak of one step; `returned`: the caller keeps the logits until after backward."""
    head = torch.nn.Linear(_WIDTH, _CLASSES, bias=False, dtype=dtype)
    x, target = torch.randn(_ROWS, _WIDTH, dtype=dtype), torch.randint(0, _CLASSES, (_ROWS,))

    def loss(x: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        logits = head(x)
        return logits if returned else None, F.cross_entropy(logits.float(), target)

    run = torch.compile(loss) if compiled else loss
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        for name in ("the first step", STEP_NAME):
            head.weight.grad = None
            with torch.profiler.record_function(name):
                kept = run(x)
                kept[1].backward()
            del kept
    own = head.weight.numel() * head.weight.element_size()  # its gradient
    return (peak_of(profile) - own) / (_ROWS * _CLASSES)


def main() -> None:
    """Prints the table."""
    torch.set_num_threads(1)
    print("| logits | returned | by operators | compiled |")
    print("|---|---|---:|---:|")
    for dtype in (torch.bfloat16, torch.float32):
        for returned in (False, True):
            plain, joined = (bytes_for_each_logit(dtype, compiled, returned) for compiled in (False, True))
            print(f"| {str(dtype)[6:]} | {'yes' if returned else 'no'} | {plain:.1f} | {joined:.1f} |", flush=True)


if __name__ == "__main__":
    main()
