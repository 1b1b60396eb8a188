"""Rules about waiting for data: too few workers, short queues, storage, and memory that is not pinned."""

from __future__ import annotations

from math import ceil

from ddlprof.analysis.rules.compute import free_processors
from ddlprof.analysis.rules.facts import Facts
from ddlprof.analysis.rules.line_advice import AT_LINE
from ddlprof.analysis.rules.rule import Issue, Rule
from ddlprof.analysis.sources import SourceShare
from ddlprof.analysis.thresholds import (
    BURSTS,
    BUSY_CPU_PERCENT,
    CALM_SHARE,
    CAUSE_SHARE,
    FINDING_STEPS,
    HANDED_SHARE,
    HANDOVER_S,
    HUGE_BATCH_BYTES,
    LINE_CURE_SHARE,
    LINE_OF_STEP_SHARE,
    MANY_TENSORS,
    MOST_PREFETCHED,
    MOST_WORKERS,
    ONE_SAMPLE_S,
    READ_BYTES,
    READ_FACTOR,
    WARN_SHARE,
)
from ddlprof.base.units import count, either, percent, significant
from ddlprof.model import source_locations

SPLIT = (
    "give each worker its part: in __iter__, info = torch.utils.data.get_worker_info(), and of the samples (or files) "
    "only samples[info.id :: info.num_workers]"
)
"""Advice for an iterable data set that each worker goes through."""


def loader_workers(facts: Facts) -> Issue | None:
    """Finds workers that make batches more slowly than the loop uses them."""
    share = _waits(facts)
    if share is None or _by_storage(facts) or read_beyond(facts) or not workers_are_the_limit(facts):
        return None
    if comes_first(facts) and line_gain_s(facts) is not None:
        return None
    workers, wanted = facts.training.loader_workers, workers_wanted(facts)
    gain_s = _gain(facts, wanted)
    if workers and gain_s is not None and starting_s(facts, wanted) >= gain_s:
        return None
    title = "batches are not ready in time"
    if workers is not None:
        title = "batches are made in the training loop" if workers == 0 else "the loader's workers are too slow"
    evidence = f"the loop waits {facts.mean('data')} a step for its batches{_split(facts)}"
    if facts.loader is not None and facts.samples_per_step:
        seconds = facts.loader.cpu_s * facts.samples_per_step
        evidence += f"; making them takes {facts.scale.time(seconds)} of processor time a step"
    evidence += f", {count(workers, 'worker')}" if workers else ""
    line = facts.data_lines.main
    if line is not None and line_gain_s(facts) is not None:
        evidence += f"; {percent(line.share)} of what they take is at {line.place.text}"
    return Issue(title, evidence, more_workers(facts), facts.steady_steps, share, gain_s=gain_s,
                 about="data")  # fmt: skip


def read_beyond(facts: Facts) -> float | None:
    """How many times more is read for a sample than it has in its batch; None if not much, or it is not counted."""
    read, size = facts.loader.read_bytes if facts.loader else None, facts.training.batch_bytes
    samples = (facts.samples_per_step or 0.0) / (facts.training.micro_batches or 1)
    if not read or not size or not samples or read < READ_BYTES:
        return None
    factor = read * samples / size
    return factor if factor >= READ_FACTOR else None


def made_at(facts: Facts, line: SourceShare) -> str:
    """Advice for the line at which most of the making of batches is spent."""
    known = _work(line) not in source_locations.in_turns() or _in_turns(facts)
    action = AT_LINE.get(_work(line)) if known else None
    action = action or "do it once and keep the result, for whole batches, or before the training"
    return f"{action} ({line.place.text}, {percent(line.share)} of what batches take)"


def _line_is_known(facts: Facts) -> bool:
    """Whether it is known what the line does at which most of the making of batches is spent, and what to do there: it
    takes most of the time, or waits for a lock that others take, too."""
    line = facts.data_lines.main
    if line is None or _work(line) in source_locations.in_turns():
        return _in_turns(facts)
    return _work(line) in AT_LINE and line.share >= LINE_CURE_SHARE


