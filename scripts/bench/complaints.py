"""The score board of docs/diagnosis.md: which complaints of real users a card answers with the cause and the cure.

`python -m scripts.bench.complaints` runs every script of `scripts/lab/complaints`, and of each `--folder`, under
`ddlprof run`, first with its fault and then cured, and judges what the report says by the patterns in `complaints.csv`.
A script that has no line there is run and its words are printed, for a human to judge. With `--burn 2`, two processes
compute beside it. `--keep` names a folder for the runs: one that it holds already is judged anew and not run again.

The cause is named if the finding that the verdict acts on, or one of the next three, which a card shows too, speaks of
it; the cure if that finding proposes it. Harmful is a card that acts on another cause, or proposes what makes it worse.
A script that says that its fault is absent, such as a type that this processor lacks, is not judged, nor one that
asks for a package that is not installed.

The forms of a pair differ if all of their own clocks say so, by more than `SAME`: those of the runs and, where these
are close, of `ALONE` runs of each form without ddlprof, in turn.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ddlprof.report.run.text import FINDINGS
from scripts.bench.jobs import burning, print_table, progress
from scripts.bench.machine import describe

OWN = Path(__file__).parents[1] / "lab" / "complaints"
EXPECTED = Path(__file__).with_suffix(".csv")
FAULT, CURED = "fault", "cured"
STEP, JOB, END, TRAINS = "step", "job", "end", "trains"
NOT_RUN = re.compile(r"^(h0\d_|_)|^own_clock$")
"""What is no complaint: faults of ddlprof itself, and what the scripts share."""
MACHINE = re.compile(r"shared_machine|host_contention")
"""Findings that may come first beside other work, as they are true there."""
TIMEOUT_S = 240
TWICE = 2.0
"""A gain is at most this many times what the cure reaches, or larger than it by `ROUNDING` of the step."""
ROUNDING = 0.05
SAME = 0.05
"""Forms whose own clocks differ by this share or less do not differ here."""
DOUBTFUL = 0.2
"""Forms whose clocks differ by less in the runs are run again."""
ALONE = 2
MISSING = re.compile(r"^ModuleNotFoundError: No module named '(\S+)'", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """A script, and what its card has to say. The patterns are looked for without regard to case."""

    path: Path
    ranks: int = 1
    where: str = STEP
    """What the fault takes most of, each `step` or the `job`; `end`: it ends the job, and the whole card is judged;
    `trains`: what is trained is wrong, and the cured script is not faster."""
    cause: str = ""
    """A pattern of the finding: its rule, title and evidence. Empty: a human has to judge."""
    cure: str = ""
    """A pattern of what the finding proposes."""
    harm: str = ""
    """A pattern of advice that makes it worse; empty: none is known."""
    cured: str | None = None
    """What makes the script the cured one, as `NAME=value` of the environment; empty: its argument; None: nothing."""

    @property
    def name(self) -> str:
        """The name of the script."""
        return self.path.stem


@dataclass(frozen=True)
class Run:
    """A finished run: the folder of its run directory, its log, and what its own clock says."""

    folder: Path

    @cached_property
    def report(self) -> dict[str, Any]:
        """The report as JSON; empty if there is none."""
        done = _ddlprof("report", str(self.folder / "run"), "--format", "json")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    @cached_property
    def card(self) -> str:
        """The card."""
        return _ddlprof("report", str(self.folder / "run")).stdout

    @cached_property
    def own(self) -> dict[str, Any]:
        """What the script's own clock says: of the slowest rank, if each has one; empty if it says nothing. A library
        that is not installed counts as an absent fault."""
        log = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
        said = [json.loads(text) for text in re.findall(r"^OWN (\{.*\})$", log, re.MULTILINE)]
        lacks = {"absent": each[1]} if (each := MISSING.search(log)) else {}
        ranks = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("truth.*"))]
        return max([*said, *ranks], key=lambda each: each["step_ms"], default=lacks)

    def seconds(self, where: str) -> float | None:
        """The time of a step: of the typical one, or of the whole job divided by its steps."""
        own = self.own
        if not own.get("steps"):
            return None
        if where == JOB and "wall_s" in own:
            return float(own["wall_s"]) / int(own["steps"])
        return float(own["step_ms"]) / 1e3

    @property
    def shown(self) -> list[dict[str, Any]]:
        """The findings that a card shows, that of the verdict first."""
        rule = (self.report.get("verdict") or {}).get("rule")
        found: list[dict[str, Any]] = self.report.get("findings", [])
        acted_on = [each for each in found if each["rule"] == rule]
        return acted_on + [each for each in found if each["rule"] != rule][:FINDINGS]


@dataclass(frozen=True)
class Judged:
    """What was right of the card of a fault. None: not known, or a human has to tell."""

    case: Case
    cause: bool | None
    cure: bool | None
    said: float | None
    """The gain that the finding promises, as a share of the step or of the job."""
    reached: float | None
    """The gain that the cured script has by its own clock."""
    harmful: bool | None
    faster: str | None
    """The form that is faster by all own clocks; empty: they do not differ here."""
    told: str
    """The form that `ddlprof compare` says to be faster; empty: none."""
    verdict: str
    quiet: bool | None
    """Whether the cause is not named for the cured script."""

    @property
    def compared(self) -> bool | None:
        """Whether `ddlprof compare` names the faster form; None where none is."""
        return self.told == self.faster if self.faster else None

    @property
    def too_much(self) -> bool:
        """Whether the promised gain is more than twice what the cure reaches."""
        if self.said is None or self.reached is None:
            return False
        return self.said > max(TWICE * self.reached, self.reached + ROUNDING)


def main() -> int:
    """Runs and judges all scripts, and prints the table."""
    options = _options()
    cases = [
        case for folder in (OWN, *options.folder) for case in cases_of(folder) if re.search(options.only, case.name)
    ]
    print(describe())
    print(f"\n{len(cases)} scripts, beside {options.burn} busy processes.")
    with tempfile.TemporaryDirectory() as folder:
        keep = (options.keep or Path(folder)) / f"burn-{options.burn}"
        with burning(options.burn):
            runs = [(case, {form: run(case, form, keep, options.burn) for form in _forms(case)}) for case in cases]
            judged = [judge(case, of[FAULT], of.get(CURED), _again(case, keep, options.burn)) for case, of in runs]
        _print(judged)
        for case, of in runs:
            _print_words(case, of[FAULT])
        for each in judged:
            if each.verdict:
                print(f"\ncompare {each.case.name}: {each.verdict}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", action="append", type=Path, default=[], help="a folder with more scripts")
    parser.add_argument("--burn", type=int, default=0, help="the number of processes that compute beside them")
    parser.add_argument("--only", default="", help="a pattern of names")
    parser.add_argument("--keep", type=Path, help="where the runs are kept")
    return parser.parse_args()


def cases_of(folder: Path, expected: Path = EXPECTED) -> Iterator[Case]:
    """The scripts of a folder, each with what is expected of it."""
    with expected.open(encoding="utf-8", newline="") as file:
        lines = {line["script"]: line for line in csv.DictReader(file)}
    for path in sorted(folder.glob("*.py")):
        if NOT_RUN.search(path.stem):
            continue
        line = lines.get(path.stem, {})
        text = path.read_text(encoding="utf-8")
        distributed = "torch.distributed" in text
        yield Case(
            path,
            ranks=int(line.get("ranks") or (2 if distributed else 1)),
            where=line.get("where") or STEP,
            cause=line.get("cause") or "",
            cure=line.get("cure") or "",
            harm=line.get("harm") or "",
            cured=line.get("cured") or ("" if re.search(r"fault\|cured|FAULT|CURED", text) else None),
        )


def _forms(case: Case) -> tuple[str, ...]:
    return (FAULT,) if case.cured is None else (FAULT, CURED)


def _again(case: Case, keep: Path, burn: int) -> Callable[[], Iterator[tuple[Run, Run]]]:
    """What runs both forms in turn, without ddlprof."""
    return lambda: ((run(case, FAULT, keep, burn, n), run(case, CURED, keep, burn, n)) for n in range(1, ALONE + 1))


def run(case: Case, form: str, keep: Path, burn: int = 0, alone: int = 0) -> Run:
    """Runs a script under ddlprof, or with `alone`, a number, without; unless its run is there already. Beside other
    work it has one thread: with more, all cards act on threads that this work holds up, which is then the cause."""
    folder = keep / (f"{case.name}-{form}" + (f"-alone-{alone}" if alone else ""))
    if (folder / "log").exists():
        return Run(folder)
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
    folder.mkdir(parents=True)
    began = time.monotonic()
    words = ["-m", "ddlprof", "run", "--quiet", "--out", str(folder / "run")]
    if alone:
        words = ["-m", "torch.distributed.run", "--standalone"] if case.ranks > 1 else []
    if case.ranks > 1:
        words += ["--nproc-per-node", str(case.ranks)]
    words += [str(case.path.resolve()), *([] if case.cured else [form])]
    name, _, value = (case.cured or "").partition("=")
    truth = {"TRUTH": str(folder / "truth")} | ({"OMP_NUM_THREADS": "1"} if burn else {})
    more = truth | ({name: value} if name and form == CURED else {})
    with tempfile.TemporaryDirectory() as scratch:
        done = _python(*words, cwd=scratch, **more)
    (folder / "log").write_text(done.stdout + done.stderr, encoding="utf-8")
    progress(f"{case.name} {form}{' alone' if alone else ''}: {time.monotonic() - began:.0f} s, code {done.returncode}")
    return Run(folder)


def _ddlprof(*words: str) -> subprocess.CompletedProcess[str]:
    return _python("-m", "ddlprof", *words)


def _python(*words: str, cwd: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    try:
        return subprocess.run(
            command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, errors="replace",
            timeout=TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", "timed out\n")


def judge(case: Case, fault: Run, cured: Run | None, again: Callable[[], Iterable[tuple[Run, Run]]] = tuple) -> Judged:
    """What the card of the fault got right, and that of the cured script. `again`: runs both forms once more."""
    if case.where == END:
        cause, cure, harm = (bool(of and re.search(of, fault.card)) for of in (case.cause, case.cure, case.harm))
        return Judged(case, cause, cause and cure, None, None, harm, None, "", "", None)
    named = next((each for each in fault.shown if speaks_of(each, case.cause)), None)
    known = bool(case.cause) and not fault.own.get("absent")
    reached, faster, told, verdict = None, None, "", ""
    if cured is not None and case.where != TRAINS and not fault.own.get("absent"):
        reached, verdict = gained(case, fault, cured), _verdict(fault, cured)
        told = _told(verdict, case.where)
        faster = _faster([] if reached is None else [reached])
        if reached is not None and abs(reached) < DOUBTFUL:
            alone = (gained(case, *pair) for pair in again())
            faster = _faster([reached, *(gain for gain in alone if gain is not None)])
    return Judged(
        case,
        cause=named is not None if known else None,
        cure=named is not None and bool(re.search(case.cure, named["next"], re.IGNORECASE)) if known else None,
        said=gain_of(named, fault.report, case.where) if named else None,
        reached=reached,
        harmful=harmful(case, fault) if known else None,
        faster=faster,
        told=told,
        verdict=verdict,
        quiet=not any(speaks_of(each, case.cause) for each in cured.shown) if known and cured else None,
    )


def gained(case: Case, fault: Run, cured: Run) -> float | None:
    """What the cured script gains by its own clock, as a share of what the fault takes."""
    before, after = fault.seconds(case.where), cured.seconds(case.where)
    return 1 - after / before if before and after else None


def _faster(gains: Sequence[float]) -> str | None:
    """The form that is faster by all of these gains of the cured one; empty if none is, None without gains."""
    if not gains:
        return None
    return CURED if min(gains) > SAME else FAULT if max(gains) < -SAME else ""


def _told(verdict: str, where: str) -> str:
    """The form that a comparison says to be faster there."""
    for form, word in ((CURED, "faster"), (FAULT, "slower")):
        if re.search(rf"% {word} in the {where}|in the {where} .*is {word}", verdict):
            return form
    return ""


def speaks_of(finding: dict[str, Any], pattern: str) -> bool:
    """Whether a finding names this cause."""
    words = " ".join(finding[each] for each in ("rule", "title", "evidence", "next"))
    return bool(pattern and re.search(pattern, words, re.IGNORECASE))


def harmful(case: Case, fault: Run) -> bool:
    """Whether the card acts on another cause first, or proposes what makes it worse."""
    shown = [each for each in fault.shown if speaks_of(each, case.cause) or not MACHINE.search(each["rule"])]
    verdict = fault.report.get("verdict") or {}
    advice = [verdict.get("next") or "", *(each["next"] for each in shown)]
    if case.harm and any(re.search(case.harm, each, re.IGNORECASE) for each in advice):
        return True
    return bool(verdict.get("rule") and shown) and not speaks_of(shown[0], case.cause)


def gain_of(finding: dict[str, Any], report: dict[str, Any], where: str) -> float | None:
    """The gain that a finding promises, as a share of the step or of the job; None: it promises none, as where it says
    that a part of the share is saved."""
    job, step_s = report.get("job") or {}, (report["times"]["step"] or {}).get("mean_s")
    share: float | None = finding["share"]
    if finding["gain_s"] is None:
        promised = finding["of"] == JOB == where and not finding.get("saves_part")
        return share if promised else None
    if where == JOB and job.get("steps"):
        return float(finding["gain_s"]) * int(job["steps"]) / float(job["wall_s"])
    return float(finding["gain_s"]) / float(step_s) if step_s else None


def _verdict(fault: Run, cured: Run) -> str:
    done = _ddlprof("compare", str(fault.folder / "run"), str(cured.folder / "run"))
    found = re.search(r"^Verdict +(.*)$", done.stdout, re.MULTILINE)
    return found[1] if found else done.stderr.strip()


def _print(judged: Sequence[Judged]) -> None:
    def word(value: bool | None) -> str:
        return "?" if value is None else "yes" if value else "no"

    def share(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.0f} %"

    rows = [
        [
            each.case.name, each.case.where, word(each.cause), word(each.cure), share(each.said), share(each.reached),
            "too much" if each.too_much else "", "HARM" if each.harmful else "",
            "alike" if each.faster == "" else word(each.compared), word(each.quiet),
        ]
        for each in judged
    ]  # fmt: skip
    print_table(
        ["script", "of the", "cause", "cure", "gain said", "reached", "gain", "harmful", "compare", "cured: silent"],
        rows,
    )
    known = [each for each in judged if each.cause is not None]
    print(f"\nOf {len(known)} complaints, {sum(each.case.ranks > 1 for each in known)} of them of several ranks:")
    pairs = [each for each in judged if each.faster is not None]
    differ, alike = [each for each in pairs if each.faster], [each for each in pairs if not each.faster]
    for what, number, of in (
        ("causes named", sum(bool(each.cause) for each in known), len(known)),
        ("cures right", sum(bool(each.cure) for each in known), len(known)),
        ("harmful", sum(bool(each.harmful) for each in known), len(known)),
        ("gains more than twice what the cure reaches", sum(each.too_much for each in known), len(known)),
        ("cured scripts told that they suffer from it", sum(each.quiet is False for each in known), len(known)),
        ("pairs whose forms do not differ here by their own clocks", len(alike), len(pairs)),
        ("of the others, compare names the faster form", sum(bool(each.compared) for each in differ), len(differ)),
        ("of those that do not differ, compare names none", sum(not each.told for each in alike), len(alike)),
    ):
        print(f"- {what}: {number} of {of}")


def _print_words(case: Case, fault: Run) -> None:
    """What the card says, for a human to read."""
    verdict = fault.report.get("verdict") or {}
    print(f"\n{case.name}: {case.path.read_text(encoding='utf-8').splitlines()[0].lstrip('# ')}")
    if case.where == END:
        print("\n".join(f"  {line}" for line in fault.card.splitlines()[:8]))
        return
    print(f"  {verdict.get('name')} ({verdict.get('rule')}): {verdict.get('why')}; next: {verdict.get('next')}")
    for each in fault.shown:
        print(f"  - {each['rule']}: {each['title']} ({each['evidence']}): {each['next']}")


if __name__ == "__main__":
    sys.exit(main())
