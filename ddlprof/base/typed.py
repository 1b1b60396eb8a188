"""Checks the fields of a dataclass against their annotations: types, ranges, lengths.

`decode` makes a record of parsed JSON. A record made by Python code is checked by the same rules, with the same
messages, if it calls `settle` in its `__post_init__`.
"""

from __future__ import annotations

import numbers
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ddlprof.base.errors import ReadingError

T = TypeVar("T")

LARGEST = 1e24
"""The largest number accepted. None of ddlprof's comes near it, and the product of two is not yet infinite."""
SMALLEST = 1e-12
"""The smallest positive number accepted. Times are seconds, and none is as short as a picosecond."""
LARGEST_WHOLE = 2**62
"""The largest integer accepted: two of them can be added as 64-bit integers."""
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True)
class Interval:
    """The range of a number, for `Annotated[float, Interval(...)]`; both ends belong to it."""

    low: float
    high: float = LARGEST

    def expected(self, noun: str) -> str:
        """What the range expects, such as "a positive number"."""
        if self.high < LARGEST:
            return f"a {noun} from {self.low:g} to {self.high:.12g}"
        if self.low == SMALLEST:
            return f"a positive {noun}"
        return f"a {noun} of {self.low:g} or more" if self.low > -LARGEST else f"a {noun}"


POSITIVE = Interval(SMALLEST)
NOT_NEGATIVE = Interval(0)
SHARE = Interval(0, 1)
_ANY_NUMBER = Interval(-LARGEST)


class Length(NamedTuple):
    """The number of items of a list, as in `Annotated[tuple[int, ...], Length(1, 8)]`, or of characters of a text."""

    at_least: int = 0
    at_most: int = 100_000


_ANY_LENGTH = Length()
_Check = Callable[[Any, str], Any]
"""Takes a value and the name of its field; returns the checked value. Raises ReadingError."""


def decode(kind: type[T], value: Any, where: str = "", numbers_are: Interval = _ANY_NUMBER) -> T:
    """Makes a record from parsed JSON, with the lists and records in it. Raises ReadingError.

    Fields that the record does not have are ignored. Fields that are missing or null get their default, or else None if
    the annotation allows it. `numbers_are`: the range of numbers without an `Interval` of their own. `where`: stands
    before the names of fields in errors. `kind` may also be a type such as `list[int]`.
    """
    check: _Check = _check_of(cast(Any, kind), numbers_are)
    result: T = check(value, where)
    return result


def settle(record: Any, numbers_are: Interval = _ANY_NUMBER) -> None:
    """For `__post_init__` of a dataclass: raises ReadingError if a field does not match its annotation.

    Lists become tuples where tuples are annotated, and numbers of other libraries become Python's.
    """
    for name, check in _fields_of(cast(Any, type(record)), numbers_are).items():
        given = getattr(record, name)
        kept = check(given, name)
        if kept is not given:
            object.__setattr__(record, name, kept)


def shown(value: Any) -> str:
    """A value for an error message: short and on one line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return repr(value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "...")
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        return "a number that is too large" if value > 0 else "a number that is too small"
    if isinstance(value, numbers.Real):
        return str(value)
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, Sequence) else f"a {type(value).__name__}"


def _wrong(where: str, expected: str, value: Any) -> ReadingError:
    return ReadingError(f"{where}{': ' if where else ''}{expected} is expected, not {shown(value)}")


@cache
def _fields_of(kind: Any, numbers_are: Interval) -> dict[str, _Check]:
    hints = get_type_hints(kind, include_extras=True)
    return {f.name: _check_of(hints[f.name], numbers_are) for f in fields(kind) if f.init}


@cache
def _defaulted(kind: Any) -> frozenset[str]:
    return frozenset(f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING)


@cache
def plain_types(kind: Any) -> dict[str, Any]:
    """The types of the fields of a dataclass without their ranges and their None."""
    return {name: next(iter(_told(hint)), hint) for name, hint in get_type_hints(kind).items()}


def _told(hint: Any) -> list[Any]:
    """The types in an optional type besides None; empty for other types."""
    arguments = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
    return [each for each in arguments if each is not types.NoneType]


@cache
def optional_fields(kind: Any) -> frozenset[str]:
    """The fields of a dataclass that may be None."""
    return frozenset(name for name, hint in get_type_hints(kind).items() if _told(hint))


@cache
def _check_of(hint: Any, numbers_are: Interval, length: Length = _ANY_LENGTH) -> _Check:
    """The check for a type, as `get_type_hints` gives it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        own_range = next((each for each in arguments[1:] if isinstance(each, Interval)), numbers_are)
        own_length = next((each for each in arguments[1:] if isinstance(each, Length)), length)
        return _check_of(arguments[0], own_range, own_length)
    if origin in (Union, types.UnionType):
        return _either(arguments, numbers_are, length)
    if origin is Literal:
        return _one_of(arguments)
    if origin in (dict, Mapping):
        return _mapping(_check_of(arguments[1], numbers_are), length)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _fixed(tuple(_check_of(each, numbers_are) for each in arguments))
    if origin in (tuple, list, Sequence):
        return _items(_check_of(arguments[0], numbers_are), list if origin is list else tuple, length)
    if is_dataclass(hint):
        return _record(hint, numbers_are)
    if isinstance(hint, type) and issubclass(hint, tuple):  # a NamedTuple
        fixed = _fixed(tuple(_check_of(each, numbers_are) for each in get_type_hints(hint).values()))
        return lambda value, where: hint(*fixed(value, where))
    if hint is Any:
        return lambda value, where: value
    simple = {int: _whole(numbers_are), float: _number(numbers_are), str: _text(length), bool: _truth}
    return simple[hint]