def _in_turns(facts: Facts) -> bool:
    """Whether the line waits for a lock, and several workers or ranks of a machine do."""
    line = facts.data_lines.main
    return line is not None and _work(line) in source_locations.in_turns() and _makers(facts) > 1


def _makers(facts: Facts) -> int:
    """How many processes of a machine make batches."""
    return max(1, facts.training.loader_workers or 0) * facts.ranks_per_node


def _work(line: SourceShare) -> str:
    """What the line does; empty if it is not known."""
    return line.place.what.partition(" ")[2]


def _takes_whole_batches(facts: Facts) -> bool:
    """Whether the data set gives whole batches, or most of what they take is torch's own indexing of whole ones."""
    if facts.training.whole_batches:
        return True
    line = facts.data_lines.main
    return line is not None and line.place.what == source_locations.in_data(source_locations.WHOLE)


def comes_first(facts: Facts) -> bool:
    """Whether the line at which batches are made is better advice than more workers."""
    return _line_is_known(facts) or _gain(facts, workers_wanted(facts)) is None


def line_gain_s(facts: Facts) -> float | None:
    """An upper bound of what a step gains if nothing is left of the line at which batches are made, in seconds.

    None if no line is sure, or the gain is not worth a word.
    """
    step, wait, workers = facts.mean_s("step"), facts.mean_s("data"), facts.training.loader_workers or 0
    line = facts.data_lines.main
    if line is None or step is None or wait is None or _takes_whole_batches(facts):
        return None
    share = min(line.share, 1 - 1 / _makers(facts)) if _in_turns(facts) else line.share  # of what took turns
    gain_s = wait * share
    if workers:
        gain_s = max(0.0, step - max(step - wait, _making_s(facts) * (1 - share) / workers))
    return gain_s if gain_s >= LINE_OF_STEP_SHARE * step else None


def workers_are_the_limit(facts: Facts) -> bool:
    """Whether the loop waits because making batches takes long, not for their order or for handing them over."""
    return handed_s(facts) is None and not _queue_is_short(facts) and not _is_held_up(facts)


def hand_over(facts: Facts) -> Issue | None:
    """Finds workers that take longer to hand batches over than to make them."""
    share, handed = _waits(facts), handed_s(facts)
    action = _hand_less_over(facts)
    if share is None or handed is None or action is None:
        return None
    making, tensors, size = worker_s(facts), facts.training.batch_tensors, facts.training.batch_bytes
    evidence = f"{facts.scale.time(handed)} of {facts.mean('data')} a step pass after the batch is made"
    evidence += f"; making it takes {facts.scale.time(making)} of a worker" if making is not None else ""
    if tensors is not None and size is not None:
        evidence += f"; it is {count(tensors, 'tensor')} with {significant(size / 1e6)} MB"
    return Issue("handing batches over takes longer than making them", evidence, action, facts.steady_steps, share,
                 gain_s=max(0.0, handed - (making or 0.0)), about="data")  # fmt: skip


def _hand_less_over(facts: Facts) -> str | None:
    """Advice for workers whose batches take long to hand over; None if nothing explains that."""
    tensors, size = facts.training.batch_tensors or 0, facts.training.batch_bytes or 0
    making, handed = worker_s(facts), handed_s(facts)
    quick = making is not None and handed is not None and making < (1 - HANDED_SHARE) * handed
    full = (facts.host.cpu_percent or 0.0) >= BUSY_CPU_PERCENT  # then it may be processors that are waited for
    quick &= not full and (handed or 0.0) >= 2 * HANDOVER_S * (facts.training.micro_batches or 1)
    fewer = "fewer tensors a batch: join them in collate_fn (torch.cat, torch.stack), and split them in the loop"
    smaller = "smaller types in collate_fn (uint8, float16), converted in the loop"
    choices = [
        fewer if tensors >= MANY_TENSORS else None,
        smaller if size >= HUGE_BATCH_BYTES else None,
        "batches made in the loop: DataLoader(num_workers=0)" if quick else None,
    ]
    return either(*choices) if any(choices) else None


