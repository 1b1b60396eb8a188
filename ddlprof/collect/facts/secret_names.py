"""What the name of an option, a field or a header says about its value."""

from __future__ import annotations

import re
import unicodedata
from enum import IntEnum
from functools import cache


class SecretLikelihood(IntEnum):
    """How likely a value after such a name is a credential."""

    NO = 0
    RANDOM = 1
    """The value is a secret only if it looks random: `--ssh-key`, `--tokens`."""
    PERHAPS = 2
    """The value is a secret unless it is a number: `-p`, `--key`, `--pass`."""
    SURE = 3


_SECRETS = {
    "auth", "authorization", "bearer", "cookie", "credential", "jwt", "mnemonic", "otp", "passcode", "passphrase",
    "passw", "passwd", "password", "pswd", "pwd", "pword", "secret", "signature", "totp",
}  # fmt: skip
_ELSEWHERE = (
    "adgangskode", "contraseña", "geheimnis", "hasło", "heslo", "jelszó", "kata sandi", "kennwort", "lozinka",
    "lösenord", "mot de passe", "mật khẩu", "parola", "parola d ordine", "passord", "passwort", "salasana", "senha",
    "wachtwoord", "zugangsdaten", "şifre", "parol", "пароль", "секрет", "κωδικός", "סיסמה", "パスワード", "暗証番号",
    "密码", "密碼", "口令", "비밀번호", "암호", "รหัสผ่าน", "पासवर्ड", "كلمة المرور", "كلمة السر", "گذرواژه",
)  # fmt: skip
"""Passwords and secrets in other languages; marks on letters do not count."""
_SHORT = {"clave", "cred", "mdp", "psw", "pw", "sig"}
"""Abbreviations, and words of other languages, that mean a secret, or something else whose value is a number."""
_ENDINGS = ("credential", "passphrase", "passwd", "password", "passwort", "secret")
"""Endings of words that were written together: `dbpassword`."""
_OF_KEYS = {
    "access", "account", "admin", "api", "auth", "encryption", "license", "master", "private", "secret", "service",
    "shared", "signing", "subscription", "wandb",
}  # fmt: skip
_OF_TOKENS = {
    "action", "added", "audio", "bos", "class", "cls", "context", "decoder", "delimiter", "end", "eos", "first",
    "image", "img", "initializer", "input", "instance", "last", "latent", "mask", "max", "memory", "min", "modifier",
    "new", "newline", "next", "num", "output", "pad", "patch", "per", "placeholder", "prefix", "prompt", "query",
    "register", "sep", "separator", "soft", "source", "speaker", "special", "start", "stop", "sub", "suffix", "target",
    "text", "total", "trigger", "unk", "unknown", "video", "virtual", "vision", "visual", "word",
}  # fmt: skip
"""Words that make a following "token" an entry of a vocabulary or a count, not a credential."""
_OF_PASSES = {
    "", "admin", "cifs", "db", "elastic", "ftp", "http", "https", "imap", "keystore", "ldap", "login", "mail", "mongo",
    "mysql", "pg", "postgres", "proxy", "rclone", "redis", "registry", "root", "sftp", "share", "smb", "smtp", "ssh",
    "sudo", "user", "vault", "webdav", "zip",
}  # fmt: skip
"""Words that make a following "pass" a password, not a pass over the data."""
_OF_SURE_TOKENS = {"", "bot", "github", "gitlab", "hf", "hub", "id", "login", "oauth", "refresh", "security", "session"}
"""Words after which "token" is surely a credential. After other words a number is kept."""
_OF_PATS = {
    "", "access", "ado", "azdo", "azure", "databricks", "db", "devops", "docker", "dockerhub", "gh", "git", "github",
    "gitlab", "hf", "personal", "repo", "snowflake",
}  # fmt: skip
"""Words that make a following "pat" a personal access token, not a pattern."""
_DRAWN = {"hmac", "nonce", "salt", "sas", "sid", "sessionid"}
"""Names of random values, which also have other meanings."""
_PHRASES = {"key", "mnemonic", "pass", "recovery", "secret", "seed"}
_CODES = {"auth", "mfa", "otp", "verification"}
_FORMS = {"b", "base", "hex", "plain", "raw", "str", "string", "text", "value"}
_PERSONS = {"u", "user", "userpwd", "login"}
_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])|[^\x00-\x7f]+")
_PLAIN_LETTERS = str.maketrans({"ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ı": "i", "ß": "ss"})  # noqa: RUF001


