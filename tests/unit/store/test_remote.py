"""Run directories behind URLs: read like local ones, never written to, and one line where they cannot be read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import numpy as np
import pytest

from ddlprof.analysis.run import analyse
from ddlprof.model.errors import UserError
from ddlprof.report.run import card
from ddlprof.report.run.data import build_report
from ddlprof.store import folder, load_run
from tests.golden.runs import HERE, NOW_UNIX_NS, header, manifest, step, write_rank

GOLDEN = HERE / "two-ranks"


def card_of(*paths: str | Path) -> str:
    run = load_run(paths)
    return card.render(build_report(run, analyse(run), NOW_UNIX_NS))


def body(text: str) -> str:
    return text[: text.index("Files ")]


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    pytest.importorskip("s3fs", reason="needs s3fs: pip install 'ddlprof[remote]'")
    server_module = pytest.importorskip("moto.server", reason="needs moto: pip install 'moto[server]'")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> fsspec.AbstractFileSystem:
    """A bucket on a real server, found as a user's would be: by the environment."""
    for name, value in {
        "AWS_ENDPOINT_URL": s3_endpoint, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "1", "NO_PROXY": urlsplit(s3_endpoint).hostname or "",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    system = fsspec.filesystem("s3")
    if not system.exists("runs"):
        system.mkdir("runs")
    return system


def test_a_run_in_memory_reads_like_a_local_one(memory: fsspec.AbstractFileSystem) -> None:
    memory.put(str(GOLDEN), "/runs/two-ranks", recursive=True)
    before = dict(memory.store)
    text = card_of("memory://runs/two-ranks")
    assert body(text) == body(card_of(GOLDEN))
    assert "memory://runs/two-ranks    next: ddlprof export memory://runs/two-ranks " in text
    assert memory.store == before


def test_a_file_url() -> None:
    assert body(card_of(GOLDEN.as_uri())) == body(card_of(GOLDEN))


def test_a_run_in_a_bucket(s3: fsspec.AbstractFileSystem) -> None:
    s3.put(str(GOLDEN), "runs/two-ranks", recursive=True)
    before = s3.find("runs", detail=True)
    assert body(card_of("s3://runs/two-ranks")) == body(card_of(GOLDEN))
    assert s3.find("runs", detail=True) == before


def test_what_is_not_in_a_bucket_is_one_line(s3: fsspec.AbstractFileSystem) -> None:
    for url in ("s3://runs/nothing", "s3://no-such-bucket/run"):
        with pytest.raises(UserError, match=rf"^{url}: [^\n]+$"):
            load_run(url)


def test_an_unreachable_store_is_one_line(s3: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    with pytest.raises(UserError, match=r"^s3://runs/two-ranks: cannot be read: [^\n]+$"):
        load_run("s3://runs/two-ranks")


def test_more_files_than_are_fetched_together(
    memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_FETCHED_TOGETHER", 3)
    for rank in range(5):
        write_rank(tmp_path, header(rank, 5), [step(n) for n in range(rank + 1)])
    (tmp_path / "attempt-0" / "rank-2.collectives").unlink()
    memory.put(str(tmp_path), "/run", recursive=True)
    calls: list[tuple[int, int]] = []
    run = load_run("memory://run", lambda done, total: calls.append((done, total)))
    assert [len(rank.steps) for rank in run.ranks] == [1, 2, 3, 4, 5]
    assert calls[-1][0] == calls[-1][1] > 0


def test_parts_here_and_there(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    for rank, part in enumerate(("here", "there")):
        write_rank(tmp_path / part, header(rank, 2), [step(n) for n in range(5)])
    manifest(2).write(tmp_path / "here")
    memory.put(str(tmp_path / "there"), "/there", recursive=True)
    run = load_run([tmp_path / "here", "memory://there"])
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert all(np.array_equal(rank.steps["step"], np.arange(5)) for rank in run.ranks)


def test_nothing_behind_a_url_is_one_line(memory: fsspec.AbstractFileSystem) -> None:
    with pytest.raises(UserError, match=r"^memory://nowhere: no run there \(neither manifest.json nor"):
        load_run("memory://nowhere")
    with pytest.raises(UserError, match=r"^quux://a/b: cannot be read: Protocol not known: quux$"):
        load_run("quux://a/b")


@pytest.mark.parametrize(
    ("hidden", "message"),
    [
        ("fsspec", "s3://b/run: reading URLs needs fsspec: pip install 'ddlprof[remote]'"),
        ("s3fs", "s3://b/run: Install s3fs to access S3: pip install 'ddlprof[remote]'"),
    ],
)
def test_a_missing_package_is_named_with_the_command(hidden: str, message: str) -> None:
    code = "import sys; sys.modules[sys.argv[1]] = None; from ddlprof.cli.app import main; " \
        "sys.argv = ['ddlprof', 'report', 's3://b/run']; sys.exit(main())"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code, hidden], capture_output=True, text=True, cwd=HERE.parents[1])
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"ddlprof: {message}\n")


def test_local_paths_need_no_fsspec() -> None:
    code = "import sys; sys.modules['fsspec'] = None; from ddlprof.store import load_run; load_run(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(GOLDEN)], check=True, cwd=HERE.parents[1])
