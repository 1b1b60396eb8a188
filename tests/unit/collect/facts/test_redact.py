"""Credentials disappear from arguments; what surely is none stays as it was typed."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddlprof.base.text import HIDDEN
from ddlprof.collect.facts.redact import redact

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
        ["--key", SECRET],
        ["--key", "hunter" + SECRET],
        ["--key=" + SECRET],
        ["-key", SECRET],
        ["--openai-key", SECRET],
        ["--deploy_key=" + SECRET],
        ["--tokens", SECRET],
        ["-p", SECRET],
        ["-p" + SECRET],
        ["-p=" + SECRET],
        ["-k", SECRET],
        ["-u", "me:" + SECRET],
        ["--user=me:" + SECRET],
        ["--pass", SECRET],
        ["--db-pass", SECRET],
        ["--apitoken=" + SECRET],
        ["--apitoken", SECRET],
        ["--accesstoken", SECRET],
        ["--dbpassword", SECRET],
        ["--secretkey=" + SECRET],
        ["--userpass", SECRET],
        ["--TOKEN", SECRET],
        ["--token2", SECRET],
        ["--password-string", SECRET],
        ["--api-keys", SECRET],
        ["--password", "-" + SECRET],
        ["--token", "--" + SECRET],
        ["--api-key", "-_" + SECRET],
        ["--password", "12" + SECRET],
        ["-----BEGIN RSA PRIVATE KEY-----\nMIIE" + SECRET + "\n-----END RSA PRIVATE KEY-----"],
        ["--ssh-key=-----BEGIN OPENSSH PRIVATE KEY-----\n" + SECRET],
        ["--pem", "-----BEGIN", "PRIVATE", "KEY-----", SECRET, "-----END", "PRIVATE", "KEY-----", "--lr", "1"],
        ["--header", "Cookie: session=" + SECRET + "; theme=" + SECRET],
        ["-H", "Set-Cookie: a=b; id=" + SECRET],
        ["--cookie", "session=" + SECRET],
        ["--header", "Authorization: Basic " + SECRET],
        ["--header", "Authorization: Token " + SECRET],
        ["--header", "Proxy-Authorization: Digest x=" + SECRET],
        ["--header", "X-Api-Key: two words " + SECRET],
        ["--header=X-Auth-Token: " + SECRET],
        ['{"password": "with \\" quote ' + SECRET + '"}'],
        ['{"api_keys": ["a", "' + SECRET + '"]}'],
        ['{"credentials": {"name": "me", "code": "' + SECRET + '"}}'],
        ['{"headers": {"Cookie": "a=b; c=' + SECRET + '"}}'],
        ['--config={"db": {"password": "' + SECRET + '"}}'],
        ["--config={'password': '" + SECRET + "'}"],
        ['{"note": "Bearer ' + SECRET + '"}'],
        ["+model={token:" + SECRET + "}"],
        ["--set", "a.password=" + SECRET + ",b=1"],
        ["-DDB_PASSWORD=a&b;" + SECRET],
        ["https://" + SECRET + "@github.com/me/repository"],
        ["https://me:a/b" + SECRET + "@host/path"],
        ["postgres://me:p@ss" + SECRET + "@db/runs"],
        ["me:" + SECRET + "@db:5432/runs"],
        ["https://host/x?key=" + SECRET],
        ["https://host/x#access_token=" + SECRET],
        ["s3://bucket/x?X-Amz-Security-Token=" + SECRET + "&X-Amz-Credential=" + SECRET],
        ["https://hooks.slack.com/services/T0/B0/" + SECRET],
        ["https://discord.com/api/webhooks/123/" + SECRET],
        ["bash", "-c", "train --password " + SECRET + " --lr 1"],
        ["bash", "-c", "curl -u me -p '" + SECRET + "'"],
        # Names of secrets, whole and short, also in other languages.
        ["--creds", "u:" + SECRET],
        ["--cred=" + SECRET],
        ["--basic-auth", "u:" + SECRET],
        ["--pat", SECRET],
        ["--gh-pat=" + SECRET],
        ["AZDO_PAT=" + SECRET],
        ["--seed-phrase", "two words " + SECRET],
        ["--mnemonic", "two words " + SECRET],
        ["--passwort", SECRET],
        ["--pword", SECRET],
        ["--salt", SECRET],
        ["--session-id", SECRET],
        ["--bot-token", "1234567"],
        # A name and its value side by side.
        ['[{"name": "DB_PASSWORD", "value": "' + SECRET + '"}]'],
        ['{"env": [{"name": "A", "value": "b"}, {"value": "' + SECRET + '", "name": "TOKEN"}]}'],
        ['{"ParameterKey": "DbPassword", "ParameterValue": "' + SECRET + '"}'],
        ["[{'name': 'DB_PASSWORD', 'value': '" + SECRET + "'}]"],
        ["--env", "name=DB_PASSWORD,value=" + SECRET],
        ["name=DB_PASSWORD,value=" + SECRET],
        ["- name: DB_PASSWORD\n  value: " + SECRET],
        ['<add key="ApiKey" value="' + SECRET + '"/>'],
        ["<db><password>" + SECRET + "</password></db>"],
        ["--env", "DB_PASSWORD", SECRET],
        ["aws", "configure", "set", "aws_secret_access_key", SECRET],
        ["bash", "-c", "aws configure set aws_secret_access_key " + SECRET],
        ["password => " + SECRET],
        ["db:\n  password: |\n    " + SECRET + "\n  user: me"],
        # Encoded once more.
        [quote('{"password": "' + SECRET + '"}')],
        [quote(quote('{"password": "' + SECRET + '"}'))],
        ["--url", "https://host/x?config=" + quote('{"password": "' + SECRET + '"}')],
        ["--config", "password%3D" + SECRET],
        [json.dumps(json.dumps({"password": SECRET}))],
        [json.dumps({"config": json.dumps({"password": SECRET})})],
        ["--config", '{\\"password\\": \\"' + SECRET + '\\"}'],
        # Commands.
        ["bash", "-c", "curl -u me:" + SECRET + " https://host"],
        ["bash", "-c", "mysql -ume -p" + SECRET + " runs"],
        ["bash", "-c", "echo " + SECRET + " | docker login --password-stdin"],
        ["machine host login me password " + SECRET],
        ["jdbc:oracle:thin:me/" + SECRET + "@//host:1521/runs"],
        # Webhooks: their paths are passwords.
        ["--webhook", "https://example.org/" + SECRET],
        ["--slack-webhook-url=https://example.org/" + SECRET],
        ["https://me.webhook.office.com/webhookb2/1-2@3/IncomingWebhook/" + SECRET + "/4"],
        ["https://outlook.office.com/webhook/1-2@3/IncomingWebhook/" + SECRET + "/4"],
        ["https://open.example.org/bot/v2/hook/" + SECRET],
        ["https://hooks.example.org/catch/1/" + SECRET],
    ],
)
def test_credentials_are_removed(argv: list[str]) -> None:
    shown = redact(argv)
    assert SECRET not in " ".join(shown)
    assert HIDDEN in " ".join(shown)
    assert len(shown) == len(argv)


SECRET_NAMES = re.compile("auth|key|pass|pat|pw|cred|sig|salt|sas|sid|jwt|otp|mfa|mdp|hook|-[kpuw]$")
LETTERS = "aB3dE5gH7jK9mN1pQ2sT4vW6yZ8bC0dF" * 4
HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "token",
    [
        "AKIA" + "ABCDEFGHIJ234567",
        "ASIA" + "ABCDEFGHIJ234567",
        "AIza" + LETTERS[:35],
        "ya29." + LETTERS[:40],
        "GOCSPX-" + LETTERS[:28],
        "hf_" + LETTERS[:34],
        "sk-" + LETTERS[:48],
        "sk-proj-" + LETTERS[:48],
        "sk-ant-api03-" + LETTERS[:60] + "-" + LETTERS[:8],
        "sk-or-v1-" + HEX,
        "ghp_" + LETTERS[:36],
        "ghp_" + LETTERS[:12],
        "hf_" + LETTERS[:10],
        "sk-ant-" + LETTERS[:10],
        "glpat-" + LETTERS[:10],
        "gho_" + LETTERS[:36],
        "ghs_" + LETTERS[:36],
        "github_pat_" + LETTERS[:22] + "_" + LETTERS[:59],
        "glpat-" + LETTERS[:20],
        "gldt-" + LETTERS[:20],
        "xoxb-" + "123456789012-123456789012-" + LETTERS[:24],
        "xapp-1-A0-1-" + HEX,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0." + LETTERS[:43],
        "eyJhcGlfYWRkcmVzcyI6Imh0dHBzOi8v" + LETTERS[:40] + "==",
        "npm_" + LETTERS[:36],
        "pypi-AgEIcHlwaS5vcmc" + LETTERS[:80],
        "dop_v1_" + HEX,
        "SG." + LETTERS[:22] + "." + LETTERS[:43],
        "dckr_pat_" + LETTERS[:27],
        "r8_" + LETTERS[:37],
        "gsk_" + LETTERS[:52],
        "nvapi-" + LETTERS[:64],
        "dapi" + HEX[:32],
        "hvs." + LETTERS[:90],
        "sk_live_" + LETTERS[:24],
        "whsec_" + LETTERS[:32],
        "wandb_v1_" + LETTERS[:40],
        "SK" + HEX[:32],
        "123456789:" + LETTERS[:35],
        "abc8Q~" + LETTERS[:34],
        "shpat_" + HEX[:32],
        "glsa_" + LETTERS[:32] + "_" + HEX[:8],
        "key-" + HEX[:32],
        "PMAK-" + HEX[:24] + "-" + HEX[:34],
        "AGE-SECRET-KEY-1" + "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L" * 2,
        "unlisted_" + LETTERS[:40],
        b64encode(b"-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA" + LETTERS.encode()).decode(),
        b64encode(b"users:\n- user:\n    token: " + LETTERS.encode()).decode(),
    ],
)
def test_tokens_are_no_words(token: str) -> None:
    assert redact([token]) == [HIDDEN]
    assert redact(["--note", f"use {token}, please"]) == ["--note", HIDDEN]
    assert redact([f"--data=https://host/{token}?page=1"]) == [f"--data={HIDDEN}"]


@pytest.mark.parametrize(
    "argv",
    [
        ["train.py", "--lr", "0.1", "-b", "32", "--epochs=90"],
        ["--tokenizer", "bert-base-uncased", "--max-tokens", "4096", "--num_tokens=7", "--token-length", "3"],
        ["--use_auth_token", "True", "train.json"],
        ["--key", "3", "--keyboard=us", "--monkey", "1"],
        ["s3://bucket/path?versionId=3", "https://host:8080/x?page=2"],
        ["hf_hub", "C:\\data\\run", "model.layers=12", "data={a: 1, b: 2}", "--", ""],
        ["--lr", "-1", "--wd", "-1e-4", "-pretrained", "-patience", "3", "-print"],
        ["host:29500", "cuda:0", "nccl://host:29500", "--port", "29500"],
        ["--model", "bert-base-uncased", "--ckpt", "gs://b/step-100000/model_v2.pt"],
        ["glove-wiki-gigaword-300", "--vectors=glove-twitter-27B-200d", "pplx-70b-online", "--top-p", "0.9"],
        ["/home/mary/projects/segmentation/experiments/starting.py", "--out", "/runs/20241103T120001Z/a"],
        ["--dsn", "sqlite:///runs.db", "--etcd", "http://10.0.0.1:2379"],
        ["--mean", "0.485,0.456,0.406", "--betas", "(0.9, 0.999)", "-1", "-.5", "--", "-x"],
        ["--env", "OMP_NUM_THREADS=8", "-x", "PATH", "--env", "name=NCCL_DEBUG,value=INFO"],
        ["data.transforms=[{name: resize, value: 224}, {name: crop, value: 224}]"],
        ["--name", "LLaMA2_7B_LoRA_r16_a32_lr1e4_bs8x4_seq4096_bf16_A100x8", "--model", "ViT-B-32-laion2B-s34B-b79K"],
    ],
)
def test_everything_else_stays(argv: list[str]) -> None:
    assert redact(argv) == argv


def test_only_the_secret_part_of_an_argument_is_hidden() -> None:
    assert redact(["--token=abc", "--token", "abc", "abc"]) == ["--token=***", "--token", "***", "abc"]


@given(st.lists(st.text()))
def test_the_number_of_arguments_stays_and_a_second_time_changes_nothing(argv: list[str]) -> None:
    once = redact(argv)
    assert len(once) == len(argv)
    assert redact(once) == once


@given(
    st.sampled_from(["--token", "--password", "--api-key", "--client_secret", "--hub.token"]),
    st.text(min_size=6).filter(lambda value: not re.match("-[A-Za-z-]", value)),
    st.lists(st.sampled_from(["train.py", "--lr", "0.1", "--tokenizer"])),
)
def test_a_named_secret_never_survives(name: str, value: str, before: list[str]) -> None:
    assert redact([*before, name, value])[-1] == HIDDEN
    assert redact([*before, f"{name}={value}"])[-1] == f"{name}={HIDDEN}"


@given(st.lists(st.from_regex(r"-{0,2}[a-z]{1,4}(/[a-z_.]{1,12}[0-9]{0,3}){0,3}", fullmatch=True).filter(
    lambda argument: not SECRET_NAMES.search(argument)
)))  # fmt: skip
def test_words_and_paths_stay(argv: list[str]) -> None:
    assert redact(argv) == argv


@pytest.mark.parametrize("unit", ["a", "-", "a-", "sk-", "eyJa.", "://a:", "a:", "x y ", '"', "[", "token:["])
def test_a_long_argument_is_hidden_and_costs_no_time(unit: str) -> None:
    """At most so much is looked at: what some patterns cost grows with the square of the length."""
    assert redact([unit * 100_000]) == [HIDDEN]
    assert redact(["--note=" + unit * 100_000]) == [f"--note={HIDDEN}"]
    assert len(redact(["--note", unit * 100_000])) == 2
