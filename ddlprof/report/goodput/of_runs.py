"""The goodput of runs that are attempts of one job, whatever directories and job ids they have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ddlprof.analysis.run import analyse
from ddlprof.analysis.trials import trials_of
from ddlprof.base.errors import UserError
from ddlprof.instance_catalog import CatalogError, Price, load
from ddlprof.model.trial import AttemptFacts
from ddlprof.report.goodput.data import GoodputReport, goodput_report
from ddlprof.store import RunData, load_run
from ddlprof.store.reader import runs_in


def goodput_of(paths: Sequence[str], instance: str | None = None) -> GoodputReport:
    """The goodput over all attempts in these directories or folders, in the order in which they began.

    `instance` is the type of the machines where the runs do not tell it. Raises UserError where nothing can be read.
    """
    trials: list[AttemptFacts] = []
    names: list[str] = []
    types: list[Any] = []
    scripts: dict[str, str] = {}
    for parts in runs_in(paths):
        run = load_run(parts)
        trials += trials_of(analyse(run))
        names.append(run.name)
        scripts.setdefault(_script(run), parts[0])
        types.append(run.manifest.host.get("instance_type") if run.manifest else None)
    require_one_script(scripts)
    known = next((each for each in types if isinstance(each, str) and each), None)
    found = goodput_report(names[0], trials, _price(instance, known))
    if found is None:
        raise UserError(f"{paths[0]}: no rank left a file, so there is no attempt")
    return found


def _script(run: RunData) -> str:
    """The name of the script of a run; empty where it is not known, as of a trace."""
    command = run.manifest.argv if run.manifest else []
    return os.path.basename(command[0]) if command else ""


def require_one_script(scripts: Mapping[str, str]) -> None:
    """Raises UserError for runs of different scripts, which are not attempts of one job. `scripts`: a run of each."""
    known = {script: run for script, run in scripts.items() if script}
    if len(known) > 1:
        told = ", ".join(f"{run} of {script}" for script, run in known.items())
        raise UserError(
            f"--goodput joins attempts of one job, and these are of different scripts: {told}; give those of one job,"
            " or ddlprof fleet FOLDER for many jobs"
        )


def _price(asked: str | None, known: str | None) -> Price | None:
    """The price of a machine; None where its type is not known. Raises UserError for an unknown type asked for."""
    name = asked or known
    if name is None:
        return None
    try:
        return load().price(name)
    except CatalogError as error:
        if asked:
            raise UserError(f"--instance: {error}") from None
        return None
