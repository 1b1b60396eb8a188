"""Which package may import what; `test_imports` holds all files to it."""

from __future__ import annotations

from typing import NamedTuple

CATALOG, RECOMMENDER = "ddlprof.instance_catalog", "ddlprof.recommender"
"""Folders at the top of the repository; links in `ddlprof/` lead to them."""
PREDICTOR = (RECOMMENDER, CATALOG)
HEAVY = frozenset({"boto3", "botocore", "numpy", "pandas", "scipy", "joblib", "rich", "sklearn", "torch", "typer"})


BASE = "ddlprof.base"
"""What all packages stand on: standard library only, as the training process imports it too."""
OPERATORS = "ddlprof.model.operators"
"""The operators of a step, which a run records and a workload holds."""
TRAINING = (BASE, "ddlprof.model", "ddlprof.torch_private")
"""What may be imported wherever torch is: nothing of it imports torch before the script does."""


ROOMS = "ddlprof.extensions"
"""Each package in it can be taken out: what lies outside of it does not import it."""
REPORTS = (BASE, "ddlprof.model", "ddlprof.analysis", "ddlprof.store")


class Rule(NamedTuple):
    """What a package may import. Imports under `if TYPE_CHECKING` are free: they never run."""

    ours: tuple[str, ...]
    """Packages of ours that it may import, besides itself."""
    lazily_ours: tuple[str, ...] = ()
    """Those it may import only inside a function."""
    forbidden: frozenset[str] = frozenset()
    """Third-party packages it must not import anywhere."""
    third_party: bool = True
    """False: standard library only."""


RULES = {
    CATALOG: Rule(ours=(BASE,), forbidden=frozenset({"torch"})),
    RECOMMENDER: Rule(ours=(CATALOG, BASE, OPERATORS), forbidden=frozenset({"torch"})),
    BASE: Rule(ours=(), third_party=False),
    "ddlprof.model": Rule(ours=(BASE,), third_party=False),
    "ddlprof.torch_private": Rule(ours=(BASE,), forbidden=HEAVY - {"torch"}),
    "ddlprof.operators": Rule(ours=TRAINING, forbidden=HEAVY - {"torch"}),
    "ddlprof.writing": Rule(ours=(BASE, "ddlprof.model"), third_party=False),
    "ddlprof.collect": Rule(ours=(*TRAINING, "ddlprof.operators", "ddlprof.writing"), forbidden=HEAVY - {"torch"}),
    "ddlprof.launch": Rule(ours=TRAINING, lazily_ours=("ddlprof.collect",), forbidden=HEAVY - {"torch"}),
    "ddlprof.analysis": Rule(ours=(BASE, "ddlprof.model"), forbidden=frozenset({"torch"})),
    "ddlprof.store": Rule(ours=(BASE, "ddlprof.model"), forbidden=frozenset({"torch"})),
    "ddlprof.importing": Rule(
        ours=(BASE, "ddlprof.model", "ddlprof.writing"), forbidden=frozenset({"pandas", "torch"})
    ),
    "ddlprof.emit": Rule(ours=(BASE, "ddlprof.model", *PREDICTOR), forbidden=HEAVY - {"boto3", "botocore"}),
    "ddlprof.report": Rule(ours=(*REPORTS, *PREDICTOR), forbidden=frozenset({"torch"})),
    "ddlprof.live": Rule(ours=REPORTS, forbidden=frozenset({"torch"})),
    "ddlprof.planning": Rule(
        ours=(BASE, "ddlprof.model"), lazily_ours=("ddlprof", *PREDICTOR), forbidden=frozenset({"torch"})
    ),
    "ddlprof.registry": Rule(ours=(BASE,), third_party=False),
    "ddlprof.cli": Rule(
        ours=(BASE, "ddlprof.model", "ddlprof.registry", "ddlprof.planning.question", "ddlprof.report.run.formats"),
        lazily_ours=("ddlprof", *PREDICTOR),
        forbidden=frozenset({"torch"}),
    ),
    "ddlprof.__main__": Rule(ours=("ddlprof.cli",), third_party=False),
    # ddlprof/__init__.py and api.py; a training process imports the former.
    "ddlprof": Rule(ours=(BASE, "ddlprof.model"), lazily_ours=("ddlprof", *PREDICTOR), forbidden=frozenset({"torch"})),
}  # fmt: skip


