"""Offers newer prices, in one line on a terminal and once a week. They are fetched when the user asks for them only."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from datetime import date

from ddlprof.base.errors import complain
from ddlprof.base.files import user_directory
from ddlprof.cli.screen import is_terminal

OLD_DAYS = 30
"""Newer prices are offered where the newest that is known on demand of a cloud is older."""
EVERY_S = 7 * 24 * 3600.0


def offer_newer_prices(clouds: Iterable[str], today: date) -> None:
    """Says how old the prices of these clouds are and how to get newer ones, if that is due. Never in CI.

    When it was said is the time of a file in the user's state directory. Where that cannot be written nothing is said.
    """
    if os.environ.get("CI") or not is_terminal(sys.stderr):
        return
    try:
        said = user_directory("XDG_STATE_HOME", "~/.local/state") / "prices-offered"
        if said.exists() and 0 <= time.time() - said.stat().st_mtime < EVERY_S:
            return
        cloud, days = _oldest(set(clouds), today)
        if days <= OLD_DAYS:
            return
        said.parent.mkdir(parents=True, exist_ok=True)
        said.touch()
    except (OSError, RuntimeError):  # no home directory
        return
    complain(
        f"the prices of {cloud} are {days} days old; for newer ones, without an account: ddlprof instances refresh"
    )


def _oldest(clouds: set[str], today: date) -> tuple[str, int]:
    """The cloud whose newest price on demand is the oldest, of those that a refresh can help, and its age in days."""
    from ddlprof.instance_catalog import load
    from ddlprof.instance_catalog.refresh import PUBLISHED

    newest: dict[str, str] = {}
    for price in load().prices:
        if price.cloud in clouds and price.cloud in PUBLISHED and price.pricing == "on_demand" and price.as_of:
            newest[price.cloud] = max(price.as_of, newest.get(price.cloud, price.as_of))
    cloud = min(newest, key=lambda each: (newest[each], each), default="")
    return cloud, (today - date.fromisoformat(newest[cloud])).days if cloud else 0
