"""Interconnect, network, straggler and data classes against the true differences of runs without ddlprof.

Jobs run in the lab: hosts with shaped links on one machine, ranks that sleep instead of computing. What a
class is in truth comes from the script's own clock, by differences between whole runs of torch's own launcher, means
over the ranks. T is the mean step:
- interconnect: T with all ranks in one unshaped host, less T of one rank alone (0 with one rank a host);
- network: T on several hosts, less T in one host (with one rank a host, less T of one rank alone);
- straggler: what a slow rank adds to T, less what it adds to the ranks' own data or computation: nothing where no rank
  is slow;
- data: the script's clock; computation: T of one rank alone less its data, and what was injected.
An error is the difference between the headline mean of one profiled run and the truth, as a share of the step. The
repeatability beside it is the largest difference between repeats of the same unprofiled run, as a share of the step.
Limit: 5 %. Adding a slow rank must move `straggler_s` of the others by what was injected, within 4 %, and neither
`network_s` nor `interconnect_s` by more. Needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import ddlprof
from scripts.bench.jobs import JOBS, Limits, print_table, progress
from scripts.bench.machine import describe
from scripts.lab.hosts import Lab, Link, launchers, leave_in_order, missing

LIMIT, MOVED_LIMIT = 0.05, 0.04
CLASSES = ("interconnect", "network", "straggler", "data", "compute")
INJECTED_MS = {"": 0, "compute": 40, "data": 40}
SHAPE = {
    "ddp": ("--strategy=ddp", "--layers=8", "--width=384", "--bucket-mb=1", "--forward-ms=6", "--backward-ms=12"),
    "ddp with buffers": (
        "--strategy=ddp",
        "--layers=8",
        "--width=384",
        "--bucket-mb=1",
        "--buffer-kb=256",
        "--forward-ms=6",
        "--backward-ms=12",
    ),
    "zero": ("--strategy=zero", "--layers=8", "--width=384", "--bucket-mb=1", "--forward-ms=6", "--backward-ms=12"),
    "fsdp": ("--strategy=fsdp", "--layers=2", "--width=384", "--forward-ms=25", "--backward-ms=50"),
    "fsdp of one layer": ("--strategy=fsdp", "--layers=1", "--width=544", "--forward-ms=50", "--backward-ms=100"),
}
"""Options of the job. As many bytes as two cores move without being what limits them: ranks in one host share the
cores, and FSDP on gloo sends everything three times. Among four processes on two cores a gather or scatter takes 3 to
6 ms however small, among two 0.4: one layer makes half as many of them."""
TRIES = 3
STEPS = 32
RATES = ("200mbit", "400mbit", "1000mbit")


@dataclass(frozen=True)
class Setting:
    """One kind of job. An empty rate is unshaped; `slow`: what the last rank is slow in, or empty."""

    strategy: str
    hosts: int
    ranks: int
    """A host."""
    rate: str = ""
    slow: str = ""

    @property
    def world_size(self) -> int:
        return self.hosts * self.ranks

    @property
    def alone(self) -> Setting:
        """One rank of it."""
        return Setting(self.strategy, 1, 1)

    @property
    def in_one_host(self) -> Setting:
        """All its ranks together."""
        return Setting(self.strategy, 1, self.world_size)

    @property
    def even(self) -> Setting:
        """The setting without its slow rank."""
        return replace(self, slow="")

    def __str__(self) -> str:
        slow = f", slow {self.slow}" if self.slow else ""
        return f"{self.strategy}, {self.hosts} x {self.ranks}, {self.rate or 'unshaped'}{slow}"


@dataclass(frozen=True)
class Times:
    """Means over steps and ranks, by the script's own clock."""

    step_s: float
    data_s: float


def all_settings() -> list[Setting]:
    """The whole table."""
    one, two = (
        (("ddp", "ddp with buffers", "fsdp"), (2, 3), (1,)),
        (("ddp", "fsdp", "fsdp of one layer"), (2, 3), (2,)),
    )
    # With a slow rank beside them, ZeRO's broadcasts hide it or not from run to run: there is no truth to compare with.
    zero = [Setting("zero", hosts, 1, rate) for hosts in (2, 3) for rate in RATES]
    return [Setting(*values) for jobs in (one, two) for values in itertools.product(*jobs, RATES, INJECTED_MS)] + zero


def quick_settings() -> list[Setting]:
    """Under five minutes, and no more ranks than the cores of a small machine."""
    return [
        Setting("ddp", 2, 1, "400mbit"),
        Setting("ddp", 2, 1, "400mbit", "compute"),
        Setting("ddp", 2, 1, "400mbit", "data"),
        Setting("ddp with buffers", 2, 1, "400mbit", "data"),
        Setting("fsdp", 2, 1, "400mbit"),
    ]


