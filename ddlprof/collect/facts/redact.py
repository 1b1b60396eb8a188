"""What of command-line arguments is written to the manifest: what surely is no credential. All else becomes `***`.

A manifest is passed around, and a lost argument costs a reader little, so nobody here has to know what credentials look
like. An argument is shown where it is made of numbers and words, and nothing in it or in front of it has the name of a
secret. What is drawn at random is no word: it is long, or changes between cases and digits. What people choose stands
behind such a name (`--password x`), behind a colon (`me:x`) or before `@`. A password that looks like a word and that
no name betrays is shown.
"""

from __future__ import annotations

import re

from ddlprof.base.text import HIDDEN

_LONGEST = 1000
"""Longer arguments are hidden unseen."""
_OPTION = re.compile(r"[-+~]{1,2}[^\W\d_]\S*")
_ASSIGNED = re.compile(r"([-+~]{0,2}[^\W\d_][\w./-]*)=(.*)", re.DOTALL)
_NUMBER = r"[-+(\[]{0,2}(?:\d[\d_]*\.?\d*|\.\d+)(?:e[-+]?\d+)?[kmg%]?[\])]?"
_NUMBERS = re.compile(rf"(?i:{_NUMBER}(?:[,:x]{_NUMBER})*|true|false|none|null|yes|no|)")
_SURE = re.compile(
    r"(?i)[^\x00-\x7f]|passw|passor|passphrase|pwd|secret(?!ary)|credential|cookie|bearer|authoriz|mnemonic|kennwort"
    r"|geheim|zugangsdaten|contrasen|m.?ot.?de.?passe|wachtwoord|losenord|adgangskode|salasana|jelsz|lozinka|sifre|khau"
    r"|(?<![a-z])(?:pword|otp|mfa|jwt|clave|mdp|senha|parola?|haslo|heslo|sandi)(?![a-z])"
    r"|^[-+]*(?:.*\.)?(?:(?:bot|hub|hf|api|access)[-_]?)?token$|api[-_]?key"
)
"""Names whose values are secrets, also in other languages; a name with other letters than ours counts as one."""
_PERHAPS = re.compile(
    r".*token|tokens|.*keys?|o?auth|.*pass|pw|pat|creds?|sig|signature|salt|phrase|hmac|sas|.*hooks?|session|sid"
)
"""Words of names whose values are secrets unless they are numbers: `--key 3`, `--max-tokens 512`."""
_ONE_LETTER = re.compile("-[kpuwPU]")
"""Options by which programs take passwords, users and keys: of these, too, only numbers are shown."""
_NAME = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_NO_WORDS = re.compile(
    r"[^\x20-\x7e]|@|:(?![\s/\\\d\]]|$)|%(?=[0-9A-F]{2})|\w%\w"
    r"|\b(?:hf|api_org|sk|gh[a-z]|github_pat|glpat|npm)[-_][\w-]{16}|(?<!\S)-p(?=\D*[a-zA-Z])(?=\D*\d)\w"
)
"""What numbers and words do not have: `me:x`, `x@host`, percent-encoding, tokens, and a password glued to `-p`."""
_PIECE = re.compile(r"[A-Za-z0-9]+")
_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")
_MOST_CHANGES, _LONGEST_MIXED = 3, 19
"""Of a word with digits, such as `lr1e4`."""


def redact(argv: list[str]) -> list[str]:
    """The same number of arguments, with `***` in place of all that may be a credential."""
    shown: list[str] = []
    name = ""  # of the option whose value this argument may be
    for argument in argv:
        is_option = _OPTION.fullmatch(argument) is not None and "=" not in argument
        shown.append(argument if is_option and _is_words(argument) else _redacted(name, argument))
        name = argument if is_option or (argument.isidentifier() and _likelihood(argument)) else ""
    return shown


def _redacted(name: str, argument: str) -> str:
    found = None if _likelihood(name) else _ASSIGNED.fullmatch(argument)
    if found and _is_words(found[1]):
        return f"{found[1]}={_value(found[1], found[2])}"
    return _value(name, argument)


def _value(name: str, value: str) -> str:
    likelihood = 1 if _ONE_LETTER.fullmatch(name) else _likelihood(name)
    if likelihood < 2 and _NUMBERS.fullmatch(value):
        return value
    return value if not likelihood and not _likelihood(value) and _is_words(value) else HIDDEN


def _likelihood(text: str) -> int:
    """Whether a text has the name of a secret in it: 2 surely, 1 of one that is no number, 0 not."""
    if len(text) > _LONGEST or _SURE.search(text):
        return 2
    return int(any(_PERHAPS.fullmatch(word.lower()) for word in _NAME.findall(text)))


def _is_words(text: str) -> bool:
    return len(text) <= _LONGEST and not _NO_WORDS.search(text) and all(map(_is_word, _PIECE.findall(text)))


def _is_word(piece: str) -> bool:
    if piece.isdigit():
        return True
    changes = len(_CHANGE.findall(piece))
    if piece.isalpha():  # DistilBertForSequenceClassification
        return changes <= 1 + len(piece) / 8
    return changes <= _MOST_CHANGES and len(piece) <= _LONGEST_MIXED
