"""The thresholds of all verdicts and of all lines that name a rank, a line or a machine, each with its reason."""

from __future__ import annotations

# What bounds the step.
WARN_SHARE = 0.10  # a stall below a tenth of the step is not worth a day of anybody's work
CRITICAL_SHARE = 0.20  # from a fifth on it is worth more than most changes to the model
BOUND_SHARE = 0.30  # below about a third of the step, where more of it is computing, a stall bounds nothing
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
LATE_RANK_SHARE = 0.50  # of the waited time, even at the lower end of the interval: more than for all others together
LATE_RANK_STEPS = 10  # that the waited time is spread over: fewer are an accident
LATE_EXCESS_SHARE = 0.02  # of the step: a smaller difference between ranks explains no waiting
LATE_STRAGGLER_SHARE = 0.02  # of the step: less waiting is not worth a name
LATE_EXPLAINED_SHARE = 0.5  # of the waiting, by what the rank does longer: else it is last by the jitter of all
LATE_OF_TWO_SHARE = WARN_SHARE  # one of two ranks is always last: there it takes a stall that is worth a warning
PHASES = 3  # rows of late steps: more of them are a habit, not phases
PHASE_STEPS = 10  # in a row: fewer are an accident
PHASE_GAP_SHARE = 0.02  # of the run: a shorter pause ends no phase
PHASE_LATE_SHARE = 0.8  # of the waiting is in the phases ...
PHASE_OF_RUN_SHARE = 0.6  # ... and no more of the steps: else the rank is late all the time

# Source lines of `other`.
LINE_SAMPLES = 10  # with fewer, one sample moves a share by more than a tenth
LINE_CURE_SHARE = 2 / 3  # with less, it may be the line before: a look gets in where a call lets the lock go
LINE_SHARE = 1 / 3  # the lower end of the interval is above: then no two other lines can be as large

# What the counters of the host contradict.
THREAD_BUSY_SHARE = 0.6  # of one thread a rank: with less, even a single one would mostly wait
STARVED_SHARE = WARN_SHARE  # of the time spent waiting for a processor: as much as any stall that is worth a warning
STARVED_CAUSE_SHARE = 0.5  # of what a late rank takes longer: then waiting for a processor is most of it
OTHER_CORES = 0.25  # of a rank's: less is what any machine does beside a job
BUSY_CPU_PERCENT = 85.0  # above, processes of one machine take turns
FREE_CPU_PERCENT = 60.0  # below, more threads of a rank would find cores

