"""One grammar of commands, as docs/commands.md has it: where results go, formats, exit codes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from ddlprof.cli import parser
from ddlprof.cli.app import main
from ddlprof.cli.commands import commands as commands_and_groups
from tests.golden.runs import HERE, simple_run
from tests.unit.cli.commands import BERT, skip_without, write_workload
from tests.unit.test_interface import options_of

DOCS = Path(__file__).parents[3] / "docs/commands.md"
WORK = ["--budget", "30d", "--samples", "100000"]
SHOWN = {
    "report": ["report", "RUN"],
    "compare": ["compare", "RUN", "RUN"],
    "fleet": ["fleet", "runs"],
    "recommend": ["recommend", "bert.json", *WORK, "--instance", "g4dn.12xlarge"],
    "predict": ["predict", "bert.json", "--instance", "g4dn.12xlarge"],
    "features": ["features", "torch.nn:Identity"],
    "instances": ["instances", "--gpu", "A100"],
    "instances show": ["instances", "show", "p4d.24xlarge"],
    "instances measured": ["instances", "measured", "--instance", "p4d.24xlarge", "--fact", "flow_gbps=7"],
    "elastic": ["elastic", "--jobs", "jobs.json", "--gpus", "8"],
    "cluster import": ["cluster", "import", "csv", "trace.csv"],
    "cluster advise": ["cluster", "advise", "bert.json", "--gpus", "8", "--remaining", "9h"],
    "cluster simulate": ["cluster", "simulate", "--trace", "trace.csv", "--cluster", "2x4", "--policy", "fifo"],
    "doctor": ["doctor"],
}
"""What shows a result, in commands that take no minute; the others use the same module."""
SEVERAL_FILES = {"run", "import", "export", "characterize"}


def formats_in_docs() -> dict[str, list[str]]:
    """The formats of the commands, as the page has them."""
    rows = re.findall(r"^\| (`[^|]+) \| ([^|]+) \|$", DOCS.read_text(encoding="utf-8"), re.M)
    table = {
        name: re.sub(r" \([^)]*\)", "", told).split(", ")
        for names, told in rows
        for name in re.findall("`([a-z ]+)`", names)
    }
    return {name: formats for name, formats in table.items() if formats[0] == "table"}


FORMATS = formats_in_docs() | {"characterize": ["table", "json"]}
ENDINGS = {
    "markdown": "md",
    "table": "txt",
    "trace": "trace.json",
    "layouts": "layouts.csv",
    "waits": "waits.csv",
    "plan": "plan.json",
    "volcano": "yaml",
    "slurm": "sh",
    "kueue": "kueue.yaml",
    "kubernetes": "kubernetes.yaml",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("files")
    shutil.copytree(HERE / "two-ranks", here / "RUN")
    shutil.copytree(HERE / "two-ranks", here / "runs/RUN")
    write_workload(BERT, here / "bert.json")
    (here / "jobs.json").write_text(json.dumps([{"name": "a", "run": "bert.json", "batch": 48}]))
    (here / "trace.csv").write_text("job_id,submit_s,gpus,duration_s\na,0,1,100\nb,1,2,50\n")
    return here


@pytest.fixture
def typed(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Types a command where the files are; gives its exit code, stdout and stderr."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DDLPROF_CATALOG", str(tmp_path / "overlay"))
    monkeypatch.setattr("ddlprof.doctor.ask_torch", lambda: ({"torch": "2.13.0"}, ""))

    def call(*words: str) -> tuple[int, str, str]:
        skip_without(words[0])
        monkeypatch.setattr(sys, "argv", ["ddlprof", *words])
        return main(), *capsys.readouterr()

    return call


def commands() -> dict[str, Any]:
    """Every command that is no group, as typed."""
    found: dict[str, Any] = {}

    def add(group: Any, path: str) -> None:
        for name, command in group.commands.items():
            found[path + name] = command
            if hasattr(command, "commands"):
                add(command, f"{path}{name} ")

    add(typer.main.get_command(parser.app), "")
    found.pop("cluster", None)
    return found


def test_every_command_has_the_options_of_its_result() -> None:
    """`watch` and `share` show no result in formats, and `run` and `import` make directories."""
    options = {name: set(text.split()) for name, text in options_of(typer.main.get_command(parser.app))}
    for name in commands():
        if name != "watch":
            assert {"-o", "--out"} <= options[name], name
        assert ("--format" in options[name]) is (name not in ("watch", "share", "run", "import")), name
        assert not {"--output", "--csv", "--json", "--html", "--trace-out"} & options[name], name


def test_the_formats_are_those_of_the_page() -> None:
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|$", DOCS.read_text(encoding="utf-8").split("usual one")[1], re.M)
    told = {name: text for names, text in rows for name in re.findall(r"`([^`]+)`", names)}
    for name, formats in FORMATS.items():
        if name not in commands():
            continue  # of a room that was taken out
        found = [word for word in re.findall(r"[a-z]+", re.sub(r"\(.*?\)", "", told[name])) if word in formats]
        assert found == formats, name
        option = next(each for each in commands()[name].params if "--format" in each.opts)
        assert all(re.search(rf"\b{each}\b", option.help) for each in formats), name


@pytest.mark.parametrize("name", SHOWN)
def test_results_go_where_they_are_asked_to(name: str, typed: Callable[..., tuple[int, str, str]]) -> None:
    code, table, err = typed(*SHOWN[name])
    assert (code, bool(table), err) == (0, True, "")
    single = [each for each in FORMATS[name] if (name, each) != ("cluster simulate", "csv")]
    for number, format in enumerate(single):
        path = f"{number}.{ENDINGS.get(format, format)}"
        code, out, err = typed(*SHOWN[name], "-o", path)
        assert (code, out, err) == (0, "", f"ddlprof: wrote {path}\n")
        code, out, err = typed(*SHOWN[name], "-o", "other", "--format", format)
        assert (code, out, err) == (0, "", "ddlprof: wrote other\n")
        code, out, err = typed(*SHOWN[name], "--format", format)
        assert (code, err) == (0, "")
        assert (
            len(out.splitlines())
            == len(Path(path).read_text().splitlines())
            == len(Path("other").read_text().splitlines())
        )
        if format.endswith("json"):
            json.loads(out)
    words = [word for format in single for word in ("-o", f"x.{ENDINGS.get(format, format)}")]
    code, out, err = typed(*SHOWN[name], "-o", "-", *words)
    assert (code, len(out.splitlines())) == (0, len(table.splitlines()))
    assert err.splitlines() == [f"ddlprof: wrote {path}" for path in words[1::2]]


@pytest.mark.parametrize("name", SHOWN)
def test_what_cannot_be_written_is_told_in_one_line(name: str, typed: Callable[..., tuple[int, str, str]]) -> None:
    for words, says in (
        (["-o", "no/x.txt"], "there is no folder no"),
        (["-o", "x.pdf"], ".pdf tells no format here: add --format table"),
        (["--format", "pdf"], "unknown format 'pdf'; known: table"),
    ):
        code, out, err = typed(*SHOWN[name], *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert says in err


def test_a_folder_gets_the_format_of_several_files(typed: Callable[..., tuple[int, str, str]]) -> None:
    simulate = SHOWN["cluster simulate"]
    for words in (["-o", "out/"], ["-o", "out", "--format", "csv"]):
        assert typed(*simulate, *words) == (0, "", "ddlprof: wrote out\n")
        assert sorted(path.name for path in Path("out").iterdir()) == ["jobs.csv", "summary.csv", "use.csv"]
        shutil.rmtree("out")
    code, _, err = typed(*simulate, "--format", "csv")
    assert (code, "say into which folder, with -o DIR" in err) == (2, True)


def test_what_follows_a_script_belongs_to_it(typed: Callable[..., tuple[int, str, str]]) -> None:
    _, _, err = typed("sparsity", "gone.py", "--csv", "x")
    assert "cannot open gone.py" in err


@pytest.mark.parametrize("name", [name for name in commands_and_groups() if name not in ("cluster", "doctor")])
def test_usage_ends_with_two(name: str, typed: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = typed(name, "--no-such-option")
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    "words",
    [
        ["recommend", "bert.json", "--budget", "1s", "--samples", "1e9"],
        ["compare", "RUN", "slow", "--fail-on", "step=1%"],
        ["instances", "--gpu", "A100", "--max-price", "0"],
        ["doctor"],
    ],
    ids=lambda words: words[0],
)
def test_a_no_ends_with_one(
    words: list[str], typed: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    if words[0] == "compare":
        shutil.rmtree("RUN")
        simple_run(Path("RUN"), steps=40)
        simple_run(Path("slow"), steps=40, data_ms=30)
    monkeypatch.setattr("ddlprof.doctor.ask_torch", lambda: ({}, "No module named 'torch'"))
    assert typed(*words)[0] == 1


def test_a_bug_is_one_line_and_a_file(
    typed: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails() -> Any:
        raise ZeroDivisionError("of\nours")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("ddlprof.doctor.all_checks", fails)
    monkeypatch.setattr("ddlprof.cli.app._issues", lambda: " at https://example.org/issues")
    code, out, err = typed("doctor")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "ZeroDivisionError: of ours; this is a bug of ddlprof" in err
    assert "report it at https://example.org/issues: the traceback is in " in err
    assert 'raise ZeroDivisionError("of\\nours")' in Path(err.rpartition(" ")[2].strip()).read_text()


def test_the_exit_codes_are_on_the_page() -> None:
    codes = re.findall(r"^\| (\d+) \|", DOCS.read_text(encoding="utf-8"), re.M)
    assert codes == ["0", "1", "2", "3", "4", "130"]
