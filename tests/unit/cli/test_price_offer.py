"""The offer of newer prices: when it is made, how often, and that it is only an offer."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import pytest

from ddlprof.cli import price_offer
from ddlprof.cli.price_offer import EVERY_S, OLD_DAYS, offer_newer_prices
from ddlprof.instance_catalog import load

LATER = date(2030, 1, 1)


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The user's state directory, which is not there yet; stderr is a terminal, and this is not CI."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path / "overlay"))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(price_offer, "is_terminal", lambda stream: True)
    return tmp_path / "state"


def said(capsys: pytest.CaptureFixture[str], today: date = LATER, clouds: Sequence[str] = ("aws", "azure")) -> str:
    offer_newer_prices(clouds, today)
    out, err = capsys.readouterr()
    assert out == ""
    return err


def newest(cloud: str) -> date:
    """The day of the newest price on demand of the snapshot."""
    known = [price for price in load(None).prices if (price.cloud, price.pricing) == (cloud, "on_demand")]
    return date.fromisoformat(max(price.as_of for price in known))


def test_it_is_one_line_once_a_week(capsys: pytest.CaptureFixture[str], state: Path, tmp_path: Path) -> None:
    days = (LATER - newest("azure")).days
    assert said(capsys) == (
        f"ddlprof: the prices of azure are {days} days old; for newer ones, without an account: "
        "ddlprof instances refresh\n"
    )
    assert said(capsys) == ""
    (file,) = (state / "ddlprof").iterdir()
    week_ago = time.time() - EVERY_S - 1
    os.utime(file, (week_ago, week_ago))
    assert said(capsys) != ""
    assert said(capsys) == ""
    assert not (tmp_path / "overlay").exists(), "nothing is fetched unasked"


@pytest.mark.parametrize(("days", "is_offered"), [(OLD_DAYS, False), (OLD_DAYS + 1, True)])
def test_the_newest_price_counts(capsys: pytest.CaptureFixture[str], days: int, is_offered: bool) -> None:
    assert bool(said(capsys, newest("aws") + timedelta(days=days), ["aws"])) == is_offered


def test_clouds_that_nobody_publishes_do_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, clouds=["vast", "mine"]) == ""
    assert said(capsys, clouds=[]) == ""


def test_never_in_ci(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    monkeypatch.setenv("CI", "true")
    assert said(capsys) == ""
    assert not state.exists()


def test_never_into_a_file(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    monkeypatch.undo()
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    assert said(capsys) == ""
    assert not state.exists()


def test_not_where_it_could_not_be_remembered(capsys: pytest.CaptureFixture[str], state: Path) -> None:
    state.write_text("a file in its place", encoding="utf-8")
    assert said(capsys) == ""
