"""Removes what looks like a credential from command-line arguments before they are written to the manifest.

In doubt it removes: a manifest is passed around, and a lost argument costs a reader little. After names that only
sometimes mean a password, numbers are kept (`-p 0.5`, `--key 3`), so a password made of digits alone is shown there.
After `--password` and `--token` everything is removed. A word that begins with a dash but is not written as options are
counts as a value. A very long argument is removed as a whole, which also limits the time that this takes.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ddlprof.base.text import HIDDEN, USER_INFO
from ddlprof.collect.facts.secret_names import SecretLikelihood, level_of, names_a_person
from ddlprof.collect.facts.secret_options import names_a_program, without_passwords

_LONGEST = 4096
_HARMLESS = {"", "true", "false", "none", "null", "0", "1", "yes", "no", HIDDEN}
_RANDOM_LENGTH, _RANDOM_CHANGES = 16, 4
_SCHEMES = {"basic", "bearer", "digest", "token"}

_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[kKmMgG%]?")
_NEXT_OPTION = re.compile(r"--?(?:[A-Za-z][A-Za-z]*\d*(?:[-_.][A-Za-z]+\d*|[-_.]\d+)*(?:=.*)?)?|--no-\S+", re.DOTALL)
"""The form of an option: `--fp16`, `-b`, `--lr=1`. Passwords rarely have their digits only at the ends of words."""
_RANDOM = re.compile(r"[\w+/=.~-]+")
_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])")

_HEADER = re.compile(r"([A-Za-z][\w-]*:\s+)(.+)", re.DOTALL)
_IN_NAME = r"[\w.\u0300-\u036f\u0600-\u06ff\u0900-\u0e7f-]"
"""Letters of all languages; some of them have marks that count as none."""
_OPTION = re.compile(rf"(-{{0,2}}\+{{0,2}}[^\W\d_]{_IN_NAME}{{0,100}})=(.*)", re.DOTALL)
_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_ESCAPED = r'\\+"[^"\\]*\\+"'
_LINES = r"[|>][+-]?[ \t]*\n(?:[ \t]+[^\n]*\n?)+"
"""A text of several lines in YAML."""
_PAIR_NAME = re.compile(rf"""(?<!{_IN_NAME})({_IN_NAME}{{1,80}})\\*["']?\s*[=:＝：]+>?\s*""")  # noqa: RUF001
_PAIR_VALUE = re.compile(rf"""{_QUOTED}|{_ESCAPED}|{_LINES}|\[[^\]]*\]|[^\s"'&;,{{}}\[\]<>]+""", re.DOTALL)
_FIELD_OF_NAMES = re.compile(r"(?i).*(?:name|key)|k|id|env|var|variable|parameter|header|field|option")
_FIELD_OF_VALUES = re.compile(r"(?i).*value|val|v|content|default|data")
"""As in `{"name": "DB_PASSWORD", "value": "..."}`."""
_ELEMENT = re.compile(r"<([A-Za-z][\w.-]{0,80})>([^<>]+)(?=</)")
_INNER_OPTION = re.compile(rf"(?<!\S)(--?[^\W\d_]{_IN_NAME}*)([ \t]+)({_QUOTED}|[^\s\"']+)", re.DOTALL)
_OPTION_NAME = re.compile(rf"[-+]{{1,2}}{_IN_NAME}+")
_WORD = re.compile(rf"[^\W\d]{_IN_NAME}{{1,80}}")
_MIXED = re.compile(r"(?=.*[A-Za-z])(?=.*[\d!@#$%^&*?])[!-~]{6,64}")
_OF_SMB = re.compile(r"([\w.@$\\/-]{1,128}%).+")
_BASE64 = re.compile(r"(?<![\w+/=.-])[\w+/-]{10,}={0,2}(?![\w+/=.-])")
_PERSON = re.compile(r"[\w.@+-]{1,64}:[!-~]{1,64}")
_AWS = re.compile(r"(?<![\w+/=.-])[A-Za-z0-9/+]{40}(?![\w+/=.-])")
_AWS_CHANGES = 8
_HEX_40 = re.compile(r"[0-9a-f]{40}")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_DRAWN = re.compile(r"(?<![\w+/=.-])[\w+/=-]{32,}")
_DRAWN_PIECE = re.compile(r"[A-Za-z0-9]{12}")
_DRAWN_SHARE = 0.3
"""A text is taken as random if so many neighbours match `_CHANGE`: random letters and digits reach 0.45, words less."""