def handed_s(facts: Facts) -> float | None:
    """Seconds in a step for which the loop waits for batches that are made; None where they are no large part."""
    data, fetch, prep = (facts.mean_s(name) for name in ("data", "data_fetch", "data_prep"))
    if not facts.training.loader_workers or data is None or fetch is None or prep is None:
        return None
    handed = data - fetch - prep
    return handed if handed >= HANDED_SHARE * data else None


def worker_s(facts: Facts) -> float | None:
    """Seconds of one worker for all batches of a step: computing and blocked; None where they were not counted."""
    cost = facts.loader
    if cost is None or cost.blocked_s is None or not facts.samples_per_step:
        return None
    return (cost.cpu_s + cost.blocked_s) * facts.samples_per_step


def prefetch_factor(facts: Facts) -> Issue | None:
    """Finds queues that are too short, with workers that are fast enough on average."""
    share, bursts = _waits(facts), facts.bursts
    if share is None or bursts is None or not _queue_is_short(facts) or not facts.training.prefetch_factor:
        return None
    rest = (facts.mean_s("step") or 0.0) - (facts.mean_s("data") or 0.0)
    batches = bursts.longest_s / max(rest, 1e-9) * (facts.training.micro_batches or 1)
    factor = min(MOST_PREFETCHED, facts.training.prefetch_factor + ceil(batches / (facts.training.loader_workers or 1)))
    evidence = (
        f"the waits come in {bursts.number} bursts of up to {facts.scale.time(bursts.longest_s)}; "
        f"{percent(bursts.calm_share)} of the steps are in long rows that hardly wait"
    )
    action = (
        f"hold more batches ready: DataLoader(prefetch_factor={factor}) in place of {facts.training.prefetch_factor}"
    )
    if factor <= facts.training.prefetch_factor:
        action = "make batches take equally long: split the large ones, or prepare the data beforehand"
    return Issue("waits for data come in bursts", evidence, action, bursts.steps, share,
                 gain_s=facts.mean_s("data"), about="data")  # fmt: skip


def delivery_order(facts: Facts) -> Issue | None:
    """Finds workers that stand still behind one slow batch, as batches are given in order."""
    share, busy, step = _waits(facts), _busy_share(facts), facts.mean_s("step")
    if share is None or busy is None or step is None or not _is_held_up(facts):
        return None
    workers, rest = facts.training.loader_workers or 1, step - (facts.mean_s("data") or 0.0)
    evidence = (
        f"the loop waits {facts.mean('data')} a step, and yet its {count(workers, 'worker')} are busy for "
        f"{percent(busy)} of the time: those that are done wait for the batch before theirs"
    )
    reached = max(rest, busy * step if facts.training.in_order else step * busy * workers / workers_wanted(facts))
    return Issue("a slow batch holds up those behind it", evidence, more_workers(facts), facts.steady_steps, share,
                 gain_s=max(0.0, step - reached), about="data")  # fmt: skip


def storage(facts: Facts) -> Issue | None:
    """Finds a loader that is blocked on storage or network."""
    share = _waits(facts)
    if share is None or not _by_storage(facts) or _queue_is_short(facts) or _is_held_up(facts):
        return None
    if _in_turns(facts):
        return None
    evidence = f"{facts.mean('data_fetch')} of {facts.mean('data')} a step are spent blocked, not computing"
    loader, step_s = facts.loader, facts.mean_s("step")
    if loader is not None and loader.read_bytes and facts.samples_per_step and step_s:
        rate = loader.read_bytes * facts.samples_per_step * facts.world_size / step_s
        evidence += f"; the job reads {significant(rate / 1e6)} MB/s"
    return Issue("the loader waits for storage or network", evidence, more_workers(facts), facts.steady_steps, share,
                 gain_s=_gain(facts, workers_wanted(facts)) or None, about="data")  # fmt: skip