def level_of(name: str, option: bool = False) -> SecretLikelihood:
    """The level of a name such as `--api-key`, `hub_token` or `wandb.apiKey`.

    `option`: the name is that of an option; `key` and `p` alone are then taken as names of credentials.
    """
    words = _words(name)
    is_id = words[-1:] == ["id"]
    if is_id:
        words.pop()
    before, last = ["", "", *words][-2:]
    plural, last = _is_plural(last), _singular(last)
    if last == "token" or (last.endswith("token") and not before):
        owner = before if last == "token" else last.removesuffix("token")
        sure = owner in _OF_SURE_TOKENS | _OF_KEYS
        return (
            SecretLikelihood.NO
            if owner in _OF_TOKENS
            else _weaker(SecretLikelihood.SURE if sure else SecretLikelihood.PERHAPS, plural or is_id)
        )
    if last in _SECRETS or last.endswith(_ENDINGS) or _is_foreign(words):
        return SecretLikelihood.SURE
    if last.endswith("key"):
        return _level_of_key(before if last == "key" else last.removesuffix("key"), option and not plural)
    if last in _SHORT or (last == "pat" and before in _OF_PATS):
        return SecretLikelihood.PERHAPS
    if last.endswith("pass") and (last == "pass" or last.removesuffix("pass") in _OF_PASSES):
        return SecretLikelihood.PERHAPS if last != "pass" or before in _OF_PASSES else SecretLikelihood.NO
    if (last == "phrase" and before in _PHRASES) or (last == "code" and before in _CODES):
        return SecretLikelihood.SURE
    if "webhook" in (last, before) and last in ("webhook", "url", "uri"):
        return SecretLikelihood.PERHAPS
    if last in _DRAWN or (last == "session" and is_id):
        return SecretLikelihood.RANDOM
    if option and not before:
        return {"p": SecretLikelihood.PERHAPS, "k": SecretLikelihood.RANDOM, "t": SecretLikelihood.RANDOM}.get(
            last, SecretLikelihood.NO
        )
    return SecretLikelihood.NO


def names_a_person(name: str) -> bool:
    """Whether the value may be `user:password`, as after curl's `-u`."""
    return _words(name)[-1:] in [[word] for word in _PERSONS]


def _is_foreign(words: list[str]) -> bool:
    """Whether the name ends with a password of another language, whether or not its words are written together."""
    ends = {"".join(words[-count:]) for count in (1, 2, 3)}
    whole, parts = _foreign()
    return not whole.isdisjoint(ends) or any(each.endswith(parts) for each in ends)


@cache
def _foreign() -> tuple[frozenset[str], tuple[str, ...]]:
    """All words, and those that cannot be the end of another word."""
    whole = frozenset("".join(_words(each)) for each in _ELSEWHERE)
    return whole, tuple(each for each in whole if len(each) > 6 or not each.isascii())


def _level_of_key(owner: str, option: bool) -> SecretLikelihood:
    if owner in _OF_KEYS:
        return SecretLikelihood.SURE
    return SecretLikelihood.PERHAPS if option and not owner else SecretLikelihood.RANDOM


def _weaker(level: SecretLikelihood, weaker: bool) -> SecretLikelihood:
    return SecretLikelihood.RANDOM if weaker else level


def _singular(word: str) -> str:
    return word[:-1] if _is_plural(word) else word


def _is_plural(word: str) -> bool:
    return word.endswith("s") and not word.endswith("ss")


def _words(name: str) -> list[str]:
    """The words in lower case, without a number at the end and without the form of the value."""
    words = [word.casefold().rstrip("0123456789") for word in _WORD.findall(_without_marks(name))]
    words = [word for word in words if word]
    while len(words) > 1 and words[-1] in _FORMS:
        words.pop()
    return words


def _without_marks(text: str) -> str:
    if text.isascii():
        return text
    letters = unicodedata.normalize("NFKD", text.translate(_PLAIN_LETTERS))
    return "".join(letter for letter in letters if not unicodedata.combining(letter))
