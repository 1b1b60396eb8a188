"""The goodput of runs that are attempts of one job, whatever directories and job ids they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddlprof.analysis.run import analyse
from ddlprof.analysis.trials import trials_of
from ddlprof.base.errors import UserError
from ddlprof.instance_catalog import CatalogError, Price, load
from ddlprof.model.trial import AttemptFacts
from ddlprof.report.goodput.data import GoodputReport, goodput_report
from ddlprof.store import load_run
from ddlprof.store.reader import runs_in


def goodput_of(paths: Sequence[str], instance: str | None = None) -> GoodputReport:
    """The goodput over all attempts in these directories or folders, in the order in which they began.

    `instance` is the type of the machines where the runs do not tell it. Raises UserError where nothing can be read.
    """
    trials: list[AttemptFacts] = []
    names: list[str] = []
    types: list[Any] = []
    for parts in runs_in(paths):
        run = load_run(parts)
        trials += trials_of(analyse(run))
        names.append(run.name)
        types.append(run.manifest.host.get("instance_type") if run.manifest else None)
    known = next((each for each in types if isinstance(each, str) and each), None)
    found = goodput_report(names[0], trials, _price(instance, known))
    if found is None:
        raise UserError(f"{paths[0]}: no rank left a file, so there is no attempt")
    return found


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
