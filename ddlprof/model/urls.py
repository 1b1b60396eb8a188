"""URLs as they may be shown: what logs people in is part of many."""

from __future__ import annotations

import re

HIDDEN = "***"
USER_INFO = r"(?:[^/\s?#]*|[^\s/@:?#]+:(?!\d+(?:[/?#]|$))[^\s@]*)@"
"""A pattern of what stands between scheme and host."""
_BEGIN = r"(?P<scheme>(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]*:/{1,3})"
"""Also with one slash only, as pathlib leaves it."""
_USER = re.compile(_BEGIN + USER_INFO)
_QUERY = re.compile(rf"{_BEGIN}(?P<path>[^\s?#]*)[?#]\S*?(?=[:;,.)'\"]*(?:\s|$))")
_CONTAINER = re.compile(r"(?:abfs|wasb)s?:/{1,3}[^/\s?#:@]*@", re.IGNORECASE)
"""Azure writes CONTAINER@ACCOUNT."""


def without_credentials(text: str) -> str:
    """The text with `***` in place of users, passwords and queries of the URLs in it."""
    if ":/" not in text:
        return text
    text = _USER.sub(lambda found: found[0] if _CONTAINER.fullmatch(found[0]) else f"{found['scheme']}{HIDDEN}@", text)
    return _QUERY.sub(rf"\g<scheme>\g<path>?{HIDDEN}", text)
