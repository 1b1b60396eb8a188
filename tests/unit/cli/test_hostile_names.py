"""Names that hold line ends, escape sequences and formulas, through every command.

No output holds a character that nobody sees, but the line ends that we wrote: as many as with harmless names of the
same length.
"""

from __future__ import annotations

import csv
import functools
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddlprof.base.text import plain
from ddlprof.cli.app import main
from ddlprof.emit.engines import ENGINES
from ddlprof.instance_catalog.refresh.report import Contradiction, Move, RefreshOutcome, RefreshReport
from ddlprof.model.checks import Check
from ddlprof.model.manifest import ModelFacts
from ddlprof.model.operators import Operator, StepMemory, StepOperators
from ddlprof.recommender.target import default_catalog
from ddlprof.report import doctor, features
from ddlprof.report.machines import changes
from tests.unit.cli.commands import skip_without
from tests.unit.cli.hostile import NAME, paths_of, write_files
from tests.unit.report.html.test_element import Read

HARMLESS = plain(NAME).replace("\\", "%")
WORK = ["--budget", "30d", "--samples", "100000"]
SPREAD = ["--gpus", "8", "--gpus-per-node", "4", "--between-racks-gbps", "9", "--remaining", "9h"]
SHAPE = ["--cluster", "2x4", "--policy", "fifo,srtf"]
COMMANDS = {
    "report": ["report", "RUN"],
    "report as a page": ["report", "RUN", "--format", "html"],
    "report at a price": ["report", "RUN", "--format", "html", "--instance", "NAME"],
    "report at no price": ["report", "RUN", "--format", "html", "--instance", "xNAME"],
    "report of a bad format": ["report", "RUN", "--format", "NAME"],
    "report as a trace": ["report", "RUN", "--format", "trace"],
    "report into a folder": ["report", "RUN", "-o", "NAME/NAME"],
    "report of nothing": ["report", "NAME"],
    "export": ["export", "RUN", "--out", "OUT-NAME"],
    "watch": ["watch", "RUN", "--interval", "0.1"],
    "watch once": ["watch", "RUN", "--once"],
    "watch nothing": ["watch", "NAME"],
    "export as parquet": ["export", "RUN", "--format", "parquet", "--out", "OUT-NAME"],
    "fleet": ["fleet", "."],
    "fleet of nothing": ["fleet", "NAME"],
    "fleet of a machine": ["fleet", ".", "--instance", "NAME"],
    "fleet of an unknown machine": ["fleet", ".", "--instance", "xNAME"],
    "fleet in a wrong order": ["fleet", ".", "--sort", "NAME"],
    "compare": ["compare", "RUN", "PLAIN"],
    "compare as Markdown": ["compare", "PLAIN", "RUN", "--format", "markdown"],
    "compare as a page": ["compare", "PLAIN", "RUN", "--format", "html"],
    "compare with nothing": ["compare", "RUN", "NAME"],
    "compare with a bad gate": ["compare", "RUN", "RUN", "--fail-on", "NAME=5%"],
    "compare with a bad limit": ["compare", "RUN", "RUN", "--fail-on", "step=NAME"],
    "compare with bad noise": ["compare", "RUN", "RUN", "--noise", "NAME"],
    "compare in a bad format": ["compare", "RUN", "RUN", "--format", "NAME"],
    "share": ["share", "RUN", "-o", "NAME.zip"],
    "share with a bad ending": ["share", "RUN", "-o", "NAME"],
    "look at what is shared": ["share", "--inspect", "SHARED"],
    "look at no archive": ["share", "--inspect", "NAME"],
    "report of what is shared": ["report", "SHARED"],
    "recommend": ["recommend", "RUN", *WORK],
    "recommend a machine": ["recommend", "JOB", *WORK, "--instance", "NAME", "--emit", "skypilot"],
    "recommend an unknown machine": ["recommend", "JOB", *WORK, "--instance", "xNAME"],
    "recommend a region": ["recommend", "JOB", *WORK, "--region", "NAME"],
    "recommend a time": ["recommend", "JOB", "--samples", "1", "--budget", "NAME"],
    "recommend into an engine's file": [
        "recommend",
        "JOB",
        *WORK,
        "--instance",
        "NAME",
        "--emit",
        "torchrun",
        "-o",
        "OUT-NAME",
    ],
    "recommend an engine": ["recommend", "JOB", *WORK, "--emit", "NAME"],
    "recommend nothing": ["recommend", "NAME", *WORK],
    "recommend into a folder": ["recommend", "JOB", *WORK, "-o", "NAME/NAME"],
    "predict": ["predict", "JOB", "--instance", "NAME", "--placement", "4"],
    "predict a placement": ["predict", "JOB", "--instance", "NAME", "--placement", "NAME"],
    "predict side by side": ["predict", "JOB", "--instance", "NAME,g5.xlarge", "--optimizer", "adam"],
    "predict a gpu": ["predict", "JOB", "--gpu", "NAME"],
    "predict a precision": ["predict", "JOB", "--gpu", "A100", "--precision", "NAME"],
    "plan": ["plan", "JOB", "--machines", "CLUSTER", "-o", "t.trace.json", "-o", "j.json", "-o", "p.plan.json"],
    "plan on no cluster": ["plan", "JOB", "--machines", "NAME"],
    "recommend at your own prices": ["recommend", "JOB", *WORK, "--prices", "PRICES", "--optimizer", "adam"],
    "recommend at no prices": ["recommend", "JOB", *WORK, "--prices", "NAME"],
    "recommend at a discount": ["recommend", "JOB", *WORK, "--discount", "NAME=10%"],
    "recommend at a wrong discount": ["recommend", "JOB", *WORK, "--discount", "NAME"],
    "elastic": ["elastic", "--jobs", "JOBS", "--gpus", "3", "--simulate"],
    "elastic with a job that waits": ["elastic", "--jobs", "JOBS", "--gpus", "1"],
    "elastic in a bad format": ["elastic", "--jobs", "JOBS", "--gpus", "1", "--format", "NAME"],
    "elastic of nothing": ["elastic", "--jobs", "NAME", "--gpus", "1"],
    "elastic on a machine": ["elastic", "--jobs", "JOBS", "--gpus", "1", "--instance", "xNAME"],
    "elastic of no noise": ["elastic", "--jobs", "JOBS", "--gpus", "1", "--stat-eff"],
    "elastic of no jobs": ["elastic", "--jobs", "JOB", "--gpus", "1"],
    "import": ["import", "TRACE", "--out", "OUT-NAME"],
    "import twice": ["import", "TRACE", "TRACE", "--out", "OUT-NAME"],
    "import of no trace": ["import", "JOB", "--out", "OUT-NAME"],
    "import of nothing": ["import", "NAME", "--out", "OUT-NAME"],
    "import into a run": ["import", "TRACE", "--out", "RUN"],
    "report of an import": ["report", "IMPORTED"],
    "export of an import": ["export", "IMPORTED", "--out", "OUT-NAME"],
    "probe": ["probe", "--add", "PROBE"],
    "probe a file that is none": ["probe", "--add", "JOB"],
    "probe a machine": ["probe", "--add", "PROBE", "--instance", "xNAME"],
    "features": ["features", "NAME:NAME"],
    "features of no module": ["features", "NAME"],
    "features of a shape": ["features", "torch.nn:Linear", "--input", "NAME"],
    "advise": ["cluster", "advise", "JOB", "--instance", "NAME", "--gpus", "8", "--between-racks-gbps", "9"],
    "advise json": ["cluster", "advise", "JOB", *SPREAD, "--format", "json"],
    "advise slurm": ["cluster", "advise", "JOB", *SPREAD, "--format", "slurm"],
    "advise volcano": ["cluster", "advise", "JOB", *SPREAD, "--format", "volcano"],
    "advise kueue": ["cluster", "advise", "JOB", *SPREAD, "--format", "kueue"],
    "advise kubernetes": ["cluster", "advise", "JOB", *SPREAD, "--format", "kubernetes"],
    "advise an engine": ["cluster", "advise", "JOB", *SPREAD, "--format", "NAME"],
    "advise without a run": ["cluster", "advise", "NAME"],
    "advise of no history": ["cluster", "advise", "JOB", *SPREAD, "--history", "NAME"],
    "advise of a wrong history": ["cluster", "advise", "JOB", *SPREAD, "--history", "PRICES"],
    "advise an unknown machine": ["cluster", "advise", "JOB", "--instance", "xNAME"],
    "advise into a folder": ["cluster", "advise", "JOB", *SPREAD, "-o", "NAME/NAME"],
    "simulate": ["cluster", "simulate", "--trace", "TRAFFIC", *SHAPE],
    "simulate an unknown trace": ["cluster", "simulate", "--trace", "TRAFFIC:xNAME", *SHAPE],
    "simulate a job that is too large": ["cluster", "simulate", "--trace", "TRAFFIC", *SHAPE, "--cluster", "1x1"],
    "simulate an unknown policy": ["cluster", "simulate", "--trace", "TRAFFIC", *SHAPE, "--policy", "NAME"],
    "simulate a parameter": ["cluster", "simulate", "--trace", "TRAFFIC", *SHAPE, "--policy", "fifo;NAME=NAME"],
    "simulate on a gpu": ["cluster", "simulate", "--trace", "TRAFFIC", *SHAPE, "--cluster", "2x4:NAME"],
    "simulate into a folder": ["cluster", "simulate", "--trace", "TRAFFIC", *SHAPE, "-o", "NAME/NAME"],
    "fuse": ["fuse", "NAME:NAME", "--data", "NAME:NAME", "--sweep", "lr=1,2"],
    "fuse a sweep that is none": ["fuse", "NAME:NAME", "--data", "NAME:NAME", "--sweep", "NAME"],
    "fuse an unknown parameter": [
        "fuse",
        "torch.nn:Identity",
        "--data",
        "torch:zeros",
        "--sweep",
        "NAME=1,2",
        "--sweep",
        "lr=NAME",
    ],
    "fuse with a loss": ["fuse", "torch.nn:Identity", "--data", "torch:zeros", "--sweep", "lr=1,2", "--loss", "NAME"],
    "instances": ["instances"],
    "instances of a region": ["instances", "--region", "NAME"],
    "instances of a gpu": ["instances", "--gpu", "NAME"],
    "show": ["instances", "show", "NAME"],
    "show an unknown machine": ["instances", "show", "xNAME"],
    "measured": ["instances", "measured", "--instance", "NAME", "--fact", "flow_gbps=7"],
    "measured json": ["instances", "measured", "--instance", "NAME", "--fact", "flow_gbps=7", "--format", "json"],
    "measured by a run": ["instances", "measured", "RUN", "--instance", "NAME"],
    "a wrong fact": ["instances", "measured", "--instance", "NAME", "--fact", "NAME"],
    "run": ["run", "NAME.py"],
    "run with an option": ["run", "--nnodes", "NAME", "x.py"],
    "characterize": ["characterize", "NAME.py"],
    "characterize without an experiment": ["characterize", "--skip", "NAME", "RUN"],
    "sparsity": ["sparsity", "NAME.py"],
    "sparsity into a folder": ["sparsity", "-o", "NAME/NAME", "x.py"],
    "an unknown command": ["NAME"],
    "an unknown option": ["report", "--NAME"],
}