def redact(argv: list[str]) -> list[str]:
    """The same number of arguments, with `***` in place of credentials."""
    argv = without_passwords(argv)
    shown: list[str] = []
    name = ""  # of the option whose value this argument may be
    split_key = ""  # the last marker of a private key that the shell has split: BEGIN or END
    for argument in argv:
        if split_key or _begins_split_key(argument):
            shown.append(HIDDEN if split_key else _redact_inside(argument))
            split_key = _next_of_split_key(split_key, argument)
            name = ""
        else:
            is_value = name and not _NEXT_OPTION.fullmatch(argument)
            shown.append(_redact_value(name, argument) if is_value else _redact_inside(argument))
            name = argument if _OPTION_NAME.fullmatch(argument) or _names_secret(argument) else ""
    return shown


def _begins_split_key(argument: str) -> bool:
    return "-----BEGIN" in argument and "-----END" not in argument and not any(map(str.isspace, argument))


def _next_of_split_key(word: str, argument: str) -> str:
    if word != "END" and "-----END" not in argument:
        return "BEGIN"
    return "" if argument.endswith("-----") else "END"


def _redact_value(name: str, value: str) -> str:
    """Redacts a value that follows an option or a name."""
    if name[0] not in "-+":
        return HIDDEN if _may_be_password(value) else _redact_inside(value)
    if _is_secret(level_of(name, option=True), value) or ("wandb" in name.lower() and _HEX_40.fullmatch(value)):
        return HIDDEN
    return _without_password(value) if names_a_person(name) else _redact_text(value)


def _redact_inside(argument: str) -> str:
    """Redacts one argument that follows no option: `name=value`, or a text."""
    if len(argument) <= _LONGEST:
        argument = _redact_look(argument)  # first, because base64 ends with "="
    option = _OPTION.fullmatch(argument)
    if option is None:
        return _redact_text(argument)
    name, value = option.groups()
    if name[0] in "-+":
        return f"{name}={_redact_value(name, value)}"
    return _redact_pairs(f"{name}={HIDDEN if _is_secret(level_of(name), value) else _redact_text(value)}")


def _redact_text(text: str) -> str:
    """Redacts a header, JSON, or a text that contains these, addresses, tokens or `name=value`."""
    if len(text) > _LONGEST:
        return HIDDEN
    text = _redact_json(text)
    header = _HEADER.fullmatch(text)
    if header and _is_secret(level_of(header[1]), header[2]):
        return header[1] + HIDDEN
    text = "".join(without_passwords(re.split(r"(\s+)", text))) if names_a_program(text) else text
    text = _redact_pairs(without_forms(text))
    text = _INNER_OPTION.sub(_redact_inner_option, text)
    text = _ELEMENT.sub(_redact_element, _redact_spaced(text))
    text = _DRAWN.sub(_redact_drawn, _redact_look(text))
    return _redact_encoded(text)


def _redact_look(text: str) -> str:
    """Hides what is a credential by what it looks like, whatever stands around it."""
    text = _tokens().sub(HIDDEN, text)
    text = _AWS.sub(lambda found: HIDDEN if _is_aws(found[0]) else found[0], text)
    return _BASE64.sub(lambda found: HIDDEN if _encodes_secret(found[0]) else found[0], text)


def _is_aws(word: str) -> bool:
    """Whether 40 characters are a secret key of AWS, and neither a hash nor a path."""
    kinds = [re.search(kind, word) for kind in ("[a-z]", "[A-Z]", "[0-9]")]
    return all(kinds) and len(_CHANGE.findall(word)) >= _AWS_CHANGES


def _encodes_secret(word: str) -> bool:
    """Whether a word is the base64 of a text with a credential, such as `user:password` or `password=...`."""
    try:
        text = b64decode(word.replace("-", "+").replace("_", "/") + "=" * (-len(word) % 4), validate=True).decode()
    except ValueError:
        return False
    if not all(character.isprintable() or character.isspace() for character in text):
        return False  # any word may decode to something
    return _PERSON.fullmatch(text) is not None or _redact_text(text) != text


def _redact_encoded(text: str) -> str:
    """Redacts a percent-encoded text (with `%22`); returns it unchanged if it contains no secret."""
    if not _ENCODED.search(text):
        return text
    decoded = unquote(text)
    shown = _redact_text(decoded)
    return text if shown == decoded else shown


def _redact_pairs(text: str) -> str:
    """Redacts values in `name=value` and `name: value`, as in queries and connection strings, also nested ones."""
    shown, done = "", 0
    of_named = SecretLikelihood.NO  # how secret the next value is if the last value was itself a name
    for pair in _PAIR_NAME.finditer(text):
        value = _PAIR_VALUE.match(text, pair.end())
        if value is None or pair.start() < done:
            continue
        in_query = text[: pair.start()][-1:] in ("?", "&")
        bare = value[0].strip("\\\"'")
        level = level_of(pair[1], option=in_query)
        if _FIELD_OF_NAMES.fullmatch(pair[1]):
            of_named = level_of(bare)
        elif _FIELD_OF_VALUES.fullmatch(pair[1]):
            level, of_named = max(level, of_named), SecretLikelihood.NO
        if bare.lower() not in _SCHEMES and _is_secret(level, bare):
            shown += text[done : value.start()] + HIDDEN
            done = value.end()
    return shown + text[done:]