def pinning(facts: Facts) -> Issue | None:
    """Finds copies to the device that computing waits for."""
    share = facts.summary.share("h2d")
    if share is None or share < WARN_SHARE or facts.device == "cpu":
        return None
    pinned = {True: "memory is pinned", False: "memory is not pinned", None: "whether memory is pinned is not known"}
    evidence = (
        f"computing waits {facts.mean('h2d')} a step for copies to the device; {pinned[facts.training.pin_memory]}"
    )
    return Issue("computing waits for copies to the device", evidence, sooner_copies(facts), facts.steady_steps, share,
                 gain_s=facts.mean_s("h2d"), about="h2d")  # fmt: skip


def sooner_copies(facts: Facts) -> str:
    """Advice for copying while the device computes."""
    if facts.training.pin_memory:
        return ".to(device, non_blocking=True), or copy the next batch on a stream of its own while this computes"
    if facts.training.pin_memory is None:
        return "pinned memory (tensor.pin_memory()) and .to(device, non_blocking=True), where they are not used yet"
    return "DataLoader(pin_memory=True) and .to(device, non_blocking=True)"


def more_workers(facts: Facts) -> str:
    """Advice on the number of loader workers, or on other measures if there are no cores for more."""
    if handed_s(facts) is not None:
        unknown = "a run with DataLoader(num_workers=0) tells whether handing batches over is worth it"
        return _hand_less_over(facts) or (free_processors(facts) if facts.starved else unknown)
    if facts.training.repeated_batches:
        return SPLIT
    workers, cores, wanted = facts.training.loader_workers, facts.host.cores_per_rank, workers_wanted(facts)
    if workers == 0 and _short(facts) and _takes_whole_batches(facts):
        return "shuffle the tensors once an epoch and take slices of them: data[order[i : i + batch]]"
    if workers == 0 and _short(facts):
        return (
            "make batches at once, not sample by sample: whole tensors by their indices, or in collate_fn one array "
            "(torch.from_numpy(np.stack(samples)))"
        )
    if facts.starved and not _waiting_workers(facts):
        return "cheaper transforms, or prepare the data beforehand: no core is free for more workers"
    if workers is None:
        return "load the next batch in a worker while the step computes: torch.utils.data.DataLoader(num_workers=...)"
    if workers == 0:
        kept = ", persistent_workers=True" if facts.job is not None and (facts.job.epochs or 0) > 1 else ""
        return f"load in the background: DataLoader(num_workers={wanted}{kept})"
    if _is_held_up(facts) and facts.training.in_order:
        fewer = "DataLoader(in_order=False), where batches may come in another order"
        more = f"{wanted} workers in place of {workers}" if _waiting_workers(facts) else None
        return either(fewer, more, "a copy of the data on a faster disk" if _by_storage(facts) else None)
    more = f"{count(wanted, 'loader worker')} in place of {workers}"
    if _waiting_workers(facts):
        disk = ", or a copy on a faster disk" if _by_storage(facts) else ""
        return f"{more} (they wait, so they need no core each){disk}"
    if cores is not None and workers >= cores:
        fill = "fills" if workers == 1 else "fill"
        full = f"{count(workers, 'loader worker')} already {fill} {count(cores, 'core')} a rank"
        return f"{full}: cheaper transforms, or prepare the data beforehand"
    return more + (f" (there {'is' if cores == 1 else 'are'} {count(cores, 'core')} a rank)" if cores else "")


