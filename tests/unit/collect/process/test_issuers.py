"""Who issued a collective, by its stack, and in which steps stacks are taken."""

from __future__ import annotations

import os
import sysconfig
from types import SimpleNamespace
from typing import Any

import pytest

from ddlprof.collect.hooks import collectives as ours
from ddlprof.collect.process.frames import StackFrame
from ddlprof.collect.process.issuers import IssuerLook, issuer_of, issuers_of
from ddlprof.collect.process.stacks import CodeLocator
from ddlprof.model import issuers
from ddlprof.model.source_locations import SourceLocation

PACKAGES = sysconfig.get_paths()["purelib"]


def frame(module: str, name: str = "f", path: str = "") -> StackFrame:
    """A frame at the first line of a function of an installed module; `path`: of another file."""
    where = path or os.path.join(PACKAGES, *module.split(".")) + ".py"
    code = compile("x = 1", where, "exec")
    changes: dict[str, Any] = {each: name for each in ("co_name", "co_qualname") if hasattr(code, each)}
    code = code.replace(**changes)
    return StackFrame(code, next(begin for begin, _, line in code.co_lines() if line == 1), module)


OURS = frame("ddlprof.collect.hooks.collectives", "run", ours.__file__)
C10D = frame("torch.distributed.distributed_c10d", "all_reduce")
ENGINE = [frame("torch.autograd.graph", "_engine_run_backward"), frame("torch.autograd")]
CALL = frame("torch.nn.modules.module", "_call_impl")
LINE = frame("__main__", "main", "train.py")
FUNCTION = frame("torch.autograd.function", "apply")
FULL = frame("torch.distributed.tensor._api", "full_tensor")
NORM = frame("model", "Norm.forward", "model.py")


@pytest.mark.parametrize(
    ("frames", "op", "what", "text"),
    [
        ([*ENGINE, LINE], "allreduce", issuers.REDUCER, ""),
        ([], "allreduce", issuers.REDUCER, ""),  # in a thread of the engine's own
        ([], "alltoall_base", None, ""),
        ([frame("torch.nn.parallel.distributed"), CALL, LINE], "broadcast", issuers.BUFFERS, ""),
        ([C10D, frame("torch.distributed.algorithms.ddp_comm_hooks.default_hooks"), *ENGINE, LINE], "allreduce",
         issuers.REDUCER, ""),
        ([C10D, frame("torch.distributed.fsdp._fully_shard._fsdp_collectives"), CALL, LINE], "allgather_base",
         issuers.FSDP2, ""),
        ([C10D, frame("torch.distributed.fsdp._runtime_utils"), CALL, LINE], "allgather_base", issuers.FSDP, ""),
        ([C10D, frame("torch.distributed.optim.zero_redundancy_optimizer"), LINE], "broadcast",
         issuers.SHARDED_OPTIMIZER, ""),
        ([C10D, FULL, FUNCTION, FULL, LINE], "allgather_into_tensor_coalesced",
         issuers.SCRIPT, "train.py:1 main"),
        ([C10D, FULL, frame("torch.nn.utils.clip_grad"), LINE], "allreduce_coalesced", issuers.SCRIPT,
         "train.py:1 main"),
        ([C10D, FULL, NORM, CALL, LINE], "allreduce_coalesced", issuers.TENSOR, ""),
        ([C10D, FULL, frame("torch.optim.adamw"), LINE], "allreduce_coalesced", issuers.TENSOR, ""),
        ([C10D, FULL, *ENGINE, LINE], "allgather_into_tensor_coalesced", issuers.TENSOR, ""),
        ([C10D, FULL, frame("accelerate.utils", "save"), LINE], "allgather_into_tensor_coalesced", issuers.TENSOR, ""),
        ([C10D, frame("torch.nn.modules._functions"), CALL, LINE], "allreduce", issuers.SYNC_NORM, ""),
        ([C10D, LINE], "allreduce", issuers.SCRIPT, "train.py:1 main"),
        ([C10D, NORM, CALL, LINE], "allreduce", issuers.IN_FORWARD, "model.py:1 Norm.forward"),
        ([C10D, frame("hooks", "hook", "hooks.py"), *ENGINE, LINE], "allreduce", issuers.IN_BACKWARD,
         "hooks.py:1 hook"),
        ([C10D, frame("torch.distributed.nn.functional"), FUNCTION, *ENGINE, LINE], "allreduce", issuers.IN_BACKWARD,
         "torch/distributed/nn/functional.py:1 f"),
        ([C10D, FUNCTION, *ENGINE, LINE], "allreduce", None, ""),
        ([C10D, frame("torchmetrics.metric", "sync"), LINE], "allgather", issuers.PACKAGE,
         "torchmetrics/metric.py:1 sync"),
        ([C10D, frame("torch.distributed.distributed_c10d", "all_gather_object"), LINE], "allgather", issuers.OBJECTS,
         "train.py:1 main"),
        ([frame("torch._inductor.output_code"), CALL, LINE], "allreduce", None, ""),
    ],
)  # fmt: skip
def test_who_issued_it(frames: list[StackFrame], op: str, what: str | None, text: str) -> None:
    found = issuer_of([OURS, *frames], op, CodeLocator())
    assert found == (None if what is None else SourceLocation(text, what))


def test_the_line_of_the_training_loop_that_called_a_helper_is_known() -> None:
    helper, update = frame("utils", "reduce_dict", "utils.py"), [(LINE.code, LINE.instruction + 2)]
    of_helper = issuer_of([OURS, C10D, helper, LINE], "allreduce", CodeLocator(), update)
    assert of_helper == SourceLocation("utils.py:1 reduce_dict", issuers.SCRIPT, "train.py:1 main")
    direct = issuer_of([OURS, C10D, LINE], "allreduce", CodeLocator(), update)
    assert direct == SourceLocation("train.py:1 main", issuers.SCRIPT)
    (in_forward,) = {issuer_of([OURS, C10D, NORM, CALL, LINE], "allreduce", CodeLocator(), update)}
    assert in_forward == SourceLocation("model.py:1 Norm.forward", issuers.IN_FORWARD)
    elsewhere = issuer_of([OURS, C10D, helper, LINE], "allreduce", CodeLocator(), [(NORM.code, 0)])
    assert elsewhere == SourceLocation("utils.py:1 reduce_dict", issuers.SCRIPT)


def test_stacks_are_let_go() -> None:
    taken, other = SimpleNamespace(op="allreduce", stack=[C10D, LINE]), SimpleNamespace(op="allreduce", stack=None)
    assert issuers_of([taken, other], CodeLocator()) == [SourceLocation("train.py:1 main", issuers.SCRIPT), None]
    assert taken.stack is None
    assert issuers_of([taken, other], CodeLocator()) is None


def test_stacks_are_taken_in_ever_fewer_steps() -> None:
    look, steps = IssuerLook(), []
    for updates in range(2000):
        taken: list[Any] = [look.take(updates) for _ in range(3) if updates >= look.due]
        if any(taken):
            assert len(taken) == 3
            assert all(taken)
            steps.append(updates)
    assert steps[:8] == [2, 3, 4, 5, 6, 8, 10, 12]
    assert len(steps) < 40
    assert {step % 10 for step in steps} == set(range(10))  # what is done every tenth step is seen, too
