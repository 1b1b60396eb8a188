"""Removes what looks like a credential from command-line arguments before they are written to the manifest.

When in doubt it removes: a manifest is passed around, and a lost argument costs a reader little.
"""

from __future__ import annotations

import re

HIDDEN = "***"

_SECRET_WORDS = {
    "apikey", "auth", "authorization", "bearer", "credential", "credentials", "passphrase", "passwd", "password",
    "pwd", "secret", "secrets", "sig", "signature", "token",
}  # fmt: skip
_SECRET_KEYS = {
    "access", "account", "api", "auth", "encryption", "license", "master", "private", "secret", "service",
    "shared", "signing", "subscription", "wandb",
}  # fmt: skip
"""Words that make a following "key" or "key id" a credential."""
_VOCABULARY = {"bos", "cls", "end", "eos", "image", "mask", "pad", "sep", "special", "start", "stop", "unk"}
"""Words that make a following "token" an entry of a vocabulary."""
_HARMLESS = {"", "true", "false", "none", "null", "0", "1", "yes", "no"}

_KNOWN_SHAPES = re.compile(
    r"""(?<![A-Za-z0-9])(?:
        (?:AKIA|ASIA)[A-Z0-9]{16}                                   # AWS
      | hf_[A-Za-z0-9]{20,}                                         # Hugging Face
      | sk-(?:[A-Za-z0-9]{20,}|(?:ant|proj|svcacct)-[\w-]{20,})     # OpenAI, Anthropic
      | (?:gh[pousr]_|github_pat_|glpat-)[\w-]{20,}                 # GitHub, GitLab
      | xox[abeoprs]-[\w-]{10,}                                     # Slack
      | AIza[\w-]{35}                                               # Google
      | eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*                           # JSON web token
    )""",
    re.VERBOSE,
)
_USER_INFO = re.compile(r"(?<=://)[^/\s?#]*@")
_BEARER = re.compile(r"(?i)\b(bearer|authorization:\s*basic)\s+[\w.~+/=-]{8,}")
_OPTION = re.compile(r"(-{0,2}\+{0,2}[A-Za-z][\w.-]*)=(.*)", re.DOTALL)
_PAIR = re.compile(r"""(?<![\w.-])([\w.-]+)["']?\s*[=:]\s*("[^"]*"|'[^']*'|[^\s"'&;,{}]+)""")


def redact(argv: list[str]) -> list[str]:
    """The same number of arguments, with `***` in place of credentials."""
    shown: list[str] = []
    value_is_secret = False
    for argument in argv:
        if value_is_secret and not argument.startswith("-"):
            shown.append(argument if argument.lower() in _HARMLESS else HIDDEN)
            value_is_secret = False
            continue
        shown.append(_redact_inside(argument))
        value_is_secret = argument.startswith("-") and "=" not in argument and _names_a_secret(argument)
    return shown


def _redact_inside(argument: str) -> str:
    option = _OPTION.fullmatch(argument)
    if option and _names_a_secret(option[1]) and option[2].lower() not in _HARMLESS:
        return f"{option[1]}={HIDDEN}"
    argument = _USER_INFO.sub(f"{HIDDEN}@", argument)
    argument = _BEARER.sub(rf"\1 {HIDDEN}", argument)
    return _KNOWN_SHAPES.sub(HIDDEN, _redact_pairs(argument))


def _redact_pairs(text: str) -> str:
    """Values of `name=value` and `name: value`, as in queries, JSON and connection strings, nested ones too."""
    shown, position = "", 0
    while pair := _PAIR.search(text, position):
        name, value = pair.groups()
        shown += text[position : pair.start(2)]
        position = pair.start(2)
        if _names_a_secret(name) and value.lower() not in {*_HARMLESS, "bearer", "basic"}:
            shown += HIDDEN
            position = pair.end()
    return shown + text[position:]


def _names_a_secret(name: str) -> bool:
    """Whether the last words of `--api-key`, `hub_token` or `wandb.apiKey` say that a credential follows."""
    words = [w.lower() for w in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])", name)]
    if words[-1:] == ["id"]:
        words.pop()
    before, last = ["", "", *words][-2:]
    if last == "token":
        return before not in _VOCABULARY
    return last in _SECRET_WORDS or (last == "key" and before in _SECRET_KEYS)
