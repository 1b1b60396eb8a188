import ast

import pytest

from scripts.mutation.mutants import Mutant, mutants, spread

SOURCE = '''\
"""About 3 things."""

LIMIT = 1  # read when the module is


class Box:
    """One box."""

    __slots__ = ("size",)

    def __init__(self, size: int = 4) -> None:
        """Twice 2."""
        self.size = size

    def grown(self, times: "int | None") -> int:
        if not times:
            raise ValueError("nothing" + f"{1 + 1}")
        for _ in range(times):
            self.size *= 2
            continue
        warning("said", 1)
        self.size = min(self.size, 9)
        note("é", self.size < 5 and True); note("é")
        return self.size
'''


def found(source: str) -> list[tuple[int, str, str]]:
    return [(m.line, m.operator, m.after) for m in mutants(source, "box.py")]


def test_what_is_changed_and_what_is_not() -> None:
    """No docstring, annotation, text, message, nor anything that only the import of the module executes."""
    assert found(SOURCE) == [
        (16, "negation", "(times)"),
        (19, "arithmetic", "self.size /= 2"),
        (19, "constant", "3"),
        (20, "jump", "break"),
        (22, "statement", "pass"),
        (22, "call", "(max(self.size, 9))"),
        (22, "constant", "10"),
        (23, "statement", "pass"),
        (23, "comparison", "(self.size <= 5)"),
        (23, "logic", "(self.size < 5 or True)"),
        (23, "constant", "6"),
        (23, "constant", "False"),
        (23, "statement", "pass"),
        (24, "return", "return None"),
    ]


def test_each_is_a_change_of_its_place_alone() -> None:
    for mutant in mutants(SOURCE, "box.py"):
        changed = mutant.applied(SOURCE)
        ast.parse(changed)
        differing = [
            n for n, (a, b) in enumerate(zip(SOURCE.split("\n"), changed.split("\n"), strict=True), 1) if a != b
        ]
        assert differing == [mutant.line]
    (second,) = [m for m in mutants(SOURCE, "box.py") if m.line == 23 and m.operator == "statement" and m.number == 1]
    assert 'note("é", self.size < 5 and True); pass' in second.applied(SOURCE)


def test_a_change_over_lines() -> None:
    source = "def f(a, b):\n    x = (\n        a\n        + b\n    )\n    return x\n"
    sums = [m.applied(source) for m in mutants(source, "f.py") if m.operator == "arithmetic"]
    assert sums == ["def f(a, b):\n    x = (\n        (a - b)\n    )\n    return x\n"]


@pytest.mark.parametrize(
    ("before", "after"),
    [("a < b", "a <= b"), ("a is b", "a is not b"), ("a not in b", "a in b"), ("a == b < c", "a != b < c"),
     ("a // b", "a / b"), ("a & b", "a | b"), ("a or b", "a and b"), ("any(a)", "all(a)"),
     ("1.5", "4.0"), ("0", "1"), ("a if b else c", "a if not b else c")],
)  # fmt: skip
def test_expressions(before: str, after: str) -> None:
    (mutant,) = mutants(f"def f(a, b, c):\n    x = {before}\n", "f.py")
    assert mutant.after in (after, f"({after})")


def test_the_same_mutant_is_found_on_another_line() -> None:
    moved = "import os\n\n" + SOURCE
    assert [m.key for m in mutants(moved, "box.py")] == [m.key for m in mutants(SOURCE, "box.py")]
    assert {m.line for m in mutants(moved, "box.py")}.isdisjoint({16})
    keys = [m.key for m in mutants(SOURCE, "box.py")]
    assert len(set(keys)) == len(keys)


def test_spread_over_files_operators_and_lines() -> None:
    both = [m for name in ("a.py", "b.py") for m in mutants(SOURCE, name)]
    chosen = spread(both, 12, seed=3)
    assert chosen == spread(both, 12, seed=3) != spread(both, 12, seed=4)
    for name in ("a.py", "b.py"):
        of_file = [m for m in chosen if m.path == name]
        assert len(of_file) == 6
        assert {m.line for m in of_file} == {16, 19, 20, 22, 23, 24}
        assert len({m.operator for m in of_file}) > 4
    assert sorted(map(key, spread(both, 1000, seed=0))) == sorted(map(key, both))


def key(mutant: Mutant) -> tuple[str, int, str, str]:
    return mutant.path, mutant.line, mutant.operator, mutant.after
