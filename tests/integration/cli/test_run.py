"""`ddlprof run SCRIPT` does what `python SCRIPT` does: output, exit code, traceback, surroundings of the script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.processes import Processes

Completed = subprocess.CompletedProcess[bytes]
Execute = Callable[..., Completed]

PROGRAMS: dict[str, str | bytes] = {
    "surroundings": "import os, sys\n"
    "print(sys.argv, sys.path, sys.orig_argv, __name__, __file__, __spec__, __package__, __doc__, os.getcwd())\n"
    "print(sorted(globals()), __builtins__, __loader__.path, sys.modules['__main__'].__dict__ is globals())",
    "environment": "import os\nfor name in ('DDLPROF_JOB', 'PYTHONPATH'):  # by which its children are found\n"
    "    os.environ.pop(name, None)\nprint(sorted(os.environ.items()))",
    "stdin": "import sys\nprint(sys.stdin.read()[::-1])",
    "own source": "import dataclasses, inspect\n@dataclasses.dataclass\nclass A:\n    x: int = 1\n"
    "print(A(), inspect.getsource(A))",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))) is A, A.__module__)",
    "no future of ours": "def f(x: int): pass\nprint(f.__annotations__)",
    "latin-1": "# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))".encode("latin-1"),
    "byte order mark": "\ufeffprint('\xe9')",
    "carriage returns": b"x = '''a\r\nb'''\r\nprint(repr(x))\r\n",
    "imports a neighbour": "import neighbour\nprint(neighbour.__file__)",
    "stderr": "import sys\nprint('to stderr', file=sys.stderr)",
    "warning": "import warnings\nwarnings.warn('careful')",
    "exit 0": "import sys\nsys.exit()",
    "exit 7": "import sys\nsys.exit(7)",
    "exit text": "import sys\nsys.exit('that is all')",
    "exit by os": "import os\nprint('x', flush=True)\nos._exit(5)",
    "exit in a thread": "import sys, threading\nt = threading.Thread(target=sys.exit, args=(3,)); t.start(); t.join()",
    "thread outlives main": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()",
    "exit handlers": "import atexit\natexit.register(print, 'bye')\natexit.register(int, 'x')",
    "exception": "def f():\n    raise ValueError('wrong')\nf()",
    "chained exception": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
    "exception in a context": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    undefined",
    "exception in an import": "import broken_neighbour",
    "syntax error": "x = 1\nif x\n    pass",
    "indentation error": "def f():\nreturn 1",
    "own hook": "import sys, traceback\n"
    "def hook(t, e, tb):\n    print('hook', t, e, traceback.extract_tb(tb), e.__traceback__ is tb, sys.exc_info())\n"
    "sys.excepthook = hook\n1 / 0",
    "hook that exits": "import sys\nsys.excepthook = lambda *_: sys.exit(9)\n1 / 0",
    "interrupt": "raise KeyboardInterrupt",
    "interrupt caught": "try:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    print('stopped')",
    "terminated": "import os, signal\nprint('x', flush=True)\nos.kill(os.getpid(), signal.SIGTERM)",
    "forked child": "import os, sys\npid = os.fork()\nif not pid:\n    sys.exit(4)\nprint(os.waitpid(pid, 0)[1] >> 8)",
    "spawned child": "import multiprocessing as m\nclass A: x = 2\ndef f(q, a): q.put((a.x, __name__))\n"
    "if __name__ == '__main__':\n    c = m.get_context('spawn'); q = c.Queue()\n"
    "    p = c.Process(target=f, args=(q, A())); p.start(); print(q.get()); p.join(); print(p.exitcode)",
    "forkserver child": "import multiprocessing as m\ndef f(x): return x + 1\n"
    "if __name__ == '__main__':\n    with m.get_context('forkserver').Pool(1) as p: print(p.map(f, [1, 2]))",
    "names like ours": "import recommender, launch, ddlprof\nprint(recommender.__file__, launch.__file__, ddlprof)",
}


ENDS_WELL = (
    "surroundings", "environment", "stdin", "own source", "pickle", "no future of ours", "imports a neighbour",
    "stderr", "warning", "exit in a thread", "interrupt caught", "names like ours",
)  # fmt: skip
"""Programs that are one where time is short."""
QUICK = (
    "latin-1", "exit 7", "thread outlives main", "exit handlers", "exception in an import", "syntax error", "own hook",
    "interrupt", "terminated", "forked child", "spawned child",
)  # fmt: skip
"""The others are much like one of these: tried where there is time."""


@pytest.fixture
def assert_same(execute: Execute) -> Callable[..., Completed]:
    """Runs the words after `python` both ways, compares, and returns what they have in common."""

    def compare(*words: str, options: tuple[str, ...] = ()) -> Completed:
        given: dict[str, Any] = {"stdin": b"some input\n", "cold": True}  # it is the start that is compared
        plain = execute(sys.executable, *options, *words, **given)
        profiled = execute(sys.executable, *options, "-m", "ddlprof", "run", "--quiet", *words, **given)
        assert profiled.stdout == plain.stdout
        assert profiled.stderr == plain.stderr
        assert profiled.returncode == plain.returncode
        return plain

    return compare


@pytest.mark.skipif(os.name == "nt", reason="compares POSIX processes")
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(ENDS_WELL, id="all that end well"),
        *(pytest.param([name], marks=() if name in QUICK else pytest.mark.slow, id=name) for name in PROGRAMS),
    ],
)
def test_same_as_python(names: list[str], assert_same: Callable[..., Completed], tmp_path: Path) -> None:
    sources = [PROGRAMS[name] for name in names]
    source = sources[0] if len(sources) == 1 else "\n".join(map(str, sources))
    (tmp_path / "script.py").write_bytes(source if isinstance(source, bytes) else source.encode())
    for neighbour in ("neighbour", "recommender", "launch"):
        (tmp_path / f"{neighbour}.py").touch()
    (tmp_path / "broken_neighbour.py").write_text("import neighbour\nneighbour.gone\n")
    assert_same("script.py", "--help", "-o", "x", "--", "y")


SHOW = (
    "import sys\nprint(sys.argv, sys.path, __file__, __name__, __package__, sorted(globals()))\n"
    "print(__spec__ and (__spec__.name, __spec__.origin))\n1 / 0\n"
)


@pytest.mark.parametrize(
    "words",
    [
        ["./package/../package/plain.py", "x"],
        ["package", "x"],
        ["archive.zip", "x"],
        ["-m", "package", "x"],
        ["-m", "no_such_module"],
        *(
            pytest.param(words, marks=pytest.mark.slow)
            for words in (
                ["link.py"],
                ["package/"],
                ["-m", "package.plain", "--help"],
                ["-m", "package.gone"],
                ["compiled.pyc"],
            )
        ),
    ],
    ids=" ".join,
)
def test_ways_to_name_a_program(words: list[str], assert_same: Callable[..., Completed], tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for name in ("plain.py", "__main__.py"):
        (package / name).write_text(SHOW)
    (tmp_path / "link.py").symlink_to("package/plain.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", SHOW)
    if words == ["compiled.pyc"]:
        import py_compile

        py_compile.compile(str(package / "plain.py"), str(tmp_path / "compiled.pyc"))
    assert assert_same(*words).returncode == 1


@pytest.mark.parametrize(
    "options",
    [["-u"], ["-O", "-W", "error"], pytest.param(["-X", "dev"], marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_interpreter_options(options: list[str], assert_same: Callable[..., Completed], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys\nprint(sys.flags, sys.warnoptions, sys._xoptions, sys.stdout.write_through, sys.orig_argv)\n"
    )
    assert assert_same("script.py", options=tuple(options)).returncode == 0


@pytest.mark.skipif(sys.version_info < (3, 11), reason="-P came with Python 3.11")
def test_safe_path(execute: Execute, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nprint(sys.path)\n")
    plain = execute(sys.executable, "-P", "script.py")
    assert execute(sys.executable, "-P", "-m", "ddlprof", "run", "--quiet", "script.py").stdout == plain.stdout


def test_a_folder_of_our_name_belongs_to_the_script(execute: Execute, tmp_path: Path) -> None:
    """Started as the installed command is: its own directory is first on sys.path, not the user's."""
    (tmp_path / "ddlprof").mkdir()
    (tmp_path / "ddlprof" / "__init__.py").write_text("theirs = 1\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ddlprof").write_text("import sys\nfrom ddlprof.cli.app import main\nsys.exit(main())\n")
    (tmp_path / "script.py").write_text("print('ran')\n")
    done = execute(sys.executable, "bin/ddlprof", "run", "--quiet", "script.py")
    assert (done.stdout, done.stderr, done.returncode) == (b"ran\n", b"", 0)


