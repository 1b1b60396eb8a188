"""The columns of the CSV file of `recommend`, in their order: what each means, and when it is empty."""

from __future__ import annotations

from ddlprof.recommender.estimate import CLASSES

_REFUSED = "nothing was predicted"
_NOT_SEEN = "not observed in the run"
_NOT_COUNTED = "interruptions are not counted"
_NO_PRICE = "no price is known"
_NO_POWER = "their power is not known"

PLAN_COLUMNS: dict[str, tuple[str, str]] = {
    "position": ("its place among the plans that are accepted, from 1", "it is rejected"),
    "cloud": ("the cloud", ""),
    "region": ("the region whose price counts", ""),
    "instance_type": ("the type of the machines", ""),
    "nodes": ("the number of machines", ""),
    "placement": ("GPUs used on each machine, separated by spaces", ""),
    "gpus": ("the GPUs of all machines", ""),
    "gpu_model": ("their model", ""),
    "pricing": ("the way to pay: on_demand or spot", ""),
    "batch_per_gpu": ("samples of one GPU in a forward pass", ""),
    "global_batch": ("samples of one update over all GPUs", ""),
    "steps": ("updates for the work asked for", ""),
    "step_s": ("the predicted step", _REFUSED),
    "step_low_s": ("the lower end of its 80 % interval", _REFUSED),
    "step_high_s": ("the upper end", _REFUSED),
    "time_h": ("hours of the whole job, start-up included", _REFUSED),
    "time_low_h": ("the lower end of its 80 % interval", _REFUSED),
    "time_high_h": ("the upper end, which has to meet the budget", _REFUSED),
    "cost_usd": ("the cost of the whole job", _NO_PRICE),
    "cost_low_usd": ("the lower end of its 80 % interval", _NO_PRICE),
    "cost_high_usd": ("the upper end", _NO_PRICE),
    **{f"{name}_s": (f"the part of the step that is {name}", _REFUSED) for name in CLASSES if name != "bubble"},
    "bound_by": ("the class that takes the most time", _REFUSED),
    "memory_gib_needed": ("the memory needed on one GPU", "it cannot be told"),
    "fits_memory": ("whether that fits, at least perhaps", "it cannot be told"),
    "meets_budget": ("whether the upper end of the time meets the budget", _REFUSED),
    "extrapolated": ("whether the target is outside of what was measured, with a wider interval", _REFUSED),
    "price_as_of": ("the date of the price", _NO_PRICE),
    "reason": ("why it is rejected, `NAME: DETAILS`", "it is accepted"),
    "price_basis": ("what the price rests on: list, a discount, prices of your own", _NO_PRICE),
    "list_cost_usd": ("the cost at list price", "the price is the list's, or no list price is known"),
    "start_up_s": ("start-up of the job, in the time", _NOT_SEEN),
    "epoch_start_s": ("the waits for first batches of epochs, in the time", _NOT_SEEN),
    "evaluation_s": ("evaluations, in the time", _NOT_SEEN),
    "checkpoint_s": ("checkpoints, in the time", _NOT_SEEN),
    "bubble_s": ("the part of the step in which pipeline stages wait for each other", "no pipeline"),
    "layout": ("how the model is divided over the GPUs", "it is not divided"),
    "mfu": ("model FLOPs of the step over the peak of all GPUs", "not known"),
    "tokens_per_s": ("tokens that all GPUs train on in a second", "not known"),
    "interruptions_per_hour": ("interruptions of all machines together in an hour", _NOT_COUNTED),
    "interruptions": ("how many are expected in the whole job", _NOT_COUNTED),
    "checkpoint_every_s": ("the work from one checkpoint to the next", _NOT_COUNTED),
    "interrupted_s": ("work done again, and machines started again, in the time", _NOT_COUNTED),
    "energy_kwh": (
        "what the GPUs take at most: the power of their boards, for the whole time",
        _NO_POWER,
    ),
    "memory_verdict": (
        "`fits`, `fits perhaps` (from 10 to 90 % likely) or `does not fit`, by the 80 % interval of the need",
        "it cannot be told",
    ),
    "memory_fit_probability": ("the probability that it fits, from 0 to 1", "it cannot be told"),
    "would_fit_with": (
        "options with each of which it would fit, separated by semicolons",
        "it does not fit perhaps, or none is known",
    ),
}
