"""Finds the objects of a class that are alive, without disturbing what other threads are making meanwhile.

`gc.get_objects()` gives every object a second reference until its list is gone. A tuple that C code of another thread
is still filling must have one only: it fails with "SystemError: bad argument to internal function", or, where its maker
ignores that, anywhere later. So here every object is looked at within one call into the interpreter, which does not
give up its lock before all references but those to what was asked for are dropped.
"""

from __future__ import annotations

import gc
from itertools import chain, starmap
from typing import Any


def instances_of(kind: type) -> list[Any]:
    """Every object the garbage collector knows whose class is `kind` or one made from it.

    Holds the interpreter's lock for tens of milliseconds in a large program: for what is asked once or twice in a run.
    """
    kinds = [each for each in _classes_in_use() if issubclass(each, kind)]
    return [each for each in gc.get_referrers(*kinds) if type(each) in kinds] if kinds else []


def _classes_in_use() -> set[type]:
    objects = chain.from_iterable(starmap(gc.get_objects, [()]))  # asked for inside `set`, and dropped there
    return set(map(type, objects))
