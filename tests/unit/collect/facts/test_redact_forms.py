"""Credentials in the forms in which trainings are really given them, and arguments that must stay readable."""

from __future__ import annotations

import re

import pytest

from ddlprof.base.text import HIDDEN
from ddlprof.collect.facts.redact import redact
from tests.unit.collect.facts.forms import FORMS, HARMLESS, IN_DOUBT, LOOKS, spelled


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_a_credential_is_removed(form: list[str]) -> None:
    argv, secrets = spelled(form)
    assert secrets
    for at in ([], ["train.py", "--lr", "0.1"]):
        shown = redact([*at, *argv, "--epochs", "3"])
        assert shown[: len(at)] == at
        assert shown[-2:] == ["--epochs", "3"]
        for secret in secrets:
            pattern = rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])" if len(secret) < 3 else re.escape(secret)
            assert not re.search(pattern, " ".join(shown)), shown


@pytest.mark.parametrize("secret", LOOKS)
@pytest.mark.parametrize(
    "form",
    [["{}"], ["--note", "{}"], ["note={}"], ["--note={}"], ["--note", "use {} here"], ["a.b.c: '{}'"]],
    ids=" ".join,
)
def test_a_credential_is_known_by_its_look(form: list[str], secret: str) -> None:
    shown = " ".join(redact([word.replace("{}", secret) for word in form]))
    for part in re.split(r"[\s=:]", secret)[-3:]:
        assert len(part) < 12 or part not in shown, shown


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_harmless_stays(text: str) -> None:
    argv = text.split(" ", 1)
    for before, after in (([], []), (["train.py"], ["--fp16"]), (["bash"], [])):
        assert redact([*before, *argv, *after]) == [*before, *argv, *after]


@pytest.mark.parametrize("text", IN_DOUBT)
def test_in_doubt_a_value_is_hidden_and_its_name_is_not(text: str) -> None:
    name, _, value = text.partition(" ") if " " in text else text.partition("=")
    shown = redact(text.split(" ", 1))
    assert (shown[0].removesuffix(f"={HIDDEN}") == name) is bool(value)
    assert shown[-1].endswith(HIDDEN)
