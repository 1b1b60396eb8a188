"""The sentences on what a prediction rests on."""

from __future__ import annotations

from ddlprof.recommender.communication.coefficients import MachineLinks
from ddlprof.recommender.communication.job_parameters import JobFit
from ddlprof.recommender.measured_steps import MeasuredSteps
from ddlprof.recommender.strategy import Strategy
from ddlprof.recommender.workload import Workload

NO_GPU_MEASURED = "no GPU was measured: nothing of the measured computation and communication is used"
"""The sentence in `Estimate.basis` where the estimate rests on counts of the model compute."""

_DOUBTED = 0.3
"""The doubt of measured placements (`JobFit.doubt`) from which on it is said; beforehand it is 0.2."""


def basis_of_measurements(workload: Workload, measured: MeasuredSteps) -> list[str]:
    """What is said where a job was measured, but on no GPU."""
    if not measured.rows or any(machine.gpu for _, machine in measured.rows):
        return []
    step = workload.step
    return [NO_GPU_MEASURED, *(["the operators of the run are used"] if step and step.has_forward else [])]


def communication_basis(
    workload: Workload, fit: JobFit, links: MachineLinks, strategy: Strategy, grad_accum: int
) -> list[str]:
    """What the communication of a step on several GPUs rests on."""
    basis = list(links.assumed)
    if fit.observations:
        basis.append(f"communication: learned from {len(fit.observations)} measured placements of this job")
        if fit.doubt > _DOUBTED:
            basis.append(
                "the measured placements differ from the form of the step by more than its noise: they may be of a"
                f" cluster whose steps scatter (probability {fit.doubt:.0%}), so the interval is wider; measure again,"
                " or another placement"
            )
    else:
        basis.append("communication: from the counts of the model, as of other jobs")
    if workload.parameter_tensors is None:
        basis.append(f"parameter tensors not known: taken as {workload.tensors:.0f}")
    if grad_accum > 1:
        often = "in each of" if strategy.deepspeed else "once for"
        gathered = ", parameters gathered in each" if strategy.gathered_factor else ""
        basis.append(f"gradients reduced {often} {grad_accum} forward passes{gathered}")
    if strategy.basis:
        basis.append(strategy.basis)
    return basis
