"""What people mistype is answered in a few lines that name the mistake and end without a traceback."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ddlprof.cli.app import main
from tests.golden.runs import simple_run
from tests.integration.processes import Processes

ROOT = Path(__file__).parents[3]
MISTAKES = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8").splitlines()
MOST_LINES, MOST_CHARACTERS = 4, 700
MOST_UNANSWERED = 1


def what_is_wrong(code: int, said: str, command: str) -> str:
    """What is wrong with an answer; empty where a few lines name what was typed, or what to type instead."""
    if code not in (1, 2):
        return f"exit code {code}"
    if "Traceback" in said or "bug of ddlprof" in said:
        return "a traceback"
    if re.search("Value error, |Input should|parse string", said):
        return "words of the library that checked the value"
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith("Usage: ")]
    if not lines or len(lines) > MOST_LINES or len(said) > MOST_CHARACTERS:
        return f"{len(lines)} lines"
    typed = [part for word in command.split()[1:] for part in re.split(r"[:=,]|^--?", word) if part]
    way_out = re.search(r" --?\w|ddlprof \w", said)
    return (
        "" if way_out or any(part in said for part in typed) else "nothing of what was typed is named, and no way out"
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simple_run(tmp_path_factory.mktemp("mistakes") / "here", steps=30)


def test_mistakes_are_answered(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    processes: Processes,
) -> None:
    assert len(MISTAKES) >= 130
    monkeypatch.chdir(tmp_path)
    places = {"RUN": str(run), "EXAMPLE": str(ROOT / "examples/digits.py"), "JOBS": str(ROOT / "examples/jobs.csv")}
    bad = {}
    for command in MISTAKES:
        words = [places.get(word, word) for word in command.split()]
        if words[0] == "run":  # which becomes the training
            done = processes.run(sys.executable, "-m", "ddlprof", *words, text=True)
            code, said = done.returncode, done.stderr
        else:
            monkeypatch.setattr(sys, "argv", ["ddlprof", *words])
            try:
                code = main()
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
            said = capsys.readouterr().err
        if problem := what_is_wrong(code, said, " ".join(words)):
            bad[command] = f"{problem}: {said[-300:]}"
    assert len(bad) <= MOST_UNANSWERED, "\n".join(f"{command}: {problem}" for command, problem in bad.items())


def test_a_bad_answer_is_found() -> None:
    assert what_is_wrong(0, "", "x") == "exit code 0"
    assert what_is_wrong(2, "Traceback (most recent call last)", "x y") == "a traceback"
    assert what_is_wrong(2, "--top: Input should be", "x --top 0").startswith("words of the library")
    assert what_is_wrong(2, "a\n" * 9, "x y") == "9 lines"
    assert what_is_wrong(2, "ddlprof: no", "report nope") != ""
    assert what_is_wrong(2, "ddlprof: nope: there is no run", "report nope") == ""