def _redact_inner_option(found: re.Match[str]) -> str:
    """`--password x` in the middle of a text, such as a command for a shell."""
    name, space, value = found.groups()
    if names_a_person(name):
        return name + space + _without_password(value.strip("\"'"))
    if _NEXT_OPTION.fullmatch(value) or not _is_secret(level_of(name, option=True), value.strip("\"'")):
        return found[0]
    return name + space + HIDDEN


def _redact_spaced(text: str) -> str:
    """`aws_secret_access_key x` in the middle of a text."""
    words = re.split(r"(\s+)", text)
    for at in range(2, len(words), 2):
        if _names_secret(words[at - 2]) and _may_be_password(words[at].strip("\"'")):
            words[at] = HIDDEN
    return "".join(words)


def _names_secret(word: str) -> bool:
    """Whether a value that follows this word is a secret, if the value looks like one."""
    return _WORD.fullmatch(word) is not None and level_of(word) is SecretLikelihood.SURE


def _redact_element(found: re.Match[str]) -> str:
    """`<password>x</password>`."""
    return f"<{found[1]}>{HIDDEN}" if _is_secret(level_of(found[1]), found[2]) else found[0]


def _redact_drawn(found: re.Match[str]) -> str:
    """Hides a long word that looks random, such as a key in base64 or a token of an unknown kind."""
    text = found[0]
    if not _DRAWN_PIECE.search(text) or len(_CHANGE.findall(text)) < _DRAWN_SHARE * len(text):
        return text
    return HIDDEN if re.search("[a-z]", text) and re.search("[A-Z]", text) else text


