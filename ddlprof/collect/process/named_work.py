"""What lines do, by the names of the functions and packages that they call."""

from __future__ import annotations

from ddlprof.collect.process.data_places import DRAWING
from ddlprof.model.source_locations import (
    CHECKPOINT,
    COPY,
    DRAWS,
    ENVIRONMENT,
    LOGGING,
    METRIC,
    PARAMETRIZED,
    PLOT,
    RESULT,
    SLEEP,
)

SAVING = frozenset(("save_checkpoint", "save_pretrained", "save_state", "save_model", "save_optimizer_and_scheduler"))
"""Names of functions that save a model. They count anywhere on the stack, in any package."""

CALLS = {
    SLEEP: frozenset(("sleep",)),
    RESULT: frozenset(("item", "tolist", "synchronize")),
    LOGGING: frozenset((
        "print", "add_scalar", "add_scalars", "log_dict", "log_metrics", "add_histogram", "add_histogram_raw",
        "add_image", "add_images", "add_figure", "add_video", "add_text", "add_embedding", "log_image", "log_images",
    )),
    PLOT: frozenset(("savefig", "imsave", "tight_layout", "subplots")),
    COPY: frozenset(("deepcopy", "load_state_dict")),
    CHECKPOINT: frozenset(("save",)) | SAVING,
    DRAWS: DRAWING,
}  # fmt: skip
"""What a line does, by the name of the function that it calls."""

_MODULES = {
    "logging": LOGGING, "wandb": LOGGING, "mlflow": LOGGING, "tensorboard": LOGGING, "tensorboardX": LOGGING,
    "loguru": LOGGING, "comet_ml": LOGGING, "neptune": LOGGING, "clearml": LOGGING,
    "matplotlib": PLOT, "seaborn": PLOT, "plotly": PLOT, "torchmetrics": METRIC, "sklearn": METRIC, "torcheval": METRIC,
    "copy": COPY, "gym": ENVIRONMENT, "gymnasium": ENVIRONMENT, "torch.nn.utils.parametrize": PARAMETRIZED,
}  # fmt: skip
"""What a line does, by the package, or the module, of the function that it calls."""


def work_of_package(module: str) -> str:
    """What a line does that calls this module; empty if it is not known."""
    return _MODULES.get(module) or _MODULES.get(module.partition(".")[0], "")
