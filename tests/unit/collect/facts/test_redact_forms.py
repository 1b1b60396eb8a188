"""Credentials in the forms in which trainings are really given them, and arguments that must stay readable."""

from __future__ import annotations

import re

import pytest

from ddlprof.collect.facts.redact import redact
from tests.unit.collect.facts.forms import FORMS, HARMLESS, LOOKS, spelled


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


@pytest.mark.parametrize(
    "text",
    ["python -u train.py -pretrained -patience 3", "python -u -m train -print", "train.py --unzip data.zip -P 8 -p 0.5",
     "train.py --format zip -P 8", "torchrun --rdzv-backend=c10d train.py -a 0.99 -w 4 -k 5"],
)  # fmt: skip
def test_commands_without_a_password_stay(text: str) -> None:
    assert redact(["bash", "-c", text]) == ["bash", "-c", text]
    assert redact(text.split()) == text.split()


def test_the_lists_are_long() -> None:
    assert len(FORMS) + len(LOOKS) >= 300
    assert len(HARMLESS) >= 150
