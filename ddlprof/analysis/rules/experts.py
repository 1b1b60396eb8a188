"""A rule about mixtures of experts: tokens that are routed unevenly."""

from __future__ import annotations

from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.thresholds import EXPERT_IMBALANCE, FINDING_STEPS, WARN_SHARE
from ddlprof.base.units import percent, significant

EVEN_EXPERTS = "a stronger load-balancing loss or bias of the router, a capacity limit, or experts placed by their load"


def expert_imbalance(facts: Facts) -> Issue | None:
    """Finds experts that get far more tokens than others, while computing waits for all-to-alls."""
    load, step_s = facts.experts, facts.mean_s("step")
    waited_s = facts.comm.alltoall_s if facts.comm is not None else None
    if load is None or waited_s is None or not step_s or load.imbalance < EXPERT_IMBALANCE:
        return None
    share, late = waited_s / step_s, full_rank_is_late(facts)
    if share < WARN_SHARE:
        return None
    evidence = (
        f"in the mean of the all-to-alls of {load.steps} steps, the fullest of {load.ranks} ranks gets "
        f"{significant(load.imbalance)} times the mean of tokens (rank {load.fullest} "
        f"{significant(load.fullest_share)} times); computing waits {facts.scale.time(waited_s)} a step for all-to-alls"
    )
    if late and facts.late_rank is not None:
        evidence += (
            f", and {percent(facts.late_rank.last_share)} of the time that ranks wait is for rank {load.fullest}"
        )
    return Issue("experts get uneven numbers of tokens", evidence,
                 EVEN_EXPERTS, facts.steady_steps, share, gain_s=waited_s, ranks=(load.fullest,) if late else (),
                 about="straggler" if late else "comm")  # fmt: skip


def full_rank_is_late(facts: Facts) -> bool:
    """Whether the rank that all wait for is the one whose experts get most tokens, which it computes longer on."""
    load, late = facts.experts, facts.late_rank
    if load is None or late is None or late.cause not in ("compute", None):
        return False
    return late.rank == load.fullest and load.fullest_share >= EXPERT_IMBALANCE


RULES = (
    Rule("expert_imbalance", "Tokens are routed unevenly to the ranks' experts",
         f"{significant(EXPERT_IMBALANCE)} times the mean of tokens on the fullest rank, in the mean of all-to-alls, "
         f"and {percent(WARN_SHARE)} of the step spent waiting for all-to-alls",
         "a rank with a quarter more tokens computes a quarter longer, and all others wait", FINDING_STEPS,
         "the parts of all-to-alls are equal, or their sizes were not seen", expert_imbalance),
)  # fmt: skip
