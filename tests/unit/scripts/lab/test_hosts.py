from __future__ import annotations

import os
import sys

import pytest

from scripts.lab import hosts as lab
from scripts.lab.hosts import Lab, Link, launchers


def test_an_unshaped_link_needs_no_command() -> None:
    assert Link().commands() == []


def test_rate_alone_is_the_root_discipline() -> None:
    (command,) = Link(rate="400mbit").commands()
    assert command[:4] == ["root", "handle", "1:", "tbf"]
    assert command[command.index("rate") + 1] == "400mbit"


def test_rate_comes_below_delay_jitter_and_loss() -> None:
    above, below = Link("1gbit", "2ms", "1ms", "1%").commands()
    assert above[:4] == ["root", "handle", "1:", "netem"]
    assert above[above.index("delay") :] == ["delay", "2ms", "1ms", "loss", "1%"]
    assert below[:5] == ["parent", "1:1", "handle", "10:", "tbf"]


def test_jitter_needs_no_delay() -> None:
    (command,) = Link(jitter="1ms").commands()
    assert command[command.index("delay") :] == ["delay", "0ms", "1ms"]


def test_every_host_has_a_launcher_with_its_number() -> None:
    commands = launchers(3, [1, 2], ["--out", "run", "train.py", "--lr", "1"], "10.0.0.1")
    assert [c[c.index("--node-rank") + 1] for c in commands] == ["0", "1", "2"]
    assert [c[c.index("--nproc-per-node") + 1] for c in commands] == ["1", "2", "1"]
    for command in commands:
        assert command[:4] == [sys.executable, "-m", "ddlprof", "run"]
        assert command[-5:] == ["--out", "run", "train.py", "--lr", "1"]


def test_plain_is_the_launcher_of_torch() -> None:
    (command,) = launchers(1, [4], ["plain", "train.py"], "10.0.0.1")
    assert command[1:3] == ["-m", "torch.distributed.run"]
    assert command[-1] == "train.py"


def test_two_labs_have_names_and_addresses_of_their_own() -> None:
    first, second = Lab(2), Lab(2)
    assert len({first.name, second.name, *first.namespaces, *second.namespaces}) == 6
    assert first.address(0) != first.address(1)


def test_a_process_is_known_by_when_it_began() -> None:
    assert lab._started(os.getpid()) == lab._started(os.getpid()) != ""
    assert lab._started(os.getpid()) != lab._started(1)
    assert lab._started(2**22 + 1) == ""  # more than the kernel ever gives


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert lab.missing() == "the lab needs root"


def test_without_its_tools_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    assert lab.missing() == "the lab needs ip, tc, unshare (iproute2, util-linux)"