def test_disabled_leaves_nothing_behind(ddlprof: Execute, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import sys\nprint([m for m in sys.modules if m.startswith('ddlprof')])\n")
    done = ddlprof("run", "--out", "d", "script.py", DDLPROF_DISABLE="1")
    assert (done.stdout, done.stderr, done.returncode) == (b"[]\n", b"", 0)
    assert os.listdir(tmp_path) == ["script.py"]


def test_a_run_writes_its_directory_and_prints_the_card(
    ddlprof: Execute, write_training: Callable[..., str], tmp_path: Path
) -> None:
    done = ddlprof("run", write_training(60), cold=True)  # a start as users have it
    assert done.returncode == 0
    assert done.stdout.startswith(b"trained 60 ")
    [run] = (tmp_path / "ddlprof-runs").iterdir()
    assert run.name.startswith("train-")
    assert f"ddlprof-runs/{run.name}" in done.stderr.decode()
    assert json.loads((run / "manifest.json").read_text())["name"] == "train"


def test_quiet_prints_nothing(ddlprof: Execute, write_training: Callable[..., str], tmp_path: Path) -> None:
    done = ddlprof("run", "--quiet", "--out", "d", write_training(5))
    assert (done.stderr, done.returncode) == (b"", 0)
    assert done.stdout.startswith(b"trained 5 ")
    assert (tmp_path / "d" / "manifest.json").exists()


FORMS = {
    "launcher of ours": ["-m", "ddlprof", "run", "--out", "d", "--nproc-per-node", "2", "train.py"],
    "torchrun around": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ddlprof", "run",
                        "--out", "d", "train.py"],
    "torchrun rewritten": ["-m", "ddlprof", "run", "--out", "d", "--", "torchrun", "--standalone",
                           "--nproc-per-node", "2", "train.py"],
    "module of torchrun": ["-m", "ddlprof", "run", "--out", "d", "--", "python", "-m", "torch.distributed.run",
                           "--nproc-per-node=2", "-m", "train"],
}  # fmt: skip