def _redact_json(text: str) -> str:
    """Redacts the fields of a JSON text; returns it unchanged if it is no JSON or contains no secret."""
    if text.lstrip()[:1] not in ("{", "[", '"'):
        return text
    try:
        value = json.loads(text)
        shown = _redact_fields(value, SecretLikelihood.NO)
        return text if shown == value else json.dumps(shown, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _redact_fields(value: Any, level: SecretLikelihood) -> Any:
    """Redacts nested JSON values. `level`: how secret the names around the value make it."""
    if isinstance(value, dict):
        names = [each for name, each in value.items() if isinstance(each, str) and _FIELD_OF_NAMES.fullmatch(name)]
        of_named = max([SecretLikelihood.NO, *map(level_of, names)])
        levels = {
            n: max(level, level_of(n), of_named if _FIELD_OF_VALUES.fullmatch(n) else SecretLikelihood.NO)
            for n in value
        }
        return {name: _redact_fields(field, levels[name]) for name, field in value.items()}
    if isinstance(value, list):
        return [_redact_fields(item, level) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if _is_secret(level, str(value)):
        return HIDDEN
    return _redact_text(value) if isinstance(value, str) else value


def _is_secret(level: SecretLikelihood, value: str) -> bool:
    if value.strip().lower() in _HARMLESS:
        return False
    if level is SecretLikelihood.PERHAPS:
        return not _NUMBER.fullmatch(value)
    return level is SecretLikelihood.SURE or (level is SecretLikelihood.RANDOM and _looks_random(value))


def _looks_random(value: str) -> bool:
    if len(value) < _RANDOM_LENGTH or not _RANDOM.fullmatch(value) or value.startswith(("/", "./", "../", "~")):
        return False
    return len(_CHANGE.findall(value)) >= _RANDOM_CHANGES


def _may_be_password(value: str) -> bool:
    """Whether a word behind "password" is one, and not the next word of a sentence."""
    return _is_secret(SecretLikelihood.RANDOM, value) or _MIXED.fullmatch(value) is not None


def _without_password(text: str) -> str:
    """`me:secret` becomes `me:***`, and so does `DOMAIN\\me%secret`.

    Numbers and paths are kept after a colon: they may be ports and parts of addresses.
    """
    if (smb := _OF_SMB.fullmatch(text)) is not None:
        return smb[1] + HIDDEN
    person, colon, password = text.partition(":")
    if not colon or password.startswith("//") or not _is_secret(SecretLikelihood.PERHAPS, password):
        return _redact_text(text)
    return f"{person}:{HIDDEN}"


@lru_cache(maxsize=1)
def _tokens() -> re.Pattern[str]:
    """The pattern of all tokens. Compiled on first use, because that takes milliseconds."""
    return token_pattern()


LISTED = Path(__file__).with_name("token_shapes.json")
_MORE = (
    r"(?:AKIA|ASIA)[A-Z0-9]{12,}",  # AWS
    r"AIza[\w-]{16,}|ya29\.[\w-]{10,}|1//0[\w-]{20,}|GOCSPX-[\w-]{16,}",  # Google
    r"hf_(?:[A-Za-z]*\d[A-Za-z0-9]{7,}|[A-Za-z0-9]{16,})|api_org_[A-Za-z0-9]{16,}",  # Hugging Face
    r"sk-(?:[A-Za-z0-9]{1,12}-){0,3}\w{16,}[\w-]*|sk-(?:ant|proj|svcacct|or)-[\w-]{8,}",  # OpenAI and its like
    r"(?:gh[pousr]_|github_pat_)\w{8,}|gl(?:pat|agent|cbt|dt|ffct|ft|imt|oas|ptt|rt|soat)-[\w-]{8,}",  # GitHub, GitLab
    r"(?:xox[a-z]|xapp)-[\w-]{10,}",  # Slack
    r"eyJ[\w+/=-]{16,}(?:\.[\w=-]*)*",  # JSON in base64: JSON web tokens, Neptune
    r"SG\.[\w-]{10,}\.[\w-]{10,}",  # SendGrid
    r"(?:npm_|dckr_pat_|r8_|gsk_|fw_|xai-|nvapi-|pplx-|csk-|pcsk_|tgp_v1_|lsv2_[a-z]{2}_|wandb_v1_)[\w-]{16,}",
    r"do[a-z]_v1_\w{8,}|dapi[0-9a-f]{24,}|hv[sb]\.[\w-]{16,}",  # DigitalOcean, Databricks, Vault
    r"(?:[sr]k|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,}",  # Stripe
    r"[\w~.-]{3}\dQ~[\w~.-]{24,}",  # Azure's client secrets
    r"(?:shp(?:at|ca|pa|ss)|sbp|gls[ac]|glc|figd|ntn|lin_api|dp\.[a-z]{2,6}|sntry[su]|ph[cx]|rnd|tfp|pul|key)[-_.][\w-]{24,}",
    r"PMAK-[\w-]{24,}|NRAK-[A-Z0-9]{20,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}|AT(?:ATT|CTT|BB)[\w=-]{20,}",
)
_REST = r"[\w.+=~-]*"
"""Tokens are hidden up to their end, even if the pattern matches only the beginning."""


def token_pattern() -> re.Pattern[str]:
    """One pattern for all forms of tokens. If the list cannot be read, only those that are not in the list."""
    listed: dict[str, list[str]] = {}
    with suppress(OSError, ValueError):
        listed = json.loads(LISTED.read_text(encoding="utf-8"))["shapes"]
    shapes = [*_MORE, *(shape for shapes in listed.values() for shape in shapes)]
    return re.compile(f"(?<![A-Za-z0-9])(?:{'|'.join(shapes)}){_REST}")


_FORMS = (
    (r"(?s)-----BEGIN.*?(?:-----END[^-]*-----|\Z)", HIDDEN),
    (r"(?<!\S)-p(?=\S*[A-Za-z])(?=\S*\d)[^\s=/]{8,}", f"-p{HIDDEN}"),
    # Addresses: `user:password@host`, with a scheme and without, Oracle's `user/password@//host`, and webhooks, whose
    # path is the password.
    (r"(?i)\b(https?://(?:[\w-]{1,60}\.){0,6}[\w-]{0,60}hooks?\.[^\s/]{1,60}/)(?!\*{3})[^\s\"']+", rf"\1{HIDDEN}"),
    (r"(?i)\b(https?://[^\s?#\"']{1,200}?/\w{0,60}hooks?\w{0,60}/)(?!\*{3})[^\s\"']+", rf"\1{HIDDEN}"),
    (rf"(?<=://){USER_INFO}", f"{HIDDEN}@"),
    (rf"(?<![\w:/.])//{USER_INFO}", f"//{HIDDEN}@"),
    (r"(?<![\w:/\\.-])((?:-U)?[\w.-]+\\{1,2}[\w.$-]+)%[^\s\"']+", rf"\1%{HIDDEN}"),
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
    (r"\b((?:machine\s+\S+|default)\s+login\s+\S+\s+password\s+)\S+", rf"\1{HIDDEN}"),
    (r"(?is)(wandb\W.{0,40}?)\b[0-9a-f]{40}\b", rf"\1{HIDDEN}"),
)
_COMPILED: list[tuple[re.Pattern[str], str]] = []


def without_forms(text: str) -> str:
    """The text with `***` in place of credentials in one of these forms."""
    if not _COMPILED:  # on first use, because it takes milliseconds
        _COMPILED.extend((re.compile(form), shown) for form, shown in _FORMS)
    for pattern, shown in _COMPILED:
        text = pattern.sub(shown, text)
    return text
