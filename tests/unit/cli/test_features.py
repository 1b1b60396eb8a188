"""`ddlprof features` as a user types it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ddlprof.cli.app import main
from ddlprof.recommender import Workload
from ddlprof.recommender.workload import read_workload

NETS = """
import torch
from torch import nn

def small():
    return nn.Sequential(nn.Linear(1000, 100), nn.ReLU(), nn.Linear(100, 10))

def with_size(size):
    return nn.Linear(size, size)

def asks_the_gpu():
    return nn.Linear(4, torch.cuda.current_device() + 4)

def broken():
    return helper()

def helper():
    raise ValueError("no weights here")

class Lacking(nn.Module):
    def forward(self, x):
        raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive.")

def text():
    return "a model"

class Nets:
    small = staticmethod(small)

ready = small()
number = 3
"""


@pytest.fixture
def features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in a directory that has `made_up_nets.py`: exit code, stdout, stderr."""
    (tmp_path / "made_up_nets.py").write_text(NETS)
    (tmp_path / "made_up_script.py").write_text("raise SystemExit(3)")
    (tmp_path / "made_up_import.py").write_text("import no_such_package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("made_up_nets", "made_up_script", "made_up_import"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ddlprof", "features", *arguments])
        code = main()
        return code, *capsys.readouterr()

    return run


Features = Callable[..., tuple[int, str, str]]


def test_the_table(features: Features) -> None:
    code, out, err = features("made_up_nets:small", "--input", "1000")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "model              small",
        "layers             2",
        "parameter tensors  4",
        "parameters         101,110",
        "gradients          404 kB",
        "FLOPs per sample   406 k (forward 202 k, backward 204 k)",
        "",
        "one step at batch 8 (fp32, optimizer adamw)",
        "phase      operators    calls  launches   FLOPs  share    moved  share",
        "forward    product          2         2  1.62 M   50 %   443 kB    5 %",
        "           elementwise      1         1                  6.4 kB    0 %",
        "           reduction        1         1                   324 B    0 %",
        "backward   product          3         3  1.63 M   50 %   450 kB    5 %",
        "           elementwise      2         2                  9.6 kB    0 %",
        "           reduction        2         2                 3.64 kB    0 %",
        "optimizer  optimizer        1         8                 8.09 MB   90 %",
        "step                       12        19  3.25 M  100 %     9 MB  100 %",
        "",
        "memory at batch 8, without gradients and optimizer",
        "parameters                       404 kB",
        "activations saved for backward  3.52 kB",
        "temporary, at most               6.4 kB",
        "inputs                            32 kB",
    ]


def test_inference(features: Features) -> None:
    code, out, _ = features("made_up_nets:small", "--input", "1000", "--inference", "--batch", "4")
    assert code == 0
    assert "one step at batch 4 (fp32, forward alone)" in out
    assert "FLOPs per sample   202 k (forward alone)" in out
    assert "backward" not in out
    assert "checkpointed" not in out
    assert "memory at batch 4\n" in out


def test_without_an_input(features: Features) -> None:
    code, out, _ = features("made_up_nets:Nets.small")
    assert code == 0
    assert "FLOPs per sample   not known\nnote: FLOPs are not counted" in out


def test_the_file_is_a_workload(features: Features, tmp_path: Path) -> None:
    code, _, _ = features("made_up_nets:small", "--input", "1000", "-o", "small.json")
    assert code == 0
    workload = read_workload(tmp_path / "small.json")
    assert workload.step is not None
    assert (workload.step.batch, workload.step.precision, workload.step.optimizer) == (8, "fp32", "adamw")
    assert {each.phase for each in workload.step.operators} == {"forward", "backward", "optimizer"}
    assert replace(workload, step=None) == Workload(
        name="small", layers=2, parameter_tensors=4, gradient_bytes=404_440, flops_per_sample=406_000
    )


def test_a_model_that_is_there_already(features: Features) -> None:
    assert features("made_up_nets:ready", "--input", "1000")[0] == 0


def test_an_error_of_the_factory_has_the_users_frames_and_no_others(features: Features, tmp_path: Path) -> None:
    code, out, err = features("made_up_nets:broken")
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    files = [line for line in lines if line.startswith("  File")]
    assert [line.rpartition(" in ")[2] for line in files] == ["broken", "helper"]
    assert all(str(tmp_path) in line for line in files)
    assert lines[-2:] == [
        "ValueError: no weights here",
        "ddlprof: made_up_nets:broken failed: ValueError: no weights here",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["made_up_nets"], "made_up_nets: not of the form MODULE:FACTORY, such as models.resnet:resnet50"),
        (["made_up_nets:smal"], "made_up_nets has no smal; did you mean small?"),
        (["made_up_nets:number"], "made_up_nets:number is no function: it has to return the model"),
        (["made_up_nets:small", "--precision", "fp4"], "--precision fp4: not known; one of fp32, bf16"),
        (["made_up_nets:small", "--optimizer", "adm"], "--optimizer adm: not known; one of none, sgd"),
        (["made_up_nets:small", "--optimizer", "adam-slow"], "--optimizer adam-slow: not known"),
        (["made_up_nets:text"], "made_up_nets:text: it returned str, not a torch.nn.Module"),
        (["made_up_nets:with_size"], "TypeError: with_size() missing 1 required positional argument: 'size'"),
        (["made_up_nets:small", "--input", "x"], "--input x: not the shape of a sample"),
        (["made_up_nets:small", "-o", "no/such/file.json"], "no/such/file.json: cannot be written"),
        (["no_such_module:f"], "import of no_such_module failed: ModuleNotFoundError"),
        (["made_up_script:f"], "import of made_up_script ended the program"),
    ],
)
def test_bad_input_is_one_line(features: Features, arguments: list[str], message: str) -> None:
    code, _, err = features(*arguments)
    assert code == 2
    (line,) = err.splitlines()
    assert message in line


def test_an_operator_that_the_processor_lacks(features: Features) -> None:
    code, _, err = features("made_up_nets:Lacking", "--input", "4")
    assert code == 2
    assert err.splitlines()[-1] == (
        "ddlprof: forward of made_up_nets:Lacking failed: RuntimeError: could not create a primitive descriptor for the"
        " LSTM forward propagation primitive. (torch has no such operator for this processor: use float32 here, or"
        " another machine)"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA")
def test_a_model_that_asks_for_a_gpu(features: Features) -> None:
    code, _, err = features("made_up_nets:asks_the_gpu", "--input", "4")
    assert code == 2
    (line,) = err.splitlines()
    assert "the model asks for CUDA while it is built" in line


def test_an_import_that_fails_inside_the_users_module(features: Features) -> None:
    _, _, err = features("made_up_import:f")
    assert "made_up_import.py" in err
    assert err.splitlines()[-1] == (
        "ddlprof: import of made_up_import failed: ModuleNotFoundError: No module named 'no_such_package'"
    )


def test_an_input_that_does_not_fit(features: Features) -> None:
    code, _, err = features("made_up_nets:small", "--input", "3")
    assert code == 2
    assert err.splitlines()[-1].startswith("ddlprof: forward of made_up_nets:small failed: RuntimeError: ")
