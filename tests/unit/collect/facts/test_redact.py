"""Credentials disappear from arguments; everything else stays as it was typed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.collect.facts.redact import HIDDEN, redact

SECRET = "Zq7Xw9Lp2Rt5Vb8N"


@pytest.mark.parametrize(
    "argv",
    [
        ["--token", SECRET],
        ["--hub-token", SECRET],
        ["--hub_token=" + SECRET],
        ["--api-key=" + SECRET],
        ["--api_key", SECRET],
        ["--apiKey", SECRET],
        ["--wandbKey=" + SECRET],
        ["-password", SECRET],
        ["--db.password=with space " + SECRET],
        ["--aws-secret-access-key", SECRET],
        ["--aws_access_key_id=" + SECRET],
        ["wandb.api_key=" + SECRET],
        ["+logger.secret=" + SECRET],
        ["HF_TOKEN=" + SECRET],
        ["AKIA" + "A" * 12 + "7QZX"],
        ["hf_" + SECRET * 2],
        ["sk-" + SECRET * 2],
        ["sk-ant-api03-" + SECRET * 2],
        ["ghp_" + SECRET * 2],
        ["--note", "github_pat_" + SECRET * 2],
        ["https://user:" + SECRET + "@host/path"],
        ["--data", "s3://bucket/x?X-Amz-Signature=" + SECRET + "&part=1"],
        ["https://host/blob?sv=2024&sig=" + SECRET],
        ["--header", "Authorization: Bearer " + SECRET],
        ['{"token": "' + SECRET + '", "lr": 0.1}'],
        ["AccountName=x;AccountKey=" + SECRET],
        ["--data=https://host/blob?token=" + SECRET],
        ['{"password": "two words ' + SECRET + '"}'],
        ["postgres://me:" + SECRET + "@db:5432/runs"],
    ],
)
def test_credentials_are_removed(argv: list[str]) -> None:
    shown = redact(argv)
    assert SECRET not in " ".join(shown)
    assert HIDDEN in " ".join(shown)
    assert len(shown) == len(argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["train.py", "--lr", "0.1", "-b", "32", "--epochs=90"],
        ["--data", "/data/secret/token/imagenet", "--out", "./password.txt"],
        ["--tokenizer", "bert-base-uncased", "--max-tokens", "4096", "--num_tokens=7", "--token-length", "3"],
        ["--pad-token", "<pad>", "--eos_token=</s>"],
        ["--use_auth_token", "True", "train.json"],
        ["--token", "--verbose", "train.py"],
        ["--key", "image", "--keyboard=us", "--monkey", "1", "--primary-key", "id"],
        ["s3://bucket/path?versionId=3", "https://host:8080/x?page=2"],
        ["/data/sk-learn-digits-of-some-length", "hf_hub", "C:\\data\\run", "a@b.org"],
        ["model.layers=12", "data={a: 1, b: 2}", "--", ""],
    ],
)
def test_everything_else_stays(argv: list[str]) -> None:
    assert redact(argv) == argv


def test_only_the_secret_part_of_an_argument_is_hidden() -> None:
    assert redact(["https://me:pw@host/a?token=abc&page=2"]) == ["https://***@host/a?token=***&page=2"]
    assert redact(["--token=abc", "--token", "abc", "abc"]) == ["--token=***", "--token", "***", "abc"]


@given(st.lists(st.text()))
def test_the_number_of_arguments_stays_and_a_second_time_changes_nothing(argv: list[str]) -> None:
    once = redact(argv)
    assert len(once) == len(argv)
    assert redact(once) == once


@given(
    st.sampled_from(["--token", "--password", "--api-key", "--client_secret", "--hub.token"]),
    st.text(min_size=6).filter(lambda value: not value.startswith("-")),
    st.lists(st.sampled_from(["train.py", "--lr", "0.1", "--tokenizer"])),
)
def test_a_named_secret_never_survives(name: str, value: str, before: list[str]) -> None:
    assert redact([*before, name, value])[-1] == HIDDEN
    assert redact([*before, f"{name}={value}"])[-1] == f"{name}={HIDDEN}"


@given(st.lists(st.from_regex(r"-{0,2}[a-z]{1,4}(/[a-z0-9_.]{1,12}){0,3}", fullmatch=True).filter(
    lambda argument: argument.strip("-") not in ("auth", "pwd", "sig")
)))  # fmt: skip
def test_words_and_paths_stay(argv: list[str]) -> None:
    assert redact(argv) == argv