# Findings. A finding is graded as a verdict is: WARN_SHARE warns, CRITICAL_SHARE with CRITICAL_STEPS is critical.
FINDING_STEPS = 10  # fewer steps cannot carry advice that somebody spends an afternoon on
LINE_OF_STEP_SHARE = 0.05  # a single line of a script is changed in minutes, so half of what else is worth a warning
CALM_SHARE = 0.5  # of the steps: if the queue stays full through most of them, the workers are fast enough on average
CALM_ROUNDS = 2.0  # times all batches that workers hold ready: then they have refilled the queue, not emptied it
BURSTS = 3  # fewer are no habit of the loader
HANDED_SHARE = 0.5  # of the wait: then handing batches over takes longer than all else that the wait consists of
MANY_TENSORS = 32  # in a batch: a worker takes 0.1 to 0.4 ms for each, a batch of fewer is handed over in few ms
HUGE_BATCH_BYTES = 64 * 2**20  # copied into shared memory at some GB/s: less takes few ms
READ_FACTOR, READ_BYTES = 16.0, 2**20  # of what a sample has: more than pictures lose by decoding and resizing
HANDOVER_S = 1e-3  # what a worker takes to hand a batch over, so that a shorter wait only becomes another one
ONE_SAMPLE_S = 50e-6  # indexing and collating one that is in memory takes 5 to 20 µs, transforming it more than this
MOST_WORKERS = 32  # more of them cost memory and start-up that nobody has measured
MOST_PREFETCHED = 32  # batches held ready by each worker: more is memory that nobody has measured
BUCKET_BYTES = 25 * 2**20  # DDP's default: large enough to use a link, small enough to begin before backward ends
SMALL_BUCKET_BYTES = 2**20  # below, latency is most of what an all-reduce takes on any network
SMALL_BUCKETS = 8  # in a step, and four times what the default would need: with fewer, latency adds up to little
HUGE_BUCKET_BYTES = 2 * BUCKET_BYTES  # a smaller bucket at the end is not worth cutting up
HIDDEN_SHARE = 0.2  # of a bucket's transfer: less overlap than that is none
LAUNCH_US = 50.0  # a kernel takes 3 to 10 us to launch; where they run longer, launching is not what keeps them apart
LAG_SHARE = 0.1  # of computing: a device that is never further behind its host waits for it, and not the other way
LAUNCHED_KERNELS = 50  # in a step: with fewer, something else than launching keeps the device waiting
WINDOW_STEPS = 3  # in profiler windows: one or two may be unusual steps
FUSED_MODELS = 8  # a usual sweep: what more of them would gain, steps of one model do not tell
FUSED_MEMORY_SHARE = 0.8  # of the device: models that train as one take about as much as so many runs
FUSED_GAIN = 1.2  # as `ddlprof fuse`, which predicts it from steps: less may be a loss
FREE_MEMORY_SHARE = 0.5  # of the device: then twice the batch fits for certain
ENOUGH_HISTORY = 10  # steps and gradients that L-BFGS keeps; 3 to 20 are usual
CPU_FLOPS_PER_BYTE = 4.0  # of a core; more cores do more, so that products are said to take no less than they do
PENALISED_SHARE = 0.5  # of the weights that an update changes, which go into a term of the loss
FLOPS_PER_BYTE = 200.0  # of 16 bits on tensor cores, by data sheets: V100 139, A100 153 to 201, H100 295, L4 403
ANOMALY_SHARE = 0.5  # of the looks while it computes: fewer are a search for one NaN that has ended
ANOMALY_NODE_S = 30e-6  # an operator takes 30 to 50 us longer in anomaly mode, for its stack of Python
ARITHMETIC_FLOPS = 1e9  # a second: one core reaches ten times as much; with less, launching operators takes the time
SUBNORMAL_TIMES = 2.0  # of the time of other products: less may be other work on the machine
THREADED_OPERATOR_S = 200e-6  # dividing an operator among threads costs 5 to 20 us
LOOPED_TENSORS = 50  # with fewer, the loop around their operators takes little of an update
LOOPED_TENSOR_S = 500e-6  # for a parameter: ten operators and more, each launched from Python in 5 to 20 us
SMALL_OPERATOR_S = 200e-6  # forward and backward of a node of the graph: with more, computing is not launching
LAUNCHED_OPERATOR_S = 40e-6  # the same, of which starting its operators is the most
FEW_SAMPLES = 4  # from there on, twice the batch is a question of how it learns
EVALUATED_FEWER = 4  # as many times the samples of a forward as an evaluation takes: its batches were not chosen
MICRO_BATCHES = 4  # fewer backward passes may be those of a generator and its critic
LOOPED_NODES = 200  # in a graph: with fewer, no loop of small operators is worth a word
SEEN_SAMPLES = 2  # looks at a kind of work that are no chance; they do not tell how long it takes
LOOP_SAMPLES = 3  # the graph proves that there is a loop: the samples need only tell which one it is
LOOP_OF_LOOPS_SHARE = 2 / 3  # of the samples in loops: then no other one is half as large
NODES_OF_A_LAYER = 25  # of the graph: layers of any kind have 3 to 15, one called again and again has many times that
NEW_ITERATORS_SHARE = 0.5  # of the batches: with two batches an epoch it is a small data set
SKIPPED_BATCHES = 10  # before the first step: a filter lets most batches pass, and several losses share few
NEW_OPTIMIZERS_SHARE = 0.9  # of the updates: with half of them, each round of an inner loop has one of its own
FEW_ROWS = 10  # times as many rows as are looked up: then a sparse gradient costs less for certain
FORWARD_ALONE = 2.0  # times backward: the passes of a network take half or a third of theirs
SPARSE_SLOWER = 50  # at most, the product of a sparse matrix for each of its numbers, as against a dense one
RECOMPILATIONS = 3  # two are the sizes of a usual batch and of the last one of an epoch
SLOWED_STEPS = 60  # ten in each part, so that a median is none of a few
SLOWED_FALLS = 1  # of the 15 pairs of parts, as on a busy machine; by chance in one of 100 runs
SLOWED_TIMES = 2.0  # where memory does not grow as well
SLOWED_SHARE = 0.2  # of the first part: less is what machines drift
UNEVEN_CORRELATION = 0.5  # of a rank's samples with its own time: then the samples explain more than all else together
UNEVEN_SAMPLES_SHARE = 0.02  # spread of the ranks' samples over their mean: less cannot make a rank late
MORE_WORK = 1.05  # times the work that was counted: less is no reason to predict from anything else
UNEVEN_STAGE_SHARE = 0.05  # of what the other stages take: less is not a layer of twenty
UNEVEN_STAGE_GAIN = 0.02  # of the step: as much as names a late rank
EXPERT_IMBALANCE = 1.25  # times the mean of tokens: routers with a balancing loss stay below
SLOW_HOST_FACTOR = 1.1  # times the other hosts' ranks: as much as warns
FULL_CPU_PERCENT = 95.0  # of all cores: nothing is free for one more thread
FIRST_BATCH_FACTOR = 2.0  # times the making of one: then most of the wait for an epoch's first batch is something else
TURN_SHARE = 0.5  # of ranks that work at one time, the last waits for nobody; what one does after its turn hides a part
JOB_EVENTS = 2  # one evaluation or checkpoint is no habit
GROWTH_READINGS = 12  # two in each part
GROWTH_PARTS = 6  # memory has to grow from each part of the steps to the next ...
GROWTH_STEADINESS = 0.6  # ... by this share of the mean growth: filling a cache and reaching a plateau falls below
GROWTH_BYTES = 16 * 2**20  # less is what allocators do
GROWTH_SHARE = 0.03  # of the level: less is what allocators do to large heaps
GROWTH_SURE = 3.0  # standard errors of Kendall's test: growth by chance in one of 700 runs at most
COPIED_BYTES = 36 * 2**20  # for each worker: one copies 10 MB of torch's own objects, a full collection in it 34 MB
KEPT_GRAPHS = 3  # of the graphs of the first 4 steps: one or two may be kept for a look
OUT_OF_MEMORY_H = (6.0, 72.0, 720.0)  # critical, warning, not worth a word: a night, a long weekend, a month
THROTTLED_READINGS = 5  # single readings are spikes
THROTTLED_SHARE = 0.1  # of the readings: as much as warns
THROTTLED_CLOCK = 0.95  # of the clock otherwise: boost clocks move by less
THROTTLED_COMPUTE = 1.05  # times computing otherwise: without it the lower clock cost nothing
HOT_C = 85.0  # where the driver does not tell why clocks are low: data-centre GPUs slow down from here on
MOVED_SHARE = 0.5  # of a late rank's lateness: a counter that moved in less of it explains less than half
MOVED_CONTRAST = 2.0  # times the lateness, or the moving, where the counter does not move: less is what moves anyway
MOVED_STEPS = LATE_RANK_STEPS  # late steps in which it moved, and steps in which it did not: fewer are an accident

# The curve of the loss.
LOSS_VALUES = 60  # fewer make too few bins to hold a third of them out
LOSS_BINS = 40  # as many as a curve with three parameters needs several times over; more of them are noisier
LOSS_HELD_OUT = 1 / 3  # of the updates: foretelling half as long again as was seen
LOSS_ERROR = 0.05  # of what the loss fell: a judgement; no trainings were measured to calibrate it
LOSS_FORETOLD = 10.0  # times the updates seen: what ends later falls along a line, and nobody sees where it ends
LOSS_DROP_SURE = 3.0  # standard errors: less is noise of the batches
LOSS_RISE_SHARE = 0.3  # of the fall: more is a cycle, or a training that diverges
NUMBERS_BYTES = 1024  # of a collective: losses, counts and decisions; parameters of any model are more
UNUSED_LOOKS = 4  # iterations in which DDP found no unused parameter: fewer may have missed a control flow
