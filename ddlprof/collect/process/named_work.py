"""What lines do, by the names of the functions and packages that they call."""

from __future__ import annotations

from ddlprof.collect.process.data_places import DRAWING, WRITING
from ddlprof.model.source_locations import (
    CHECKPOINT,
    CONSTANT,
    COPY,
    DECOMPOSES,
    DERIVES,
    DRAWS,
    ENVIRONMENT,
    JOINS,
    LOGGING,
    MAKES_GROUPS,
    METRIC,
    NETWORK,
    ONE_HOT,
    PARAMETRIZED,
    PLOT,
    RESULT,
    SLEEP,
    WRITES,
)

SAVING = frozenset(("save_checkpoint", "save_pretrained", "save_state", "save_model", "save_optimizer_and_scheduler"))
"""Names of functions that save a model. They count anywhere on the stack, in any package."""

_MAKING_GROUPS = frozenset(("new_group", "new_subgroups", "new_subgroups_by_enumeration", "init_device_mesh"))
"""Functions of torch.distributed that make process groups, in wrappers of its own."""

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
    WRITES: WRITING,
    JOINS: frozenset(("cat", "concat", "concatenate", "vstack", "hstack")),
}  # fmt: skip
"""What a line does, by the name of the function that it calls."""

IN_PASSES = {
    DECOMPOSES: frozenset((
        "svd", "svdvals", "svd_lowrank", "pca_lowrank", "eig", "eigh", "eigvals", "eigvalsh", "inv", "inverse", "pinv",
        "pinverse", "det", "slogdet", "logdet", "cholesky", "qr", "lstsq", "matrix_exp", "matrix_rank",
        "MultivariateNormal",
    )),
    DERIVES: frozenset(("grad", "jacobian", "hessian")),
    ONE_HOT: frozenset(("one_hot",)),
    CONSTANT: frozenset((
        "ones", "full", "eye", "arange", "linspace", "logspace", "triu", "tril", "triu_indices", "tril_indices",
        "meshgrid", "cartesian_prod", "hann_window", "hamming_window",
    )),
}  # fmt: skip
"""The same in forwards and losses; of gradients where a graph of them is made (create_graph), or in a loop."""

CASTS = frozenset(("float", "half", "bfloat16", "double", "to", "type"))
"""Functions that give what was made another type, on the line that makes it."""

ITERATES = frozenset(("__iter__", "__next__", "track"))
"""Functions of packages around what the script iterates over, such as of tqdm and rich."""

_MODULES = {
    "logging": LOGGING, "wandb": LOGGING, "mlflow": LOGGING, "tensorboard": LOGGING, "tensorboardX": LOGGING,
    "loguru": LOGGING, "comet_ml": LOGGING, "neptune": LOGGING, "clearml": LOGGING, "tqdm": LOGGING, "rich": LOGGING,
    "requests": NETWORK, "urllib": NETWORK, "urllib3": NETWORK, "http": NETWORK, "httpx": NETWORK, "aiohttp": NETWORK,
    "matplotlib": PLOT, "seaborn": PLOT, "plotly": PLOT, "torchmetrics": METRIC, "torcheval": METRIC,
    "sklearn.metrics": METRIC,
    "copy": COPY, "gym": ENVIRONMENT, "gymnasium": ENVIRONMENT, "torch.nn.utils.parametrize": PARAMETRIZED,
}  # fmt: skip
"""What a line does, by the package, or the module, of the function that it calls."""


def work_of_package(module: str, function: str = "") -> str:
    """What a line does that calls this module, or this function of it; empty if it is not known."""
    if function in _MAKING_GROUPS and module.startswith("torch.distributed"):
        return MAKES_GROUPS
    package, _, rest = module.partition(".")
    inner = f"{package}.{rest.partition('.')[0]}"
    return _MODULES.get(module) or _MODULES.get(inner) or _MODULES.get(package, "")