def workers_wanted(facts: Facts) -> int:
    """The number of workers that make batches as fast as the rest of the step takes, limited by the cores.

    Where it is not counted what they take: with k workers that are always busy, a step's batches take k steps of a
    worker's time; without workers they take the wait itself. Both are upper bounds, so fewer workers may be enough.
    """
    workers, step = facts.training.loader_workers or 0, facts.mean_s("step") or 0.0
    rest = max(step - (facts.mean_s("data") or 0.0), step / MOST_WORKERS, 1e-9)
    wanted = ceil(_making_s(facts) / rest)
    if not _waiting_workers(facts) and facts.host.cores_per_rank is not None:
        wanted = min(wanted, facts.host.cores_per_rank)
    return max(min(wanted, MOST_WORKERS), workers + 1)


def starting_s(facts: Facts, workers: int) -> float:
    """What it takes to start so many workers in place of those there are, in seconds a step; 0 if not known."""
    have, job = facts.training.loader_workers, facts.job
    started = job.parts_s["epoch_start"] if job is not None else None
    if not have or job is None or started is None or not job.steps:
        return 0.0
    return started * (workers - have) / have / job.steps


def _making_s(facts: Facts) -> float:
    """Seconds of one worker for all batches of a step, at most."""
    workers, step = facts.training.loader_workers or 0, facts.mean_s("step") or 0.0
    busy = _busy_share(facts)
    return workers * step * (1.0 if busy is None else busy) if workers else facts.mean_s("data") or 0.0


def _gain(facts: Facts, workers: int) -> float | None:
    """An upper bound of the gain of so many workers, in seconds a step; None if there are no cores for them."""
    have, cores = facts.training.loader_workers, facts.host.cores_per_rank
    step, wait = facts.mean_s("step"), facts.mean_s("data")
    if step is None or wait is None or (facts.starved and not _waiting_workers(facts)):
        return None
    if have is None:
        return wait
    if have == 0 and _short(facts):
        return None
    if have and not _waiting_workers(facts) and cores is not None and have >= cores:
        return None
    least = _making_s(facts) / workers
    if facts.loader is not None and facts.samples_per_step and cores:
        least = max(least, facts.loader.cpu_s * facts.samples_per_step / cores)
    return max(0.0, step - max(step - wait, least) - starting_s(facts, workers))


def _waits(facts: Facts) -> float | None:
    """The share of waits for data; None where they are no reason for more workers or longer queues."""
    share = facts.summary.share("data")
    return share if share is not None and share >= WARN_SHARE and not facts.training.repeated_batches else None


def _by_storage(facts: Facts) -> bool:
    wait, fetch = facts.mean_s("data"), facts.mean_s("data_fetch")
    return bool(wait) and fetch is not None and fetch >= CAUSE_SHARE * (wait or 0.0)


def _waiting_workers(facts: Facts) -> bool:
    """Whether making a batch is waiting for storage or network, so that more workers need no cores."""
    return _by_storage(facts) or _mostly_blocked(facts)


def _mostly_blocked(facts: Facts) -> bool:
    cost = facts.loader
    if cost is None or not cost.blocked_s:
        return False
    return cost.blocked_s >= CAUSE_SHARE * (cost.blocked_s + cost.cpu_s)


def _busy_share(facts: Facts) -> float | None:
    """The share of the time in which a worker makes batches.

    None if it is not counted, or where processors are so busy that workers may wait for one, which is not counted.
    """
    workers, step, making = facts.training.loader_workers, facts.mean_s("step"), worker_s(facts)
    full = (facts.host.cpu_percent or 0.0) >= BUSY_CPU_PERCENT
    if not workers or not step or making is None or (full and not _mostly_blocked(facts)):
        return None
    return min(1.0, making / workers / step)


def _keep_up(facts: Facts) -> bool | None:
    """Whether the workers make batches as fast as the rest of the step uses them, on average; None: not known."""
    busy, step = _busy_share(facts), facts.mean_s("step")
    return None if busy is None or not step else busy * step <= step - (facts.mean_s("data") or 0.0)


def _queue_is_short(facts: Facts) -> bool:
    """Whether longer queues would help: waits come in bursts, and the workers are fast enough on average."""
    return _in_bursts(facts) and _keep_up(facts) is not False and handed_s(facts) is None


