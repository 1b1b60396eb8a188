"""What a team's own runs taught: corrections of the shipped coefficients, the file they are in, and their use.

`ddlprof.extensions.learn` makes them. A correction is the prior of a job, so what was measured of the job itself counts
after it. `Predictor(workload, learned=read_learned(path))` predicts with them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np

from ddlprof.base.reading import Interval, Length, ReadingError, decode, parse_json, read_text
from ddlprof.base.units import count
from ddlprof.recommender import coefficients as of_everything
from ddlprof.recommender.communication import coefficients as communication
from ddlprof.recommender.communication.coefficients import MachineLinks, Prior
from ddlprof.recommender.communication.exposed import PARAMETERS
from ddlprof.recommender.compute.correction import ComputeCorrection, Text
from ddlprof.recommender.errors import Checked, PredictionError
from ddlprof.recommender.target import Machine

FORMAT = 1
_Correction = TypeVar("_Correction", ComputeCorrection, "LinkCorrection")
MAX_FILE_BYTES = 4 * 2**20
_SHIPPED = ("communication/coefficients.json", "compute/coefficients.json", "compute/operators.json")
Number = Annotated[float, Interval(-1e3, 1e3)]
Positive = Annotated[float, Interval(1e-6, 1e3)]
Count = Annotated[int, Interval(0, 10**9)]
Parameters = Annotated[tuple[Number, ...], Length(len(PARAMETERS), len(PARAMETERS))]
Spreads = Annotated[tuple[Positive, ...], Length(len(PARAMETERS), len(PARAMETERS))]


@dataclass(frozen=True)
class LinkCorrection:
    """What the jobs on one kind of machine have in common beyond the shipped prior, inside and between machines."""

    gpu_model: Text
    link: Text | None
    """The kind of link between the GPUs of a machine: pcie or nvlink."""
    shift: Parameters
    """Added to the mean of the prior, in the order of `PARAMETERS`."""
    sd: Spreads
    """The standard deviations of the prior from now on."""
    widen: Annotated[float, Interval(0.01, 100)]
    """The factor on the intervals of jobs of which no placement was measured."""
    most_gpus: Count
    """The most GPUs in a machine, and the most machines, in the runs."""
    most_nodes: Count
    jobs: Count
    where: Text = ""
    """The file that the correction is from, for people."""

    @property
    def subject(self) -> str:
        """What it is for, in words."""
        return link_subject((self.gpu_model, self.link))

    def applied_to(self, found: MachineLinks) -> MachineLinks:
        """The coefficients of a machine of this kind, with the correction."""
        told = f" ({self.where})" if self.where else ""
        sentence = f"links: learned from {count(self.jobs, 'job')} of yours on such machines{told}"
        return replace(
            found,
            prior=self.prior(found.prior),
            fitted_gpus=max(found.fitted_gpus, self.most_gpus),
            fitted_nodes=max(found.fitted_nodes, self.most_nodes),
            assumed=(*found.assumed, sentence),
        )

    def prior(self, shipped: Prior) -> Prior:
        """The prior of a job, with the correction."""
        mean = tuple(float(number) for number in np.array(shipped.mean) + np.array(self.shift))
        widen, floor = ((self.widen * pair[0], pair[1]) for pair in (shipped.widen, shipped.floor))
        return replace(shipped, mean=mean, sd=self.sd, widen=widen, floor=floor)


def link_subject(kind: tuple[str, str | None]) -> str:
    """A kind of machine in words."""
    return f"{kind[0]}, {kind[1] or 'link unknown'}"


@dataclass(frozen=True)
class CorrectedLinks(communication.CommunicationCoefficients):
    """Coefficients of communication with the corrections by kind of machine."""

    corrections: tuple[LinkCorrection, ...] = ()

    def of(self, machine: Machine) -> MachineLinks:
        """As in `Coefficients.of`; unchanged for kinds of machines that none of the runs had."""
        found = super().of(machine)
        mine = [each for each in self.corrections if (each.gpu_model, each.link) == machine.kind]
        return mine[0].applied_to(found) if mine else found


@dataclass(frozen=True)
class LearnedError:
    """How far predictions of jobs left out were off: mean over the jobs of their mean relative error."""

    what: Text
    """computation, communication or step."""
    of: Text
    """The GPU and precision, or the kind of machine; empty: all."""
    jobs: Count
    points: Count
    """Measured steps."""
    before: Annotated[float, Interval(0)]
    """With the shipped coefficients, as a share of the measured time."""
    after: Annotated[float, Interval(0)]
    used: bool
    """Whether the correction is used: only where it made predictions better."""


@dataclass(frozen=True)
class LearnedSource:
    """A job that was learned from. Its name is a number, as in a shared run."""

    name: Text
    runs: Count
    gpu_models: tuple[Text, ...]


@dataclass(frozen=True)
class Learned(Checked):
    """The content of the file of `ddlprof learn`."""

    format: int
    as_of: Text
    """The date on which it was learned."""
    shipped: Text
    """`shipped_version` of the coefficients that are corrected."""
    sources: tuple[LearnedSource, ...] = ()
    errors: tuple[LearnedError, ...] = ()
    compute: tuple[ComputeCorrection, ...] = ()
    links: tuple[LinkCorrection, ...] = ()

    @property
    def sentence(self) -> str:
        """A sentence on where the corrections are from."""
        told = [row.where for row in self.compute] + [row.where for row in self.links]
        where = next((f" ({name})" for name in told if name), "")
        return f"predicted with what {count(len(self.sources), 'job')} of yours taught{where}"

    def applied_to(self, coefficients: of_everything.Coefficients) -> of_everything.Coefficients:
        """The coefficients with the corrections, for a `Predictor`."""
        links = CorrectedLinks(**{**vars(coefficients.communication), "corrections": self.links})
        return replace(
            coefficients, compute=replace(coefficients.compute, corrections=self.compute), communication=links
        )


@lru_cache(maxsize=1)
def shipped_version() -> str:
    """A short name of the coefficients in the package, which changes whenever one of them does."""
    found = hashlib.sha256()
    for name in _SHIPPED:
        found.update(files("ddlprof.recommender").joinpath(name).read_bytes())
    return found.hexdigest()[:12]


def learned_text(learned: Learned) -> str:
    """The file as JSON."""
    content = asdict(learned)
    for correction in (*content["compute"], *content["links"]):
        del correction["where"]
    return json.dumps({"parameters": PARAMETERS, **content}, indent=1, allow_nan=False) + "\n"


def read_learned(path: Path) -> Learned:
    """Reads a file of `ddlprof learn`. Raises `PredictionError`, one line, for what is no such file of this version."""
    try:
        content = parse_json(read_text(path, MAX_FILE_BYTES))
        if not isinstance(content, dict) or "format" not in content:
            raise ReadingError("is no file of ddlprof learn: it has no format")
        if content["format"] != FORMAT:
            raise ReadingError(f"has format {str(content['format'])[:20]}, and this version reads {FORMAT}")
        if content.get("parameters") != list(PARAMETERS) or content.get("shipped") != shipped_version():
            raise ReadingError("was learned with the coefficients of another version of ddlprof")
        found = decode(Learned, content)
    except (ReadingError, PredictionError) as error:
        raise PredictionError(f"{path}: {error}; make one with: ddlprof learn DIR -o FILE.json") from None
    return replace(found, compute=_told(found.compute, path), links=_told(found.links, path))


def _told(corrections: tuple[_Correction, ...], path: Path) -> tuple[_Correction, ...]:
    return tuple(replace(each, where=str(path)) for each in corrections)
