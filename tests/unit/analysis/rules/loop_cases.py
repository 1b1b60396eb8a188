"""Facts on which the rules about lines of the training loop speak, and on which they must not say a word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddlprof.analysis.job_time import JOB_PARTS, JobTime
from ddlprof.analysis.pauses import Pauses
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.sources import Sources, SourceShare
from ddlprof.model import source_locations
from ddlprof.model.operators import Operator
from ddlprof.model.source_locations import SourceLocation
from tests.unit.analysis.rules.made_up import facts

HOOKED: dict[str, float | None] = {"compute": 97.0, "compute_forward": 60.0, "data": 1.0, "other": 2.0}
ALONE: dict[str, float | None] = HOOKED | {"compute_backward": 18.0}
UPDATED: dict[str, float | None] = {"compute": 97.0, "compute_optimizer": 30.0}
WHOLE = {"compiled": False, "frozen": False}
ZEROS = {"sparse_share": 0.9, "sparse_nonzero": 0.002, "forward_flops_per_sample": 1e8}
PAUSES = Pauses(number=2.0, seconds=0.012, longest_s=0.2, full=1.0, steps=100)


def line(what: str, share: float = 0.9, sure: bool = True) -> Sources:
    return Sources(40, [SourceShare(SourceLocation("train.py:9 main", what), share, sure)])


def called(what: str, told: str | None = None) -> SourceShare:
    """A line like this, most of it in a module that it calls; `told`: what it is told as, if not so."""
    kinds = {source_locations.MODULE: 0.25, what: 0.1}
    return SourceShare(SourceLocation("train.py:9 penalty", told or what), 0.35, False, kinds)


def labelled(rows: int = 384, ignored: float = 0.9, columns: int = 2500) -> dict[str, Any]:
    """Of 8 samples of 48 tokens so many get logits; a layer beside it has half as many operations and bytes."""
    head = Operator("product", "forward", "mm", "fp32", (1, rows, columns, 64), 1e8, 1e6, 1.0, 1.0, grows=1)
    loss = Operator("softmax", "forward", "log_softmax", "fp32", (rows, columns), 0.0, 1e6, 1.0, 1.0, grows=0)
    other = Operator("product", "forward", "mm", "fp32", (1, 384, 64, 64), 5e7, 1e6, 1.0, 1.0, grows=1)
    return {"ignored_share": ignored, "tokens_per_sample": 48.0, "batch_per_rank": 8, "operators": (head, loss, other)}


def penalised(
    names: tuple[str, str] = ("pow", "sum"), times: float = 1.0, updated: int = 2**20, rows: int = 1
) -> dict[str, Any]:
    """The squares of a matrix of 2**20 weights are summed to so many numbers; a product with it takes a fifth."""
    size = 2**20
    return {"compiled": False, "operators": (
        Operator("elementwise", "forward", names[0], "fp32", (size,), 0.0, 8e6, 1.0, times),
        Operator("reduction", "forward", names[1], "fp32", (size, rows), 0.0, 4e6, 1.0, 1.0),
        Operator("elementwise", "backward", "pow_backward", "fp32", (size,), 0.0, 8e6, 1.0, 1.0),
        Operator("elementwise", "forward", "relu", "fp32", (size,), 0.0, 1e6, 1.0, 1.0, grows=0),
        Operator("product", "forward", "mm", "fp32", (1, 8, 1024, 1024), 1.6e7, 2e6, 1.0, 1.0, grows=1),
        Operator("optimizer", "optimizer", "sgd", "fp32", (updated, 1), 0.0, 1e9, 1.0, 1.0),
    )}  # fmt: skip


def job(wall_s: float, idle_s: float, evaluation_s: float = 0.0) -> JobTime:
    """A job with three evaluations of so long together, after which its script goes on for so long."""
    parts: dict[str, float | None] = dict.fromkeys(JOB_PARTS, 0.0)
    parts |= {"steps": wall_s - idle_s - evaluation_s, "idle": idle_s, "evaluation": evaluation_s}
    return JobTime(wall_s, parts, evaluations=3, steps=100)


SPEAKS: dict[str, list[Facts]] = {
    "long_history": [facts(UPDATED, optimizer="LBFGS", optimizer_history=100, passes_in_update=20),
                     facts(UPDATED, optimizer="LBFGS", optimizer_history=24, passes_in_update=20),
                     facts(UPDATED, optimizer="LBFGS", optimizer_history=1000)],
    "weight_penalty": [facts(UPDATED, **penalised(), device="cpu"), facts(UPDATED, **penalised()),
                       facts(UPDATED, **penalised(updated=2**21)), facts(UPDATED, **penalised(("mul", "sum")))],
    "result_waits": [facts({"compute": 70.0, "other": 30.0}, sources=line(source_locations.RESULT))],
    "logging": [facts({"compute": 70.0, "other": 30.0}, sources=line(source_locations.LOGGING)),
                facts(HOOKED, device="cpu", computing=Sources(40, [
                    SourceShare(SourceLocation("train.py:9 forward", ""), 0.5, True),
                    SourceShare(SourceLocation("wandb/hooks.py:9 log", source_locations.LOGGING), 0.45, True)]))],
    "plots": [facts({"compute": 70.0, "other": 30.0}, sources=line(source_locations.PLOT)),
              facts(HOOKED, device="cpu", computing=line(source_locations.PLOT))],
    "metrics": [facts({"compute": 70.0, "other": 30.0}, sources=line(source_locations.METRIC))],
    "copies": [facts({"compute": 70.0, "other": 30.0}, sources=line(source_locations.COPY)),
               facts({"compute": 70.0, "other": 30.0},
                     sources=replace(line("", sure=False), wider=line(source_locations.COPY).shares))],
    "slow_line": [facts({"compute": 70.0, "other": 30.0}, sources=line(w)) for w in ("", source_locations.SLEEP,
    source_locations.OWN_LOOP, source_locations.LISTS, source_locations.NETWORK, "later")],
    "between_steps": [facts(job=job(60.0, 20.0), between=line(what)) for what in ("", source_locations.METRIC)]
    + [facts(job=job(60.0, 20.0, 30.0), between=line("")),
       facts(job=replace(job(60.0, 20.0), evaluations=None, later_phases=4), between=line(""))],
    "parametrized": [facts(HOOKED, device="cpu", computing=line(source_locations.PARAMETRIZED))],
    "constants": [facts(HOOKED, device="cpu", computing=line(source_locations.CONSTANT, 0.35, sure=False)),
                  facts(HOOKED, device="cpu", computing=Sources(40, [
                      SourceShare(SourceLocation("net.py:3 f", "" if n == 3 else source_locations.CONSTANT), 0.2, False)
                      for n in range(5)]))],
    "forward_alone": [facts(ALONE, device="cpu", **WHOLE, computing=line("", share=0.5))],
    "zero_products": [facts(HOOKED, device="cpu", compiled=False,
                            computing=line(source_locations.MODULE, share=0.5), **ZEROS),
                      facts(HOOKED, device="cpu", compiled=False, computing=line("", share=0.5), **ZEROS)],
    "ignored_labels": [facts(UPDATED, **labelled()), facts(UPDATED, **labelled(376))],  # shifted by one
    "preconditioner": [facts(UPDATED, device="cpu",
                             after_backward=line(source_locations.PRECONDITIONS, 0.5, sure=False)),
                       facts(UPDATED, device="cpu", after_backward=Sources(40, [
                           *line(source_locations.UPDATE, 0.4).shares,
                           *2 * line(source_locations.PRECONDITIONS, 0.3, sure=False).shares]))],
    "new_optimizers": [facts(new_optimizers=1.0), facts(new_optimizers=0.95)],
    "costly_line": [*(facts(HOOKED, device="cpu", computing=line(what))
                      for what in (source_locations.DECOMPOSES, source_locations.DERIVES, source_locations.ONE_HOT)),
                    facts({"compute": 97.0, "other": 3.0}, device="cpu", computing=line(source_locations.DERIVES_EACH)),
                    *(facts(HOOKED, device="cpu", computing=Sources(40, [
                        *line(source_locations.DERIVES, share, sure=False).shares,
                        *line("", 0.9 - share, sure=False).shares], line(source_locations.DERIVES).shares))
                      for share in (0.5, 0.4)),
                    facts(HOOKED, device="cpu", computing=Sources(40, [  # beside a line that takes as long
                        *line("", 0.5, sure=False).shares, *line(source_locations.DERIVES, 0.4, sure=False).shares])),
                    *(facts(HOOKED, device="cpu", computing=Sources(40, [called(source_locations.DERIVES, told)]))
                      for told in (None, source_locations.MODULE)),
                    facts(HOOKED, device="cpu", computing=Sources(40, [  # on several lines
                        *line("", 0.5, sure=False).shares,
                        *2 * line(source_locations.ONE_HOT, 0.2, sure=False).shares]))],
}  # fmt: skip

SILENT: dict[str, list[Facts]] = {
    "long_history": [facts(UPDATED, optimizer="LBFGS"),
                     facts(UPDATED, optimizer="LBFGS", optimizer_history=20, passes_in_update=20),
                     facts(UPDATED, optimizer="LBFGS", optimizer_history=1000, steady_steps=40),  # keeps 20 on average
                     facts({"compute": 97.0, "compute_optimizer": 10.0}, optimizer_history=100)],
    "weight_penalty": [facts(UPDATED),
                       facts(UPDATED, **penalised(("div", "linalg_vector_norm"))),  # a normalised weight
                       facts(UPDATED, **penalised(("div", "linalg_vector_norm"), times=0.0)),  # another gradient
                       *(facts(UPDATED, **penalised(names)) for names in (("abs", "sum"), ("pow", "mean"))),
                       facts(UPDATED, **penalised(("sub", "sum"))), facts(UPDATED, **penalised(times=2.0)),
                       facts(UPDATED, **penalised(rows=1024)),  # norms of rows
                       facts(UPDATED, **penalised(updated=2**22)), facts(UPDATED, **penalised() | {"compiled": True}),
                       facts(UPDATED, **penalised(), lag_share=0.01),
                       facts({"compute": 10.0, "data": 90.0}, **penalised())],
    "result_waits": [facts(sources=line(source_locations.RESULT)),
                     facts({"compute": 70.0, "other": 30.0}, sources=line(source_locations.RESULT, sure=False)),
                     facts({"compute": 70.0, "other": 30.0}, sources=line(source_locations.SLEEP))],
    "logging": [facts(sources=line(source_locations.LOGGING)), facts({"compute": 70.0, "other": 30.0}),
                facts(HOOKED, computing=line(source_locations.LOGGING)),  # the device has enough to do
                facts(HOOKED, device="cpu", computing=line(source_locations.LOGGING, sure=False))],
    "plots": [facts(sources=line(source_locations.PLOT)),
              facts({"compute": 70.0, "other": 30.0}, sources=line(source_locations.LOGGING))],
    "metrics": [facts(sources=line(source_locations.METRIC)),
                facts({"compute": 70.0, "other": 30.0}, sources=line(source_locations.METRIC, sure=False))],
    "copies": [facts(sources=line(source_locations.COPY)),
               facts({"compute": 70.0, "other": 30.0}, sources=line(source_locations.SLEEP))],
    "slow_line": [
        facts(sources=line("")),
        facts({"compute": 70.0, "other": 30.0}, sources=line(source_locations.COPY)),
        facts({"compute": 70.0, "other": 30.0}, sources=line(source_locations.LOGGING)),
        facts({"compute": 70.0, "other": 30.0}, sources=line(""), collector=replace(PAUSES, seconds=0.015)),
    ],
    "parametrized": [facts(HOOKED, computing=line(source_locations.PARAMETRIZED)), facts(HOOKED, device="cpu"),
                     facts(HOOKED, device="cpu", computing=line(source_locations.PARAMETRIZED, sure=False))],
    "constants": [facts(HOOKED, computing=line(source_locations.CONSTANT)), facts(HOOKED, device="cpu"),
                  facts(HOOKED, device="cpu", computing=line(source_locations.CONSTANT, 0.15)),
                  facts(HOOKED, device="cpu", computing=Sources(40, [SourceShare(
                      SourceLocation("net.py:3 f", source_locations.CONSTANT), 0.35, True,
                      {source_locations.CONSTANT: 0.15, "": 0.1, source_locations.ONE_HOT: 0.1})])),
                  facts(HOOKED, device="cpu", computing=line(source_locations.ONE_HOT))],
    "forward_alone": [facts(ALONE, device="cpu", **WHOLE, computing=line(source_locations.MODULE, share=0.5)),
                      facts(ALONE, device="cpu", **WHOLE, anomaly_share=0.9, computing=line("", share=0.5)),
                      facts(ALONE, device="cpu", **WHOLE, interpreter_hook="line: a", computing=line("", share=0.5)),
                      facts(ALONE, device="cpu", frozen=False, computing=line("", share=0.5)),  # compiled
                      facts(ALONE, **WHOLE, computing=line("", share=0.5)),  # the device has enough to do
                      facts(ALONE, device="cpu", **WHOLE, computing=line("", share=0.5, sure=False)),
                      facts(ALONE, device="cpu", **WHOLE, computing=line("", share=0.3)),  # as backward
                      facts(ALONE, device="cpu", **WHOLE, computing=line(source_locations.OWN_LOOP)),
                      facts(ALONE | {"compute_backward": 31.0}, device="cpu", **WHOLE, computing=line("")),
                      facts(HOOKED, device="cpu", **WHOLE, computing=line("")),
                      *(facts(ALONE, device="cpu", **WHOLE | {"frozen": frozen}, computing=line("", share=0.5))
                        for frozen in (True, None))],
    "zero_products": [facts(HOOKED, device="cpu", compiled=False, computing=line("", share=0.5)),
                      facts(HOOKED, device="cpu", compiled=False, computing=line("", share=0.5, sure=False), **ZEROS),
                      facts(HOOKED, device="cpu", compiled=False, computing=line(source_locations.ONE_HOT), **ZEROS),
                      facts(HOOKED, device="cpu", compiled=False, computing=line(""), **ZEROS | {"sparse_share": 0.4}),
                      facts(HOOKED, compiled=False, computing=line(""), **ZEROS),
                      facts(HOOKED, device="cpu", computing=line(""), **ZEROS),  # compiled
                      facts(HOOKED, device="cpu", compiled=False, computing=line("", share=0.5),
                            **ZEROS | {"forward_flops_per_sample": 1e5})],  # so other work is at the line
    "ignored_labels": [facts(UPDATED, **labelled(40)), facts(UPDATED, **labelled(ignored=0.1)),
                       facts(UPDATED, **labelled() | {"operators": ()}), facts(UPDATED, **labelled(), lag_share=0.01),
                       facts(UPDATED, **labelled() | {"operators": labelled()["operators"][2:]}),
                       *(facts(UPDATED, **labelled() | {name: None})
                         for name in ("ignored_share", "tokens_per_sample", "batch_per_rank"))],
    "preconditioner": [facts(UPDATED, device="cpu"),
                       facts(UPDATED, device="cpu", after_backward=line(source_locations.UPDATE)),
                       facts(UPDATED, device="cpu", after_backward=line(source_locations.PRECONDITIONS, 0.1)),
                       facts(device="cpu", after_backward=line(source_locations.PRECONDITIONS)),
                       facts(UPDATED, after_backward=line(source_locations.PRECONDITIONS))],  # on a device
    "new_optimizers": [facts(), facts(new_optimizers=0.5)],
    "between_steps": [facts(job=replace(job(60.0, 20.0), evaluations=None, later_phases=1), between=line("")),
                      facts(job=job(60.0, 5.0), between=line("")), facts(job=job(60.0, 20.0)),
                      facts(job=job(60.0, 20.0), between=line("", sure=False)), facts(between=line("")),
                      facts(job=job(60.0, 10.0, 20.0), between=line("", share=0.6))],  # which may be in evaluations
    "costly_line": [facts(HOOKED, device="cpu", computing=line(source_locations.OWN_LOOP)),
                    *(facts(HOOKED, device="cpu", computing=Sources(40, [called(what)]))
                      for what in ("", source_locations.ONE_HOT)),
                    facts({"compute": 97.0, "other": 3.0}, device="cpu", computing=line(source_locations.ONE_HOT)),
                    facts(HOOKED, computing=line(source_locations.DERIVES)),
                    facts(HOOKED, device="cpu", computing=line(source_locations.DERIVES, 0.1, sure=False)),  # four
                    facts({"compute": 97.0, "compute_forward": 8.0, "other": 3.0}, device="cpu",
                          computing=line(source_locations.ONE_HOT, 0.6, sure=False))],
}  # fmt: skip
