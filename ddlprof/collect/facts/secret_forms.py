"""Texts that hold a credential at a place that their form tells: addresses, headers, commands, keys."""

from __future__ import annotations

import re

from ddlprof.base.text import HIDDEN, USER_INFO

_FORMS = (
    (r"(?s)-----BEGIN.*?(?:-----END[^-]*-----|\Z)", HIDDEN),
    (r"(?<!\S)-p(?=\S*[A-Za-z])(?=\S*\d)[^\s=/]{8,}", f"-p{HIDDEN}"),
    # Addresses: `user:password@host`, with a scheme and without, Oracle's `user/password@//host`, and webhooks, whose
    # path is the password.
    (r"(?i)\b(https?://(?:[\w-]{1,60}\.){0,6}[\w-]{0,60}hooks?\.[^\s/]{1,60}/)(?!\*{3})[^\s\"']+", rf"\1{HIDDEN}"),
    (r"(?i)\b(https?://[^\s?#\"']{1,200}?/\w{0,60}hooks?\w{0,60}/)(?!\*{3})[^\s\"']+", rf"\1{HIDDEN}"),
    (rf"(?<=://){USER_INFO}", f"{HIDDEN}@"),
    (r"(?<![\w/:@.+-])([\w.+-]+):(?!\d+@)[^\s/@:]+@(?!sha256:)(?=[\w.-]+)", rf"\1:{HIDDEN}@"),
    (r"(?<![\w.$#/@-])([\w.$#-]+)/(?!\*{3})[^\s/@]+@(?=//|[\w.-]+:\d+[/:])", rf"\1/{HIDDEN}@"),
    # Headers.
    (r"""(?i)\b((?:set-)?cookie2?|(?:proxy-)?authorization)(\s*:\s*)(?!\*{3})[^\r\n"']+""", rf"\1\2{HIDDEN}"),
    (r"(?i)\b(bearer|authorization:\s*\w+)\s+[\w.~+/=-]{8,}", rf"\1 {HIDDEN}"),
    # Commands: what is handed to a login, `.netrc`, and Weights & Biases' keys.
    (
        r"\b((?:echo|printf)\s+(?:-\w+\s+)?)(?!\*{3})[^\s|]+(?=\s*\|[^|]*(?:\slogin\b|-stdin\b|--with-token\b|\bsudo\s+-S))",
        rf"\1{HIDDEN}",
    ),
    (r"\b(machine\s+\S+\s+login\s+\S+\s+password\s+)\S+", rf"\1{HIDDEN}"),
    (r"(?is)(wandb\W.{0,40}?)\b[0-9a-f]{40}\b", rf"\1{HIDDEN}"),
)
_COMPILED: list[tuple[re.Pattern[str], str]] = []


def without_forms(text: str) -> str:
    """The text with `***` in place of credentials that stand in one of these forms."""
    if not _COMPILED:  # it takes milliseconds
        _COMPILED.extend((re.compile(form), shown) for form, shown in _FORMS)
    for pattern, shown in _COMPILED:
        text = pattern.sub(shown, text)
    return text
