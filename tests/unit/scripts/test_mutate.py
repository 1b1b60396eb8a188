import csv
from pathlib import Path

import pytest

from scripts import mutate
from scripts.mutation.mutants import Mutant, mutants

FILE = mutate.FILES[0]
SOURCE = "def f(a, b):\n    x = [\n        a\n        + b\n    ]\n    return x\n"
SUM, RETURN = mutants(SOURCE, FILE)


def test_the_short_suite_is_asked_first_and_the_fastest_test_first() -> None:
    seconds = {"slow": 0.1, "long": 3.0, "short": 0.2}
    seen = mutate.Seen(seconds, {"slow"}, {FILE: {"3": ["slow", "failed"], "4": ["long", "short"], "6": ["failed"]}})
    assert seen.tests(SUM) == ["short", "long", "slow"], "of all lines of the mutant, and none that fails without it"
    assert seen.tests(RETURN) == []


def test_the_same_mutants_are_made_in_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = mutate.Seen({}, set(), {})
    mutate._write(tmp_path / "before.csv", [mutate._row(m, "survived", "", 0, 0, seen) for m in (SUM, RETURN)])
    later = mutants("import os\n" + SOURCE.replace("return x", "return 2 * x"), FILE)
    same = mutate._like(tmp_path / "before.csv", later)
    assert [(m.line, m.operator) for m in same] == [(4, "arithmetic")]
    assert capsys.readouterr().out == f"no longer there: {FILE} return x return 0\n"


@pytest.mark.parametrize(
    ("outcome", "test", "said"),
    [("dead", "quick", "dead"), ("dead", "long", "dead slow"), ("survived", "", "survived")],
)
def test_rows(tmp_path: Path, outcome: str, test: str, said: str) -> None:
    seen = mutate.Seen({"quick": 1, "long": 9}, {"long"}, {})
    mutate._write(tmp_path / "mutants.csv", [mutate._row(SUM, outcome, test, 2, 0.123, seen)])
    with (tmp_path / "mutants.csv").open() as lines:
        (row,) = csv.DictReader(lines)
    assert row["outcome"] == said
    assert row == row | {"file": FILE, "line": "3", "text": "a", "operator": "arithmetic", "test": test, "tests": "2"}
    assert (row["before"], row["after"]) == ("a\n        + b", "(a + b)".replace("+", "-"))


def test_the_files_are_there_and_have_enough_mutants() -> None:
    for path in mutate.FILES:
        source = (mutate.ROOT / path).read_text()
        found: list[Mutant] = mutants(source, path)
        assert len(found) > 20
        assert len({m.key for m in found}) == len(found)
        for mutant in found[::20]:
            compile(mutant.applied(source), path, "exec")