@pytest.mark.dist
@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=() if form == "launcher of ours" else pytest.mark.slow) for form in FORMS],
)
def test_two_ranks(form: str, execute: Execute, write_training: Callable[..., str], tmp_path: Path) -> None:
    write_training(40)
    done = execute(sys.executable, *FORMS[form], "--distributed", cold=True)  # a start as users have it
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0] == lines[1]
    assert lines[0].startswith(b"trained 40 ")
    assert done.stderr.count(b"Files ") == 1  # one card
    assert {p.name for p in (tmp_path / "d" / "attempt-0").glob("*.jsonl")} == {"rank-0.jsonl", "rank-1.jsonl"}


@pytest.mark.dist
def test_launched_and_disabled(execute: Execute, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import os, sys\nos.write(1, f\"{os.environ['RANK']} {sys.argv}\\n\".encode())\n"  # as one piece
    )
    done = execute(
        sys.executable, "-m", "ddlprof", "run", "--nproc-per-node", "2", "script.py", "--", "x", DDLPROF_DISABLE="1"
    )
    assert sorted(done.stdout.splitlines()) == [f"{rank} ['script.py', '--', 'x']".encode() for rank in (0, 1)]
    assert os.listdir(tmp_path) == ["script.py"]


@pytest.mark.dist
def test_a_failing_rank_fails_the_job(execute: Execute, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import os, sys\nsys.exit(int(os.environ['RANK']) * 7)\n")
    words = ["--nproc-per-node", "2", "script.py"]
    plain = execute(sys.executable, "-m", "torch.distributed.run", *words)
    profiled = execute(sys.executable, "-m", "ddlprof", "run", "--quiet", *words)
    assert profiled.returncode == plain.returncode == 1
    assert b"exitcode  : 7" in profiled.stderr
    assert b"ddlprof/launch/torchrun.py" not in profiled.stderr


def test_help_and_version(ddlprof: Execute) -> None:
    from ddlprof import __version__

    assert ddlprof("--version").stdout.decode() == f"ddlprof {__version__}\n"
    for words in ([], ["--help"]):
        done = ddlprof(*words, cold=True)  # a start as users have it
        assert done.returncode == 0
        for command in (b"run", b"report", b"export", b"doctor"):
            assert command in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="POSIX pipes")
def test_a_reader_that_leaves_is_no_error(processes: Processes) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = processes.run(sys.executable, "-m", "ddlprof", "--help", stdout=writer)
    os.close(writer)
    assert done.stderr == b""


def test_card_is_read_by_the_package_that_ran(execute: Execute, tmp_path: Path) -> None:
    """`__main__.py` by its path, with a folder of the user's in the way."""
    import ddlprof

    (tmp_path / "ddlprof").mkdir()
    done = execute(sys.executable, str(Path(ddlprof.__file__).with_name("__main__.py")), "--version")
    assert done.stdout.startswith(b"ddlprof ")


def test_the_scripts_own_modules_are_found_before_the_standard_librarys(ddlprof: Execute, tmp_path: Path) -> None:
    """What we import and torch does not must not stand in their way."""
    names = ("statistics", "fractions", "decimal")
    folder = tmp_path / "project"  # not where we are: `python -m` looks there, too
    folder.mkdir()
    for name in names:
        (folder / f"{name}.py").write_text("mine = True\n")
    imports = "".join(f"import {name}; assert {name}.mine\n" for name in names)
    (folder / "train.py").write_text(f"import torch\n{imports}print('trained')\n")
    done = ddlprof("run", "--quiet", "--out", "run", "project/train.py", cold=True)
    assert (done.returncode, done.stdout) == (0, b"trained\n"), done.stderr.decode()
