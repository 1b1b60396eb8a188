"""Passwords after options whose names say nothing, by the program they are given to: `mysql -pX`, `sshpass -p X`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddlprof.base.text import HIDDEN

_MYSQL = ("mysql", "mysqladmin", "mysqldump", "mysqlimport", "mysqlsh", "mariadb", "mariadb-dump", "mycli")
_PASSWORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_MYSQL, ("-p",)),
    **dict.fromkeys(("mongo", "mongosh", "mongodump", "mongorestore", "cqlsh"), ("-p",)),
    **dict.fromkeys(("sqlcmd", "bcp", "isql", "unzip", "zip"), ("-P",)),
    **dict.fromkeys(("ldapsearch", "ldapmodify", "ldapadd", "ldapwhoami"), ("-w",)),
    **dict.fromkeys(("7z", "7za", "7zz", "rar", "unrar"), ("-p", "-hp")),
    **dict.fromkeys(("ncftpget", "ncftpput", "sshpass", "docker", "podman", "az"), ("-p",)),
    **dict.fromkeys(("plink", "pscp", "psftp"), ("-pw",)),
    "redis-cli": ("-a",),
    "openssl": ("-pass", "-passin", "-passout", "-k", "-K"),
    "curl": ("-b",),
}
"""The options of a password; it may be glued to them."""
_PERSONS: dict[str, tuple[str, ...]] = {
    "curl": ("-u", "-U"),
    "lftp": ("-u",),
    "http": ("-a",),
    "https": ("-a",),
    **dict.fromkeys(("smbclient", "rpcclient", "net"), ("-U",)),
}
"""The options of a user with the password: `me:x`, `me,x`, `DOMAIN\\me%x`."""
_PROGRAM = re.compile(
    r"(?:^|[\s/;&|(\"'`])(?:" + "|".join({**_PASSWORDS, **_PERSONS, "wandb": ()}) + r")\s|(?<!\S)-u|/user:"
)
_USER = re.compile(r"-u[^\W\d]\S*|--user(?:name)?(?:=.*)?", re.DOTALL)
_GLUED = re.compile(r"-p(?!\d*\.?\d*$)[^\s=-]\S*")
_SEPARATED = re.compile(r"([^:,%]+[:,%]).+", re.DOTALL)
_OF_WINDOWS = re.compile(r"/user:\S+", re.IGNORECASE)
_PLACE = re.compile(r"-|/|[A-Za-z]:|\\\\")
_KEY = re.compile(r"[0-9a-f]{40}")


def names_a_program(text: str) -> bool:
    """Whether the text may hold a command that `without_passwords` knows; cheap, as most texts do not."""
    return _PROGRAM.search(text) is not None


def without_passwords(words: Sequence[str]) -> list[str]:
    """The words of a command, or those of a text with the spaces between them, with `***` in place of passwords."""
    shown = list(words)
    program, before, has_user = "", "", False
    for at, word in enumerate(words):
        if not word or word.isspace():
            continue
        bare = word.strip("\"'`;()")
        name = bare.rpartition("/")[2]
        if (not before.startswith("-") or "=" in before) and (
            name in _PASSWORDS or name in _PERSONS or name == "wandb"
        ):
            program = name
        elif bare in ("|", "&&", "||", ";"):
            program, has_user = "", False
        else:
            shown[at] = _hidden(word, bare, before, program, has_user)
        is_user = before == "-u" and not bare.startswith("-") and not bare.endswith(".py")  # python -u train.py
        has_user = has_user or is_user or _USER.fullmatch(bare) is not None
        before = bare
    return shown


def _hidden(word: str, bare: str, before: str, program: str, after_user: bool) -> str:
    options = _PASSWORDS.get(program, ())
    if before in options and not (bare.startswith("-") and len(bare) < 3):
        return HIDDEN
    glued = next((each for each in options if bare.startswith(each) and len(bare) > len(each)), None)
    if glued is not None and program != "openssl" and (len(glued) > 2 or not bare.startswith("--")):
        return glued + HIDDEN
    for option in _PERSONS.get(program, ()):
        given = bare if before == option else bare.removeprefix(option) if bare.startswith(option) else ""
        if found := _SEPARATED.fullmatch(given):
            return (option if before != option else "") + found[1] + HIDDEN
    if program == "wandb" and _KEY.fullmatch(bare):
        return HIDDEN
    if after_user and _GLUED.fullmatch(bare):
        return f"-p{HIDDEN}"
    if _OF_WINDOWS.fullmatch(before) and not _PLACE.match(bare):
        return HIDDEN
    return word