@pytest.fixture(scope="module")
def folder_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with the files in which this is the name; to be copied."""

    @functools.cache
    def make(name: str) -> Path:
        here = tmp_path_factory.mktemp("files")
        write_files(here, name)
        return here

    return make


@pytest.fixture
def outputs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder_with: Callable[[str], Path],
) -> Callable[[list[str], str], tuple[int, str, str, Path]]:
    """Exit code, stdout and stderr of a command in which NAME is a name, and the folder it wrote into."""

    def run(words: list[str], name: str) -> tuple[int, str, str, Path]:
        skip_without(words[0])
        here = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(folder_with(name), here)
        monkeypatch.chdir(here)
        monkeypatch.setenv("DDLPROF_CATALOG", str(here / "overlay"))
        paths = paths_of(name)
        words = [word.replace("TRAFFIC:", f"{paths['TRAFFIC']}:") for word in words]
        typed = [paths.get(word, word.replace("NAME", name)) for word in words]
        monkeypatch.setattr(sys, "argv", ["ddlprof", *typed])
        default_catalog.cache_clear()
        capsys.readouterr()
        code = main()
        return code, *capsys.readouterr(), here

    return run


def unseen(text: str) -> set[str]:
    return {character for character in set(text) - {"\n"} if plain(character) != character}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_no_name_forges_a_line_or_reaches_the_terminal(
    words: list[str], outputs: Callable[[list[str], str], tuple[int, str, str, Path]]
) -> None:
    code, out, err, _ = outputs(words, NAME)
    code_harmless, out_harmless, err_harmless, _ = outputs(words, HARMLESS)
    assert code == code_harmless
    assert not unseen(out + err)
    assert (out + err).strip()
    assert (out.count("\n"), err.count("\n")) == (out_harmless.count("\n"), err_harmless.count("\n"))
    if code == 2:
        assert err.count("\n") == 1


@pytest.mark.parametrize("engine", sorted(ENGINES.keys() - {"sagemaker"}))  # it has no machine of that name
def test_the_files_that_start_a_plan(
    engine: str, outputs: Callable[[list[str], str], tuple[int, str, str, Path]]
) -> None:
    tasks = []
    for name in (NAME, HARMLESS):
        code, _, err, here = outputs(["recommend", "JOB", *WORK, "--instance", "NAME", "--emit", engine], name)
        assert code == 0, err
        tasks += [path.read_text(encoding="utf-8") for path in here.glob(f"*.{ENGINES[engine].ending}")]
    hostile, harmless = tasks
    assert not unseen(hostile)
    assert hostile.count("\n") == harmless.count("\n")


@pytest.mark.parametrize(
    "words",
    [
        ["report", "RUN", "--format", "html", "-o", "out.html"],
        ["recommend", "JOB", *WORK, "-o", "out.html"],
        ["compare", "PLAIN", "RUN", "-o", "out.html"],
        ["cluster", "simulate", "--trace", "TRAFFIC", *SHAPE, "-o", "out.html"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("markup", ["<script>alert(1)</script>\"' onload='x", NAME])
def test_pages_have_names_as_text(
    words: list[str], markup: str, outputs: Callable[[list[str], str], tuple[int, str, str, Path]]
) -> None:
    """As many elements and attributes, of the same kinds, as with a harmless name."""
    name = markup.replace("/", "\u2215")[:180]  # names of folders
    read = []
    for each in (name, "y" * len(plain(name))):
        code, _, _, here = outputs(words, each)
        assert code == 0
        text = (here / "out.html").read_text(encoding="utf-8")
        assert not unseen(text)
        read.append(Read(re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)))
    hostile, harmless = read
    assert [(tag, sorted(found)) for tag, found in hostile.tags] == [
        (tag, sorted(found)) for tag, found in harmless.tags
    ]
    assert plain(name) in hostile.text


@pytest.mark.parametrize(
    "words",
    [
        ["report", "RUN", "--format", "json"],
        ["fleet", ".", "--format", "json"],
        ["compare", "RUN", "PLAIN", "--format", "json"],
        ["instances", "--format", "json"],
        ["instances", "show", "NAME", "--format", "json"],
        ["predict", "JOB", "--instance", "NAME", "--placement", "4", "-o", "out.json"],
        ["recommend", "JOB", *WORK, "-o", "out.json"],
        ["cluster", "simulate", "--trace", "TRAFFIC", *SHAPE, "-o", "out.json"],
        ["elastic", "--jobs", "JOBS", "--gpus", "3", "--format", "json"],
    ],
    ids=" ".join,
)
def test_json_has_the_names_as_they_are(
    words: list[str], outputs: Callable[[list[str], str], tuple[int, str, str, Path]]
) -> None:
    code, out, _, here = outputs(words, NAME)
    assert code == 0
    text = (here / "out.json").read_text(encoding="utf-8") if "out.json" in words else out
    assert not unseen(text)
    assert any(NAME in found for found in _strings(json.loads(text)))


def _strings(value: object) -> set[str]:
    if isinstance(value, dict):
        return _strings(list(value.values()))
    if isinstance(value, list):
        return set().union(*map(_strings, value))
    return {value} if isinstance(value, str) else set()


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["export", "RUN", "--out", "csv"], ["csv/ranks.csv", "csv/steps.csv", "csv/summary.csv"]),
        (["recommend", "JOB", *WORK, "-o", "plans.csv"], ["plans.csv"]),
        (["instances", "--format", "csv", "-o", "list.csv"], ["list.csv"]),
        (["cluster", "simulate", "--trace", "TRAFFIC", *SHAPE, "-o", "csv/"], ["csv/jobs.csv"]),
        (["elastic", "--jobs", "JOBS", "--gpus", "3", "-o", "shares.csv"], ["shares.csv"]),
    ],
    ids=lambda value: value[0],
)
def test_csv_has_one_line_a_row_and_no_formulas(
    words: list[str], files: list[str], outputs: Callable[[list[str], str], tuple[int, str, str, Path]]
) -> None:
    code, _, _, here = outputs(words, NAME)
    assert code == 0
    cells: list[str] = []
    for file in files:
        text = (here / file).read_text(encoding="utf-8")
        assert not unseen(text)
        rows = list(csv.reader(text.splitlines()))
        assert len({len(row) for row in rows}) == 1
        cells += [cell for row in rows for cell in row]
    assert any(plain(NAME) in cell for cell in cells)
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r")) and not _is_number(cell)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def shows_names(render: Callable[[str], str]) -> None:
    """What `render` makes of a name forges no line of text and hides nothing."""
    hostile, harmless = render(NAME), render(HARMLESS)
    assert not unseen(hostile)
    assert plain(NAME) in hostile
    assert hostile.count("\n") == harmless.count("\n")


def test_pages_that_need_more_than_a_command_here() -> None:
    """Of a refresh, of a model and of a machine's doctor."""
    for render in (_changes, _features, _checks):
        shows_names(render)


def _changes(name: str) -> str:
    contradiction = Contradiction(name, name, name, name, name, name)
    move = Move(name, name, name, 3.0, 1.0)
    by_region = RefreshReport((RefreshOutcome(name, name, 1, name),), (contradiction,), (Path(name),))
    by_cloud = RefreshReport((RefreshOutcome(name, name, 1, name, name),), (), (), (move,), (name,), (name,))
    return changes.refreshed(by_region) + changes.refreshed(by_cloud)


def _features(name: str) -> str:
    return features.as_table(ModelFacts(name), _step(name), [name])


def _step(name: str) -> StepOperators:
    operator = Operator(name, "forward", name, name, (1,), 1.0, 1.0, 1.0, 1.0)
    return StepOperators(1, name, (operator,), optimizer=name, memory=StepMemory(parameter_bytes=1.0))


def _checks(name: str) -> str:
    return doctor.as_table([Check(name, name, name)])