def _number(allowed: Interval) -> _Check:
    low, high = allowed.low, allowed.high

    def check(value: Any, where: str) -> Any:
        kept = value
        if type(value) not in (float, int):  # most values are already Python's own numbers
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise _wrong(where, allowed.expected("number"), value)
            kept = float(value)
        if not low <= kept <= high:
            raise _outside(allowed, "number", kept, where)
        return kept

    return check


def _whole(allowed: Interval) -> _Check:
    low, high = allowed.low, min(allowed.high, LARGEST_WHOLE)

    def check(value: Any, where: str) -> Any:
        kept = value
        if type(value) is not int:
            whole = isinstance(value, numbers.Integral) or (isinstance(value, float) and value.is_integer())
            if isinstance(value, bool) or not whole:
                raise _wrong(where, allowed.expected("whole number"), value)
            kept = int(value)
        if not low <= kept <= high:
            raise _outside(allowed, "whole number", kept, where)
        return kept

    return check


def _outside(allowed: Interval, noun: str, value: float, where: str) -> ReadingError:
    if allowed.high == LARGEST and value > allowed.low:
        return _wrong(where, f"a {noun} that is not so large", value)
    return _wrong(where, allowed.expected(noun), value)


def _text(length: Length) -> _Check:
    def check(value: Any, where: str) -> Any:
        if not isinstance(value, str):
            raise _wrong(where, "a text", value)
        if not length.at_least <= len(value) <= length.at_most:
            raise _wrong(where, f"a text of {length.at_least} to {length.at_most} characters", value)
        return value

    return check


def _truth(value: Any, where: str) -> Any:
    if not isinstance(value, bool):
        raise _wrong(where, "true or false", value)
    return value


def _one_of(allowed: tuple[Any, ...]) -> _Check:
    names = ", ".join(map(str, allowed))

    def check(value: Any, where: str) -> Any:
        if not any(value is each or (type(value) is type(each) and value == each) for each in allowed):
            raise _wrong(where, f"one of {names}", value)
        return value

    return check


def _either(hints: tuple[Any, ...], numbers_are: Interval, length: Length) -> _Check:
    """None, or the result of the first of the checks that accepts the value."""
    *others, last = [_check_of(hint, numbers_are, length) for hint in hints if hint is not types.NoneType]
    none_too = types.NoneType in hints

    def check(value: Any, where: str) -> Any:
        if value is None and none_too:
            return None
        for each in others:
            with suppress(ReadingError):
                return each(value, where)
        return last(value, where)

    return check


def _items(item: _Check, made: type[list[Any]] | type[tuple[Any, ...]], length: Length) -> _Check:
    def check(value: Any, where: str) -> Any:
        _require_list(value, where)
        if not length.at_least <= len(value) <= length.at_most:
            raise ReadingError(f"{where}: {_items_between(length)} expected, not {len(value)}")
        kept = [item(each, f"{where}[{index}]") for index, each in enumerate(value)]
        same = type(value) is made and all(one is other for one, other in zip(kept, value, strict=True))
        return value if same else made(kept)

    return check


def _items_between(length: Length) -> str:
    return f"{length.at_least} to {length.at_most} items are"


def _fixed(items: tuple[_Check, ...]) -> _Check:
    def check(value: Any, where: str) -> Any:
        _require_list(value, where)
        if len(value) != len(items):
            raise ReadingError(f"{where}: {len(items)} items are expected, not {len(value)}")
        return tuple(item(each, f"{where}[{i}]") for i, (item, each) in enumerate(zip(items, value, strict=True)))

    return check


def _require_list(value: Any, where: str) -> None:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise _wrong(where, "a list", value)


def _mapping(item: _Check, length: Length) -> _Check:
    def check(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        if len(value) > length.at_most:
            raise ReadingError(f"{where}: {_items_between(length)} expected, not {len(value)}")
        return {str(name): item(each, f"{where}.{shown(name)}") for name, each in value.items()}

    return check


def _record(kind: Any, numbers_are: Interval) -> _Check:
    def check(value: Any, where: str) -> Any:
        if type(value) is kind:
            return value  # made and checked by Python code
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        found: dict[str, Any] = {}
        for name, check in _fields_of(kind, numbers_are).items():
            inside = f"{where}.{name}" if where else name
            given = value.get(name)
            if given is None and name in _defaulted(kind):
                continue
            if given is None and name not in value and name not in optional_fields(kind):
                raise ReadingError(f"{inside} is missing")
            found[name] = check(given, inside)
        try:
            return kind(**found)
        except ReadingError:
            raise
        except ValueError as error:  # further conditions of the record
            raise ReadingError(f"{where}: {error}" if where else str(error)) from None

    return check
