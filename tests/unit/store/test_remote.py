"""Run directories behind URLs: read like local ones, never written to, and one line where they cannot be read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import fsspec
import numpy as np
import pytest

from ddlprof.analysis.run import analyse
from ddlprof.base.errors import UserError
from ddlprof.report.fleet.data import entries_of
from ddlprof.report.run import text as card
from ddlprof.report.run.data import build_report
from ddlprof.report.run.summary import summarise_run
from ddlprof.store import folder, load_run, object_store
from ddlprof.store.fleet import search
from tests.aws_account import sign_in
from tests.golden.runs import HERE, NOW_UNIX_NS, header, manifest, step, write_rank

GOLDEN = HERE / "two-ranks"


def card_of(*paths: str | Path) -> str:
    run = load_run(paths)
    return card.render(build_report(run, analyse(run), NOW_UNIX_NS))


def body(text: str) -> str:
    return text[: text.index("Files ")]


def ddlprof(*words: str, hidden: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with a package that cannot be imported."""
    code = "import sys; sys.modules[sys.argv.pop(1)] = None; from ddlprof.cli.app import main; sys.exit(main())"
    command = [sys.executable, "-c", code, hidden, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=HERE.parents[1], check=False)


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A client of a real server with a bucket, found as a user's would be: by the environment."""
    pytest.importorskip("obstore.fsspec", reason="needs obstore: pip install 'ddlprof[remote]'")
    no_proxy = urlsplit(s3_endpoint).hostname or ""
    sign_in(monkeypatch, tmp_path, AWS_ENDPOINT_URL=s3_endpoint, AWS_DEFAULT_REGION="us-east-1", NO_PROXY=no_proxy)
    client = boto3.client("s3")
    client.create_bucket(Bucket="runs")
    return client


def upload(s3: Any, run: Path, prefix: str) -> None:
    for path in run.rglob("*"):
        if path.is_file():
            key = f"{prefix}/{path.relative_to(run).as_posix()}"
            s3.put_object(Bucket="runs", Key=key, Body=path.read_bytes(), ACL="public-read")


def stored(s3: Any) -> dict[str, str]:
    return {item["Key"]: item["ETag"] for item in s3.list_objects_v2(Bucket="runs")["Contents"]}


def test_a_file_url() -> None:
    assert body(card_of(GOLDEN.as_uri())) == body(card_of(GOLDEN))


def test_the_command_reads_a_bucket(s3: Any) -> None:
    upload(s3, GOLDEN, "two-ranks")
    done = ddlprof("report", "s3://runs/two-ranks")
    assert (done.returncode, done.stderr) == (0, "")
    assert "s3://runs/two-ranks    next: ddlprof report s3://runs/two-ranks " in done.stdout


