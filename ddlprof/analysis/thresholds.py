"""The thresholds of every verdict and of every line that names somebody or something, each with its reason."""

from __future__ import annotations

# What bounds the step.
WARN_SHARE = 0.10  # a stall below a tenth of the step is not worth a day of anybody's work
CRITICAL_SHARE = 0.20  # from a fifth on it is worth more than most changes to the model
CRITICAL_STEPS = 20  # fewer steps cannot carry a strong word
VERDICT_STEPS = 3  # fewer steps carry no word at all
CAUSE_SHARE = 0.80  # a cause is named only where it explains most of the stall
STANDARD_ERRORS = 2.0  # a mean nearer to zero than this may be chance; so may a share nearer to its limit

# Steps that are no part of the job's rhythm.
OUTLIER_FACTOR = 3.0  # times the median: bursts of loaders and waits for ranks stay below, or are more than a few
OUTLIER_STEPS = 2  # one or two may be the machine's doing; three are a habit of the job, and count
OUTLIER_SHARE = 0.02  # more of them than this are the job's usual steps, and not worth a line of their own
OUTLIER_OF_STEPS = 20  # among fewer steps nobody knows what is usual
OUTLIER_MOVES_SHARE = 0.05  # of the mean: less is no reason for a line

# The rank that the others wait for.
LATE_RANK_SHARE = 0.50  # of the steps, even at the lower end of the interval: more often than all others together
LATE_RANK_STEPS = 10  # fewer are an accident
LATE_EXCESS_SHARE = 0.02  # of the step: a smaller difference between ranks explains no waiting
LATE_STRAGGLER_SHARE = 0.02  # of the step: less waiting is not worth a name
LATE_OF_TWO_SHARE = WARN_SHARE  # one of two ranks is always last: there it takes a stall that is worth a warning

# Source lines of `other`.
LINE_SAMPLES = 10  # with fewer, one sample moves a share by more than a tenth
LINE_SHARE = 1 / 3  # the lower end of the interval is above: then no two other lines can be as large

# What the counters of the host contradict.
THREAD_BUSY_SHARE = 0.6  # of one thread a rank: with less, even a single one would mostly wait
BUSY_CPU_PERCENT = 85.0  # above, processes of one machine take turns
FREE_CPU_PERCENT = 60.0  # below, more threads of a rank would find cores