def room(name: str, code: Rule, **more: Rule) -> dict[str, Rule]:
    """The rules of a room: of its code, of packages and files of its own kind, and of what every room may have."""
    here = f"{ROOMS}.{name}"
    own = {here: code, **{f"{here}.{inner}": rule for inner, rule in more.items()}}
    late = ("ddlprof", *PREDICTOR, *own, f"{here}.planning", f"{here}.report")
    no_torch = frozenset({"torch"})
    return {
        **own,
        f"{here}.extension": Rule(ours=("ddlprof.registry",), third_party=False),
        f"{here}.planning": Rule(ours=(BASE, "ddlprof.model"), lazily_ours=late, forbidden=no_torch),
        f"{here}.report": Rule(
            ours=(*REPORTS, "ddlprof.report", "ddlprof.emit", *PREDICTOR, here, f"{here}.analysis"), forbidden=no_torch
        ),
        f"{here}.cli": Rule(
            ours=(BASE, "ddlprof.model", "ddlprof.cli", *([] if code.third_party else [here])),
            lazily_ours=late,
            forbidden=no_torch,
        ),
    }


def in_training(*ours: str) -> Rule:
    """What may run in the training process."""
    return Rule(ours=(*TRAINING, *ours), forbidden=HEAVY - {"torch"})


def starting(name: str) -> Rule:
    """What starts trainings for a room."""
    here = f"{ROOMS}.{name}"
    return Rule(ours=(*TRAINING, "ddlprof.launch", here), lazily_ours=(f"{here}.collect",), forbidden=HEAVY - {"torch"})


RULES |= {
    ROOMS: Rule(ours=(), third_party=False),
    **room("sharing", Rule(ours=(BASE, "ddlprof.model", "ddlprof.store", CATALOG), forbidden=frozenset({"torch"}))),
    **room(
        "characterize",
        Rule(ours=(BASE, "ddlprof.model", "ddlprof.analysis"), third_party=False),
        collect=in_training("ddlprof.collect", f"{ROOMS}.characterize"),
        launch=starting("characterize"),
    ),
    **room("learn", Rule(ours=(BASE, *PREDICTOR), forbidden=frozenset({"torch"}))),
    **room("probe", in_training()._replace(lazily_ours=("ddlprof.collect",))),
    **room("hetero", Rule(ours=(BASE, "ddlprof.model", *PREDICTOR), forbidden=frozenset({"pandas"}))),
    **room("cluster", Rule(ours=(BASE, "ddlprof.model", *PREDICTOR), forbidden=frozenset({"pandas", "torch"}))),
    **room("fusion", in_training("ddlprof.launch.users_code")),
    **room(
        "sparsity",
        Rule(ours=(BASE, "ddlprof.model"), third_party=False),
        nn=in_training(),
        collect=in_training("ddlprof.collect", "ddlprof.operators", f"{ROOMS}.sparsity"),
        analysis=Rule(ours=(BASE, "ddlprof.model", f"{ROOMS}.sparsity"), forbidden=frozenset({"torch"})),
        launch=starting("sparsity"),
    ),
    **room(
        "integrations",
        Rule(ours=(BASE, "ddlprof.model"), lazily_ours=("ddlprof",), forbidden=frozenset({"torch"})),
    ),
}
TORCH_AT_TOP = (
    "ddlprof.collect.hooks",
    "ddlprof.extensions.characterize.collect",
    "ddlprof.collect.loader.dataloader",
    "ddlprof.collect.loader.worker",
    "ddlprof.extensions.fusion.fused",
    "ddlprof.extensions.fusion.job",
    "ddlprof.extensions.fusion.training",
    "ddlprof.extensions.fusion.memory",
    "ddlprof.extensions.fusion.optimizers",
    "ddlprof.extensions.fusion.graph_capture",
    "ddlprof.extensions.fusion.recurrent",
    "ddlprof.extensions.fusion.unfusible",
    "ddlprof.extensions.fusion.task",
    "ddlprof.extensions.fusion.prediction",
    "ddlprof.extensions.fusion.traced",
    "ddlprof.extensions.fusion.mapping",
    "ddlprof.extensions.fusion.random_state",
    "ddlprof.extensions.fusion.scaling",
    "ddlprof.extensions.fusion.stackable",
    "ddlprof.extensions.fusion.losses",
    "ddlprof.extensions.fusion.loop",
    "ddlprof.extensions.fusion.part",
    "ddlprof.extensions.fusion.planner",
    "ddlprof.extensions.fusion.apart",
    "ddlprof.extensions.fusion.first_steps",
    "ddlprof.extensions.fusion.equality",
    "ddlprof.extensions.fusion.reached",
    "ddlprof.extensions.fusion.groups",
    "ddlprof.extensions.fusion.saving",
    "ddlprof.extensions.fusion.studies",
    "ddlprof.extensions.sparsity.collect",
    "ddlprof.extensions.sparsity.nn",
)
"""Imported only where torch already is."""