def _is_held_up(facts: Facts) -> bool:
    """Whether workers stand still though the loop waits, as one of them is slow and batches are given in order."""
    busy, workers = _busy_share(facts), facts.training.loader_workers or 0
    idle = busy is not None and workers > 1 and busy < CAUSE_SHARE
    ordered = facts.training.in_order is not False
    return idle and ordered and _keep_up(facts) is False and handed_s(facts) is None


def _short(facts: Facts) -> bool:
    """Whether loading is too short for workers to help.

    Handing a batch over would take about as long, or samples are in memory and only their number takes time.
    """
    wait = facts.mean_s("data") or 0.0
    in_memory = not _by_storage(facts) and wait < ONE_SAMPLE_S * (facts.samples_per_step or 0.0)
    return in_memory or wait < HANDOVER_S * (facts.training.micro_batches or 1)


def _in_bursts(facts: Facts) -> bool:
    bursts = facts.bursts
    if bursts is None or bursts.number < BURSTS:
        return False
    return bursts.calm_share >= CALM_SHARE and bursts.calm_wait_share <= 1 - CAUSE_SHARE


def _split(facts: Facts) -> str:
    if facts.mean_s("data_fetch") is None or facts.mean_s("data_prep") is None:
        return ""
    return f" ({facts.mean('data_fetch')} fetching, {facts.mean('data_prep')} preparing)"


_WAITING = f"{percent(WARN_SHARE)} of the step spent waiting for data"
_WORTH = "less is not worth a day of anybody's work"

RULES = (
    Rule("loader_workers", "Workers make batches more slowly than the loop uses them", _WAITING, _WORTH, FINDING_STEPS,
         "waiting for data is not measured, is for storage or comes in bursts, `delivery_order` or `hand_over` speaks, "
         "`data_line` has better advice, `reads_beyond` speaks, or starting more would take as long as they gain",
         loader_workers),
    Rule("prefetch_factor", "Workers are fast enough on average, their queue is too short",
         f"{_WAITING}, in at least {BURSTS} bursts, with {percent(CALM_SHARE)} of the steps in long rows that wait "
         f"less than {percent(1 - CAUSE_SHARE)} of the mean",
         "in a row longer than the queue the workers have kept up, so that more of them would be idle",
         2 * FINDING_STEPS,
         "there are no workers, their prefetch factor is not known, or a batch takes them longer than the loop, on "
         "average", prefetch_factor),
    Rule("delivery_order", "A slow batch holds up those behind it",
         f"{_WAITING}, by two workers or more that are busy for less than {percent(CAUSE_SHARE)} of the time, and "
         "slower than the loop on average",
         "a worker that is done stands still only where its batch has to wait for another", FINDING_STEPS,
         "it is not counted what the workers do, they may wait for processors, batches may come in another order, or "
         "handing them over takes long", delivery_order),
    Rule("hand_over", "Batches take longer to hand over than to make",
         f"{_WAITING}, {percent(HANDED_SHARE)} of it after the batch was made, and {MANY_TENSORS} tensors or "
         f"{HUGE_BATCH_BYTES >> 20} MiB a batch, or processors that are free and a batch made in half that time",
         "more workers hand over no faster, and each tensor is handed over by itself", FINDING_STEPS,
         "there are no workers, or how the wait divides is not measured", hand_over),
    Rule("storage", "The loader is blocked on storage or network", f"{_WAITING}, {percent(CAUSE_SHARE)} of it blocked",
         "a cause is named only where it explains most of the stall", FINDING_STEPS,
         "how the wait divides is not measured, it comes in bursts, or several wait for a lock", storage),
    Rule("pinning", "Computing waits for copies to the device", f"{percent(WARN_SHARE)} of the step", _WORTH,
         FINDING_STEPS, "the job trains on processors, or copies are not measured", pinning),
)  # fmt: skip
