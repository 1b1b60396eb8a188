"""`ddlprof fuse` as a user types it."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

NETS = """
import torch
from torch import nn

X = torch.randn(96, 6, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()

def make(width=5):
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Dropout(0.0), nn.Linear(width, 2))

def batches(batch=16):
    for rows in torch.randperm(len(X)).split(batch):
        yield X[rows], Y[rows]

def dicts():
    return [{"x": X, "labels": Y}]

ready = [(X, Y)]
empty = []
once = iter([(X, Y)])

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x, labels=None):
        out = self.linear(x)
        return {"loss": nn.functional.cross_entropy(out, labels)} if labels is not None else out

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x):
        y = self.linear(x)
        if y.sum() > 0:
            return y
        return -y

class Hooked(Branches):
    def __init__(self):
        super().__init__()
        self.linear.weight.register_hook(lambda gradient: gradient / 2)

    def forward(self, x):
        return self.linear(x)

class Changes(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(6, 2), [0]

    def forward(self, x):
        self.calls[0] += 1
        return self.linear(x) * (1.0 if self.calls[0] <= 4 else 2.0)

class Lacking(nn.Linear):
    def __init__(self):
        super().__init__(6, 2)

    def forward(self, x):
        raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive.")

class LackingBackward(nn.Linear):
    def __init__(self):
        super().__init__(6, 2)

    def forward(self, x):
        return Fails.apply(super().forward(x))

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise RuntimeError("mm not implemented for 'Half'")

def fails(output, target):
    raise ValueError("no such metric")

def share(output, target):
    return (output.argmax(1) == target).float().mean()

def needs(size):
    return nn.Linear(size, 2)

def text():
    return "a model"

def nothing_to_train():
    return nn.Flatten()

def broken():
    raise ValueError("no weights here")

def of_two(output, target):
    return output.sum(1)
"""
Fuse = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fuse(in_folder_of: Callable[[str, str], Fuse]) -> Fuse:
    """Runs the command in a directory that has `made_up_sweep.py`: exit code, stdout, stderr."""
    typed = in_folder_of("made_up_sweep", NETS)

    def run(model: str, *arguments: str, data: str = "made_up_sweep:batches") -> tuple[int, str, str]:
        return typed("fuse", model if ":" in model else f"made_up_sweep:{model}", "--data", data, *arguments)

    return run


def table(page: str) -> list[list[str]]:
    """The cells of the table of trials."""
    rows = page[page.index("TRIAL") :].splitlines()
    return [re.split(r"  +", row.strip()) for row in rows]


def test_a_sweep(fuse: Fuse, tmp_path: Path) -> None:
    code, out, err = fuse(
        "make", "--sweep", "lr=0.001,0.01,0.03", "--epochs", "5", "--metric", "accuracy", "--processes", "0", "--force",
        "-o", "-", "-o", "all.json", "-o", "trials.csv",
    )  # fmt: skip
    assert (code, err) == (0, "ddlprof: wrote all.json\nddlprof: wrote trials.csv\n")
    assert "Verdict    fuse: " in out
    assert "Predicted  a step of 3 models takes" in out
    assert "Measured   a step of 3 models took" in out
    assert "processes side by side were not measured" in out
    head, *rows = table(out)
    assert head == ["TRIAL", "LR", "LOSS", "EVAL LOSS", "METRIC"]
    assert [row[:2] for row in rows] == [["0", "0.001"], ["1", "0.01"], ["2", "0.03"]]
    found = json.loads((tmp_path / "all.json").read_text())
    assert found["trained"]
    (part,) = found["parts"]
    assert part["fuse"]
    assert part["at_once"] == 3
    assert part["prediction"]["gain"] > 0
    assert part["measured"]["gain_beside"] is None
    losses = [trial["eval_loss"] for trial in found["trials"]]
    assert losses == sorted(losses, reverse=True)
    listed = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [float(row["eval_loss"]) for row in listed] == losses
    assert [row["steps"] for row in listed] == ["30"] * 3


def test_fused_trials_are_those_of_separate_trainings(fuse: Fuse, tmp_path: Path) -> None:
    """Also the order of the batches, and with seeds of their own the first weights."""
    for number, more in enumerate((["--force"], ["--max-models", "1"])):
        code, _, _ = fuse(
            "make", "--sweep", "lr=0.001,0.01", "--sweep", "width=4,7", "--max-steps", "20", "--optimizer", "adamw",
            "--processes", "0", "--metric", "made_up_sweep:share", "-o", "-", "-o", f"{number}.json", *more,
        )  # fmt: skip
        assert code == 0
    together, alone = (json.loads((tmp_path / f"{number}.json").read_text())["trials"] for number in (0, 1))
    assert [trial["fused"] for trial in together] == [True] * 4
    assert [trial["fused"] for trial in alone] == [False] * 4
    for one, other in zip(together, alone, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5)
        assert one["eval_loss"] == pytest.approx(other["eval_loss"], abs=1e-5)
        assert one["metric"] == pytest.approx(other["metric"])


@pytest.mark.parametrize("more", [["--force"], ["--max-models", "1"]])
def test_a_model_that_cannot_be_saved_loses_no_result(fuse: Fuse, tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "models" / "trial-1.pt" / "full").mkdir(parents=True)
    code, out, _ = fuse(
        "make", "--sweep", "lr=0.01,0.1", "--max-steps", "4", "--processes", "0", "--save", "models", *more,
    )  # fmt: skip
    assert code == 0
    assert [row[0] for row in table(out)] == ["TRIAL", "0", "1"]
    assert "models/trial-1.pt: cannot be written: Is a directory" in " ".join(out.split())
    assert (tmp_path / "models" / "trial-0.pt").is_file()


@pytest.mark.slow
def test_parts_and_groups(fuse: Fuse) -> None:
    code, out, _ = fuse(
        "make", "--sweep", "lr=0.1,0.2,0.3", "--sweep", "batch=16,32", "--max-steps", "3", "--max-models", "2",
        "--force", "--processes", "0",
    )  # fmt: skip
    assert code == 0
    assert re.findall(r"^Part +(.*)$", out, re.M) == ["batch 16: 3 trials", "batch 32: 3 trials"]
    assert out.count("At once    2 of 3 trials") == 2
    assert len(table(out)) == 7


def test_a_dry_run_trains_nothing(fuse: Fuse, tmp_path: Path) -> None:
    code, out, _ = fuse("make", "--sweep", "lr=0.1,0.2", "--dry-run", "-o", "-", "-o", "plan.json", "--processes", "2")
    assert code == 0
    assert "in 2 processes at a time" in out
    assert "TRIAL" not in out
    found = json.loads((tmp_path / "plan.json").read_text())
    assert (found["trained"], found["trials"]) == (False, [])


def test_seeds_dicts_and_a_model_with_its_own_loss(fuse: Fuse) -> None:
    code, out, _ = fuse(
        "Named", "--sweep", "seed=0,1,2", "--loss", "model", "--epochs", "3", "--force", "--processes", "0",
        data="made_up_sweep:dicts",
    )  # fmt: skip
    assert code == 0
    assert len({row[2] for row in table(out)[1:]}) == 3


def test_a_trial_that_diverges_says_so(fuse: Fuse, tmp_path: Path) -> None:
    code, out, _ = fuse(
        "make", "--sweep", "lr=0.01,1e30", "--optimizer", "sgd", "--max-steps", "30", "--force", "--processes", "0",
        "--loss", "mse_loss", "-o", "-", "-o", "trials.csv", data="made_up_sweep:pairs",
    )  # fmt: skip
    assert code == 2  # there is no such data
    (tmp_path / "made_up_sweep.py").write_text(NETS + "\npairs = [(X, X[:, :2])]\n")
    sys.modules.pop("made_up_sweep")
    code, out, _ = fuse(
        "make", "--sweep", "lr=0.01,1e30", "--optimizer", "sgd", "--max-steps", "30", "--force", "--processes", "0",
        "--loss", "mse_loss", "-o", "-", "-o", "trials.csv", data="made_up_sweep:pairs",
    )  # fmt: skip
    assert code == 0
    assert [row[2] == "diverged" for row in table(out)[1:]] == [False, True]
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [(row["loss"] == "", row["diverged"]) for row in rows] == [(False, "false"), (True, "true")]


def test_the_line_that_cannot_be_fused_is_named(fuse: Fuse) -> None:
    code, out, _ = fuse("Branches", "--sweep", "lr=0.1,0.2", "--max-steps", "2")
    assert code == 0
    line = NETS.splitlines().index("        if y.sum() > 0:") + 1
    assert f"cannot be fused: made_up_sweep.py:{line}: `if y.sum() > 0:" in out
    assert len(table(out)) == 3


def test_what_would_be_another_model_is_trained_one_after_another(fuse: Fuse, tmp_path: Path) -> None:
    words = ["--sweep", "lr=0.1,0.2", "--max-steps", "2", "--force", "-o", "-", "-o", "trials.csv"]
    code, out, err = fuse("Hooked", *words)
    assert (code, err) == (0, "ddlprof: wrote trials.csv\n")
    assert "cannot be fused: parameter linear.weight has hooks on its gradient" in out
    assert (tmp_path / "trials.csv").read_text().count("false,2,") == 2


def test_a_forward_that_changes_is_trained_without_recording_it(fuse: Fuse, tmp_path: Path) -> None:
    for number, more in enumerate((["--force"], ["--max-models", "1"])):
        words = ["--sweep", "lr=0.01,0.1", "--max-steps", "30", "--processes", "0", *more]
        code, out, _ = fuse("Changes", *words, "-o", "-", "-o", f"{number}.json")
        assert code == 0
        assert ("is not the same at each step" in out) is (number == 0)
    together, alone = (json.loads((tmp_path / f"{number}.json").read_text())["trials"] for number in (0, 1))
    assert [each["loss"] for each in together] == pytest.approx([each["loss"] for each in alone], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "clip"), [("amp-bf16", []), ("amp-fp16", ["--clip-norm", "0.5"])])
def test_mixed_precision_trains_each_trial_as_it_would_alone(
    fuse: Fuse, tmp_path: Path, precision: str, clip: list[str]
) -> None:
    for number, more in enumerate((["--force"], ["--max-models", "1"])):
        words = ["--sweep", "lr=0.01,0.1", "--max-steps", "12", "--processes", "0", "--precision", precision, *clip]
        code, out, _ = fuse("make", *words, *more, "-o", "-", "-o", f"{number}.json")
        assert code == 0
        assert f"adam · cpu, 1 thread · {precision}\n" in out.replace("threads", "thread").replace(
            "2 thread", "1 thread"
        )
    together, alone = (json.loads((tmp_path / f"{number}.json").read_text()) for number in (0, 1))
    assert (together["precision"], together["parts"][0]["fuse"]) == (precision, True)
    losses = [[each["loss"] for each in found["trials"]] for found in (together, alone)]
    assert losses[0] == pytest.approx(losses[1], rel=0.03)


@pytest.mark.slow
def test_beside_real_processes(fuse: Fuse, tmp_path: Path) -> None:
    words = ["--sweep", "lr=0.1,0.2", "--max-steps", "2", "--force", "--processes", "2"]
    code, out, _ = fuse("make", *words, "-o", "-", "-o", "a.json")
    assert code == 0
    measured = json.loads((tmp_path / "a.json").read_text())["parts"][0]["measured"]
    assert measured["beside"] == 2
    assert measured["gain_beside"] > 0
    assert measured["start_s"] > measured["beside_s"]
    assert "until they were ready" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["make"], "one trial: nothing to fuse; give --sweep NAME=VALUE,VALUE,... at least two values"),
        (["make", "--sweep", "lr=0.1"], "one trial: nothing to fuse"),
        (["make", "--sweep", "lr"], "--sweep lr: not of the form NAME=VALUE,VALUE,..."),
        (["make", "--sweep", "lr=0.1,,0.2"], "--sweep lr=0.1,,0.2: a value is missing between commas"),
        (["make", "--sweep", "lr=0.1,1e-1"], "0.1 stands there twice"),
        (["make", "--sweep", "lr=1,2", "--sweep", "lr=3"], "--sweep lr is given twice"),
        (["make", "--sweep", "lr=fast,slow"], "lr=fast: not a number"),
        (["make", "--sweep", "lr=-1,1"], "lr=-1: must not be negative"),
        (["make", "--sweep", "momentum=0.1,0.9"], "has a parameter momentum; adam has lr, beta1, beta2, eps"),
        (["make", "--sweep", "lrs=1,2"], "has a parameter lrs; did you mean lr?; adam has"),
        (["make", "--sweep", "lr=1,2", "--optimizer", "lion"], "unknown optimizer 'lion'; known: sgd, adam, adamw"),
        (["make", "--sweep", "lr=1,2", "--loss", "cross_entrop"], "no such function; did you mean cross_entropy?"),
        (["make", "--sweep", "lr=1,2", "--loss", "made_up_sweep:of_two"], "the loss has to be one number, not (16,)"),
        (["make", "--sweep", "lr=1,2", "--loss", "model"], "the model returns no loss of its own: give --loss NAME"),
        (["make", "--sweep", "lr=1,2", "--metric", "made_up_sweep:gone"], "made_up_sweep has no gone"),
        (
            ["make", "--sweep", "lr=1,2", "--max-models", "many"],
            "--max-models many: neither auto nor a number",
        ),
        (["make", "--sweep", "lr=1,2", "--device", "tpu"], "--device tpu: known are auto, cpu and cuda"),
        (["make", "--sweep", "lr=1,2", "--precision", "int8"], "--precision int8: known are fp32, amp-bf16, amp-fp16"),
        (["make", "--sweep", "seed=a,b"], "--sweep seed: a is no whole number"),
        (["make:x", "--sweep", "lr=1,2"], "import of make failed: ModuleNotFoundError"),
        (["needs", "--sweep", "lr=1,2"], "made_up_sweep:needs needs size: give it with --sweep size=VALUE"),
        (["text", "--sweep", "lr=1,2"], "made_up_sweep:text returned str, not a torch.nn.Module"),
        (["X", "--sweep", "lr=1,2"], "made_up_sweep:X is no function: it has to return a new model at each call"),
        (["broken", "--sweep", "lr=1,2"], "made_up_sweep:broken failed: ValueError: no weights here"),
        (["Lacking", "--sweep", "lr=1,2"], "a step of made_up_sweep:Lacking failed: RuntimeError: could not create a"),
        (["Lacking", "--sweep", "lr=1,2"], "torch has no such operator for this processor"),
        (["LackingBackward", "--sweep", "lr=1,2"], "torch has no such operator for this processor"),
        (
            ["make", "--sweep", "lr=1,2", "--metric", "made_up_sweep:fails", "--max-models", "1", "--max-steps", "1"],
            "the evaluation of made_up_sweep:make failed: ValueError: no such metric",
        ),
        (["nothing_to_train", "--sweep", "lr=1,2"], "the model has nothing to train"),
        (["make", "--sweep", "lr=1,2", "--clip-norm", "0"], "--clip-norm 0: must be more than zero"),
        (["make", "--sweep", "lr=1,2", "--save", "no/such"], "no/such: cannot be made: No such file or directory"),
        (["make", "--sweep", "lr=1,2", "--save", "made_up_sweep.py"], "made_up_sweep.py: cannot be made: File exists"),
        (["make", "--sweep", "lr=1,2", "-o", "no/such/folder.json", "--max-steps", "1"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line(fuse: Fuse, words: list[str], message: str) -> None:
    code, _, err = fuse(*words)
    assert code == 2
    assert message in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("ddlprof: ")
    if "Traceback" not in err:  # of the user's own code
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("made_up_sweep:empty", "made_up_sweep:empty gave no batches"),
        ("made_up_sweep:X", "gave Tensor for a batch: it has to be (x, y) or a dict of tensors"),
        ("made_up_sweep:nowhere", "made_up_sweep has no nowhere"),
        ("made_up_sweep", "made_up_sweep: not of the form MODULE:BATCHES"),
        ("torch:pi", "torch:pi gave float, not batches that can be iterated"),
    ],
)
def test_bad_data_is_one_line(fuse: Fuse, data: str, message: str) -> None:
    code, _, err = fuse("make", "--sweep", "lr=0.1,0.2", data=data)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err