def run(setting: Setting, folder: Path, steps: int, profile_into: Path | None = None) -> Times:
    """One run in a lab of its own, tried again if it fails: torch's gloo aborts now and then, also without ddlprof.

    Ends this process if it fails every time.
    """
    for number in range(TRIES):
        truth = Path(tempfile.mkdtemp(dir=folder))
        out = None if profile_into is None else profile_into / f"try-{number}"
        codes = _run_once(setting, truth, steps, out)
        if not any(codes):
            return read_times(truth.glob("rank-*.json"))
        progress(f"{setting} ended with {codes}")
    sys.exit(f"{(truth / 'log').read_text(encoding='utf-8', errors='replace')}\n{setting} failed {TRIES} times")


def _run_once(setting: Setting, truth: Path, steps: int, out: Path | None) -> list[int]:
    """The exit codes of the hosts' launchers."""
    script = [
        str(JOBS / "sleepers.py"), f"--truth={truth}", f"--steps={steps}",
        *SHAPE[setting.strategy],
    ]  # fmt: skip
    if setting.slow:
        script.append(f"--slow-{setting.slow}-ms={INJECTED_MS[setting.slow]}")
    before = ["plain"] if out is None else ["--quiet", "--out", str(out)]
    with Lab(setting.hosts, Link(rate=setting.rate)) as lab, (truth / "log").open("wb") as log:
        commands = launchers(setting.hosts, [setting.ranks], [*before, *script], lab.address(0))
        running = [
            lab.start(host, command, stdout=log.fileno(), stderr=log.fileno(), OMP_NUM_THREADS="1")
            for host, command in enumerate(commands)
        ]
        return [process.wait() for process in running]