def test_the_runs_of_a_bucket(s3: Any, tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        directory = tmp_path / "runs" / name
        write_rank(directory, header(), [step(n) for n in range(40)])
        replace(manifest(), job_id=name).write(directory)
    data = load_run(directory)
    attempts = analyse(data)
    summarise_run(data, attempts, build_report(data, attempts, NOW_UNIX_NS)).write(directory)
    (tmp_path / "runs" / "other.txt").write_text("no run")
    upload(s3, tmp_path / "runs", "fleet/runs")
    before = stored(s3)
    found = search("s3://runs/fleet")
    for most, sources in ((0, ["glance", "saved"]), (9, ["loaded", "saved"])):
        entries = entries_of(found, most, NOW_UNIX_NS)
        assert [(entry.path, entry.source) for entry in entries.entries] == list(
            zip(["s3://runs/fleet/runs/a", "s3://runs/fleet/runs/b/c"], sources, strict=True)
        )
        assert not entries.left_out
    s3.delete_object(Bucket="runs", Key="fleet/runs/b/c/summary.json")  # while the list is made
    assert [entry.source for entry in entries_of(found, 0, NOW_UNIX_NS).entries] == ["glance", "glance"]
    s3.put_object(Bucket="runs", Key="fleet/runs/b/c/summary.json", Body=(directory / "summary.json").read_bytes())
    assert stored(s3).keys() == before.keys()


def test_a_profile_says_who_reads(s3: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    upload(s3, GOLDEN, "two-ranks")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_PROFILE", "lab")
    with pytest.raises(UserError, match=r"^s3://runs/two-ranks: cannot be read: The config profile \(lab\)[^\n]+$"):
        load_run("s3://runs/two-ranks")
    (tmp_path / "aws-config").write_text("[profile lab]\nregion = eu-central-1\naws_access_key_id = a\n"
                                     "aws_secret_access_key = b\n")  # fmt: skip
    assert len(load_run("s3://runs/two-ranks").ranks) == 2


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "s3://runs/nothing",
            "no run there (neither manifest.json nor attempt-*/rank-*.jsonl)",
        ),
        ("s3://no-such-bucket/run", "cannot be read: The specified bucket does not exist (NoSuchBucket)"),
    ],
)
def test_what_is_not_in_a_bucket_is_one_line(s3: Any, url: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        load_run(url)
    assert str(refused.value).partition("; make one")[0] == f"{url}: {message}"


def test_a_file_that_goes_away_while_it_is_read_is_one_line(s3: Any) -> None:
    upload(s3, GOLDEN, "going")
    remote = folder.open_folder("s3://runs/going")
    names = sorted(remote.files())
    s3.delete_object(Bucket="runs", Key=f"going/{names[0]}")
    with pytest.raises(UserError) as refused:
        list(remote.contents(names))
    assert str(refused.value) == "s3://runs/going: cannot be read: The specified key does not exist (NoSuchKey)"


def test_an_unreachable_store_is_one_line(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setitem(object_store._RETRIES, "max_retries", 0)
    with pytest.raises(UserError, match=r"^s3://runs/two-ranks: cannot be read: http://127.0.0.1:9: [^\n]+$"):
        load_run("s3://runs/two-ranks")


def test_no_credentials_are_one_line(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(s3, GOLDEN, "two-ranks")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match=r"^s3://runs/two-ranks: cannot be read: no AWS credentials were found: set "):
        load_run("s3://runs/two-ranks")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert len(load_run("s3://runs/two-ranks").ranks) == 2


def test_a_denial_is_what_the_store_says() -> None:
    answer = "<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>\n\nDebug source:\nGeneric {"
    text = f"Generic S3 error: Error performing GET https://runs.s3/x in 2ms - Server returned: 403: {answer}"
    assert object_store.reason(OSError(text)) == "Access Denied (AccessDenied)"
    assert object_store.reason(OSError("")) == "OSError"


def test_more_files_than_are_fetched_together(
    memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_FETCHED_TOGETHER", 3)
    for rank in range(5):
        write_rank(tmp_path, header(rank, 5), [step(n) for n in range(rank + 1)])
    (tmp_path / "attempt-0" / "rank-2.steps").unlink()
    memory.put(str(tmp_path), "/run", recursive=True)
    calls: list[tuple[int, int]] = []
    run = load_run("memory://run", lambda done, total: calls.append((done, total)))
    assert [len(rank.steps) for rank in run.ranks] == [1, 2, 0, 4, 5]
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
    ("hidden", "url", "message"),
    [
        ("fsspec", "memory://run", "reading URLs needs fsspec: pip install 'ddlprof[remote]'"),
        ("obstore", "s3://b/run", "reading object stores needs obstore and fsspec: pip install 'ddlprof[remote]'"),
        ("fsspec", "s3://b/run", "reading object stores needs obstore and fsspec: pip install 'ddlprof[remote]'"),
    ],
)
def test_a_missing_package_is_named_with_the_command(hidden: str, url: str, message: str) -> None:
    done = ddlprof("report", url, hidden=hidden)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"ddlprof: {url}: {message}\n")


def test_local_paths_need_no_fsspec() -> None:
    code = "import sys; sys.modules['fsspec'] = None; from ddlprof.store import load_run; load_run(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(GOLDEN)], check=True, cwd=HERE.parents[1])


def test_no_report_shows_the_credentials_of_a_url(memory: fsspec.AbstractFileSystem) -> None:
    for path in GOLDEN.rglob("*.*"):
        memory.pipe(f"/me:secret@host/run/{path.relative_to(GOLDEN).as_posix()}", path.read_bytes())
    shown = card_of("memory://me:secret@host/run")
    assert "memory://***@host/run" in shown
    assert "secret" not in shown
