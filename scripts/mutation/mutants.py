"""Small wrong changes of a source file, each of which a test should notice.

A mutant is named by what it changes (file, text of the line, operator and which of the equal ones it is), so that the
same one is found in another version of the file, whose lines have other numbers.
"""

from __future__ import annotations

import ast
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div, ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
WORDS = {"warning", "warn", "info", "debug", "print", "note_failure"}
"""Calls whose arguments are texts, and which no result depends on."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str
    line: int
    text: str
    """The line, as it was."""

    operator: str
    number: int
    """Which of the mutants with this path, text and operator it is, from above."""

    before: str
    after: str
    start: tuple[int, int]
    """Line, from 1, and offset in its UTF-8 bytes of what is replaced."""

    end: tuple[int, int]

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What the mutant is called in any version of the file."""
        return self.path, self.text, self.operator, self.number

    def applied(self, source: str) -> str:
        """The file with this change."""
        lines = source.encode().splitlines(keepends=True)
        (first, left), (last, right) = self.start, self.end
        head, tail = lines[first - 1][:left], lines[last - 1][right:]
        return b"".join([*lines[: first - 1], head + self.after.encode() + tail, *lines[last:]]).decode()


def mutants(source: str, path: str) -> list[Mutant]:
    """Every mutant of a file that the operators make, from above."""
    lines = source.encode().splitlines(keepends=True)
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for node, operator, after in sorted(_changes(ast.parse(source)), key=lambda change: _position(change[0])):
        first, left, last, right = _position(node)
        whole = b"".join(lines[first - 1 : last])
        before = whole[left : len(whole) - len(lines[last - 1]) + right].decode()
        text = lines[first - 1].decode().strip()
        number = seen[text, operator]
        seen[text, operator] += 1
        found.append(Mutant(path, first, text, operator, number, before, after, (first, left), (last, right)))
    return found


def spread(found: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of the mutants, evenly from the files and the operators, and at most one of a line while that can be."""
    queues: dict[str, dict[str, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for mutant in random.Random(seed).sample(list(found), len(found)):
        queues[mutant.path][mutant.operator].append(mutant)
    of_files = [_in_turns(list(queues[path].values())) for path in sorted(queues)]
    chosen = _in_turns([_one_a_line(mutants) for mutants in of_files])
    return [mutant for _, mutant in zip(range(count), chosen, strict=False)]


def _one_a_line(mutants: Iterable[Mutant]) -> list[Mutant]:
    """The first mutant of each line, then the others."""
    lines: set[int] = set()
    first: list[Mutant] = []
    others: list[Mutant] = []
    for mutant in mutants:
        (others if mutant.line in lines else first).append(mutant)
        lines.add(mutant.line)
    return first + others


def _in_turns(queues: Sequence[list[Mutant]]) -> Iterator[Mutant]:
    for turn in range(max(map(len, queues), default=0)):
        for queue in queues:
            if turn < len(queue):
                yield queue[turn]


def _position(node: ast.AST) -> tuple[int, int, int, int]:
    assert isinstance(node, ast.expr | ast.stmt)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


Change = tuple["ast.expr | ast.stmt", str, str]


def _changes(tree: ast.Module) -> Iterator[Change]:
    """What can be changed in the bodies of functions, and no annotation, docstring, text or message of an error."""
    for function in _functions(tree):
        docstring = ast.get_docstring(function) is not None
        for statement in function.body[docstring:]:
            yield from _below(statement, in_init=function.name == "__init__")


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _functions(child)


def _below(node: ast.AST, *, in_init: bool) -> Iterator[Change]:
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert | ast.arg | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Call) and _called(node) in WORDS:
        return
    if isinstance(node, ast.expr | ast.stmt):
        for operator, change in OPERATORS.items():
            if not (in_init and operator == "statement") and (after := change(node)) is not None:
                whole = isinstance(node, ast.stmt | ast.Constant)
                yield node, operator, ast.unparse(after) if whole else f"({ast.unparse(after)})"
    for name, field in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in field if isinstance(field, list) else [field]:
            if isinstance(child, ast.AST):
                yield from _below(child, in_init=in_init)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _comparison(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Compare):
        return None
    return ast.Compare(node.left, [COMPARED[type(node.ops[0])](), *node.ops[1:]], node.comparators)


def _arithmetic(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.AugAssign) and type(node.op) in COMPUTED:
        return ast.AugAssign(node.target, COMPUTED[type(node.op)](), node.value)
    if not isinstance(node, ast.BinOp) or type(node.op) not in COMPUTED or _text(node.left) or _text(node.right):
        return None
    return ast.BinOp(node.left, COMPUTED[type(node.op)](), node.right)


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _logic(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.BoolOp):
        return None
    return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)


def _negation(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.IfExp) and not isinstance(node.test, ast.Compare | ast.UnaryOp | ast.BoolOp):
        return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    return None


def _constant(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Constant):
        return None
    if isinstance(node.value, bool):
        return ast.Constant(not node.value)
    if isinstance(node.value, int):
        return ast.Constant(node.value + 1)
    return ast.Constant(2 * node.value + 1) if isinstance(node.value, float) else None


def _return(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Return) or node.value is None:
        return None
    if isinstance(node.value, ast.Constant) and node.value.value is None:
        return None
    return ast.Return(ast.Constant(None))


def _statement(node: ast.AST) -> ast.AST | None:
    if isinstance(node, ast.Assign):
        return ast.Pass() if isinstance(node.targets[0], ast.Attribute | ast.Subscript) else None
    call = node.value if isinstance(node, ast.Expr) else None
    return ast.Pass() if isinstance(call, ast.Call) and _called(call) not in WORDS else None


def _call(node: ast.AST) -> ast.AST | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in CALLED:
        return None
    return ast.Call(ast.Name(CALLED[node.func.id]), node.args, node.keywords)


def _jump(node: ast.AST) -> ast.AST | None:
    return ast.Break() if isinstance(node, ast.Continue) else ast.Continue() if isinstance(node, ast.Break) else None


OPERATORS: dict[str, Callable[[ast.AST], ast.AST | None]] = {
    "comparison": _comparison,
    "arithmetic": _arithmetic,
    "logic": _logic,
    "negation": _negation,
    "constant": _constant,
    "return": _return,
    "statement": _statement,
    "call": _call,
    "jump": _jump,
}