def read_times(files: Iterable[Path]) -> Times:
    """Without the first quarter of the steps, the most that ddlprof ever leaves out of so few."""
    step_s, data_s = [], []
    for file in files:
        times = json.loads(file.read_text(encoding="utf-8"))
        steady = slice(len(times["step_s"]) // 4, None)
        step_s += times["step_s"][steady]
        data_s += times["data_s"][steady]
    return Times(statistics.fmean(step_s), statistics.fmean(data_s))


class Truth:
    """Runs without ddlprof, each kind of job as often as asked for and no more."""

    def __init__(self, folder: Path, steps: int, repeats: int) -> None:
        self.folder, self.steps, self.repeats = folder, steps, repeats
        self._runs: dict[Setting, list[Times]] = {}

    def prepare(self, settings: Iterable[Setting]) -> None:
        """Runs what the truth of these settings is made of; repeats lie apart in time, so that drifts show."""
        wanted = dict.fromkeys(part for setting in settings for part in parts(setting))
        for number in range(self.repeats):
            for setting in wanted:
                progress(f"truth {number + 1} of {self.repeats}: {setting}")
                self._runs.setdefault(setting, []).append(run(setting, self.folder, self.steps))

    def mean(self, setting: Setting) -> Times:
        """The mean over the repeats."""
        runs = self._runs[setting]
        return Times(statistics.fmean(r.step_s for r in runs), statistics.fmean(r.data_s for r in runs))

    def repeatability(self, setting: Setting) -> float:
        """The largest difference between repeats of any run that the truth of `setting` is made of."""
        spans = [max(r.step_s for r in runs) - min(r.step_s for r in runs) for runs in self._of_parts(setting)]
        return max(spans) / self.mean(setting).step_s

    def _of_parts(self, setting: Setting) -> list[list[Times]]:
        return [self._runs[part] for part in parts(setting)]

    def classes(self, setting: Setting) -> dict[str, float]:
        """Seconds of each class; they add up to the step."""
        alone, even, own = self.mean(setting.alone), self.mean(setting.even), self.mean(setting)
        inside = alone if setting.ranks == 1 else self.mean(setting.in_one_host)
        more_data_s = own.data_s - even.data_s if setting.slow == "data" else 0.0
        more_compute_s = INJECTED_MS["compute"] / 1000 / setting.world_size if setting.slow == "compute" else 0.0
        return {
            "interconnect": inside.step_s - alone.step_s,
            "network": even.step_s - inside.step_s,
            "straggler": own.step_s - even.step_s - more_data_s - more_compute_s,
            "data": own.data_s,
            "compute": alone.step_s - alone.data_s + more_compute_s,
        }


def parts(setting: Setting) -> list[Setting]:
    """The runs that the truth of a setting is made of."""
    inside = [] if setting.ranks == 1 else [setting.in_one_host]
    return list(dict.fromkeys([setting.alone, *inside, setting.even, setting]))


@dataclass(frozen=True)
class Measured:
    """What ddlprof says of one profiled run, in seconds; NaN for what it could not tell."""

    classes: dict[str, float]
    others_straggler_s: float
    """Mean over the ranks but the last, which is the slow one if any is."""


def measure(setting: Setting, folder: Path, steps: int) -> Measured:
    """One profiled run."""
    directory = Path(tempfile.mkdtemp(dir=folder))
    run(setting, folder, steps, profile_into=directory)
    profile = ddlprof.load(max(directory.iterdir()))  # of the last try
    means = profile.summary()["mean_s"].astype(float)
    others = profile.ranks.query("rank < rank.max()")["straggler_s"].astype(float)
    classes = {name: float(means[name]) for name in CLASSES}
    classes["compute"] += float(means["other"])  # the script's clock does not tell them apart
    return Measured(classes, float(others.mean()))


def check(setting: Setting, truth: Truth, measured: Measured, limits: Limits) -> list[str]:
    """One line of the table."""
    step_s, true = truth.mean(setting).step_s, truth.classes(setting)
    errors = {name: abs(measured.classes[name] - true[name]) / step_s for name in CLASSES}
    for name, error in errors.items():
        limits.at_most(f"{setting}: error of {name} as a share of the step", error, LIMIT)
    worst = max(errors, key=lambda name: (errors[name] != errors[name], errors[name]))  # not a number is worst
    return [
        str(setting),
        f"{1e3 * step_s:.1f}",
        *(f"{1e3 * true[name]:.1f} / {1e3 * measured.classes[name]:.1f}" for name in CLASSES),
        f"{errors[worst]:.1%} ({worst})",
        f"{truth.repeatability(setting):.1%}" if truth.repeats > 1 else "-",
    ]


def check_moved(slow: Setting, truth: Truth, measured: dict[Setting, Measured], limits: Limits) -> list[str]:
    """What adding a slow rank moved: one line of the second table."""
    with_slow, without = measured[slow], measured[slow.even]
    step_s, injected_s = truth.mean(slow).step_s, INJECTED_MS[slow.slow] / 1000
    moved_s = {
        "straggler of the others": with_slow.others_straggler_s - without.others_straggler_s,
        "network": with_slow.classes["network"] - without.classes["network"],
        "interconnect": with_slow.classes["interconnect"] - without.classes["interconnect"],
    }
    wanted_s = {"straggler of the others": injected_s}
    errors = {name: abs(value - wanted_s.get(name, 0.0)) / step_s for name, value in moved_s.items()}
    for name, error in errors.items():
        limits.at_most(f"{slow}: {name} moved wrongly, as a share of the step", error, MOVED_LIMIT)
    return [str(slow), f"{1e3 * injected_s:.0f}", *(f"{1e3 * s:.1f}" for s in moved_s.values()),
            f"{max(errors.values()):.1%}"]  # fmt: skip


def main() -> int:
    """Makes the tables and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a subset that takes under five minutes")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="settings whose name has this in it: 'ddp, [23] x 1'"
    )
    parser.add_argument("--slow-at", choices=RATES, help="slow ranks at this rate only (default: at every rate)")
    parser.add_argument("--repeats", type=int, help="of each unprofiled run (default: 3, with --quick 1)")
    args = parser.parse_args()
    reason = missing()
    if reason:
        sys.exit(f"network: {reason}")
    leave_in_order()
    settings = [
        s
        for s in (quick_settings() if args.quick else all_settings())
        if re.search(args.only, str(s)) and not (s.slow and args.slow_at and s.rate != args.slow_at)
    ]
    print(describe())
    limits = Limits()
    with tempfile.TemporaryDirectory() as name:
        truth = Truth(Path(name), STEPS, args.repeats or (1 if args.quick else 3))
        truth.prepare(settings)
        measured = {}
        for setting in settings:
            progress(f"ddlprof: {setting}")
            measured[setting] = measure(setting, Path(name), STEPS)
        rows = [check(setting, truth, measured[setting], limits) for setting in settings]
        moved = [check_moved(s, truth, measured, limits) for s in settings if s.slow and s.even in measured]
    print_table(
        ["job: strategy, hosts x ranks, rate", "step ms", *(f"{c} ms, truth / ddlprof" for c in CLASSES),
         "worst error", "repeatability"],
        rows,
    )  # fmt: skip
    print_table(
        ["a slow rank is added", "injected ms", "straggler of the others, ms more", "network, ms more",
         "interconnect, ms more", "worst error"],
        moved,
    )  # fmt: skip
    return limits.exit_code()


if __name__ == "__main__":
    sys.exit(main())
