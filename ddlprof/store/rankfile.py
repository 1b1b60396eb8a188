"""Decodes the two files of one rank: `rank-N.jsonl` and `rank-N.steps`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from ddlprof.base.units import count
from ddlprof.model.blocks import STEP_FIELDS, Block, BlockStream
from ddlprof.model.dimensions import is_known
from ddlprof.model.health import COUNTERS
from ddlprof.model.records import LEFT_OUT, MISSING, SPANS, Aggregate, Note, RankHeader
from ddlprof.store.collectives import pack
from ddlprof.store.flushes import Undamaged, undamaged_parts
from ddlprof.store.lines import (
    MAX_GROUPS,
    Head,
    Parsed,
    compute_samples_of,
    context_of,
    overhead_of,
    places_of,
    samples_of,
    shapes_of,
    sort_lines,
)
from ddlprof.store.numbers import LARGEST
from ddlprof.store.parts import steps_name
from ddlprof.store.step_blocks import StepArrays, as_aggregates, merged, step_arrays, sums_of
from ddlprof.store.tables import CLASS_FIELDS, OPTIONAL_FIELDS, IntArray, RankData, StepTable

LARGEST_OF_STEP = 2**50
"""The most that a step may take or count; as nanoseconds, 13 days."""
LARGEST_SUM = 2**56
"""The largest sum of one rank's numbers; as nanoseconds, two years."""
_SUM_FIELDS = tuple(f.name for f in fields(Aggregate))
_CLASS_COLUMNS = [STEP_FIELDS.index(name) for name in CLASS_FIELDS]
_SUMMED_COLUMNS = [STEP_FIELDS.index(name) for name in _SUM_FIELDS if name in STEP_FIELDS and name != "flags"]
_STEP_COLUMN = STEP_FIELDS.index("step_ns")
_LEAST = np.array([MISSING if name in OPTIONAL_FIELDS | {"signature"} else 0 for name in STEP_FIELDS])


def decode_rank(head: Head, text: bytes, blocks: bytes, name: str) -> RankData:
    """Decodes the files of one rank. `name`: for messages. Raises ValueError if a column lacks."""
    stream = BlockStream(head.layouts)
    found, _ = stream.take(blocks)
    rank = rank_of_blocks(head, text, found, name)
    lost = stream.lost + (rank.complete and stream.behind > 0)  # only a rank that did not end has a torn block
    if lost:
        rank.notes.append(Note(steps_name(name), f"{count(lost, 'damaged part')} left out"))
    return rank


def rank_of_blocks(head: Head, text: bytes, found: Sequence[Block], name: str) -> RankData:
    """Decodes the lines of one rank, the header among them, and these blocks. Raises ValueError if a column lacks."""
    undamaged = undamaged_parts(text, head.columns)
    parsed = sort_lines(undamaged, head.columns)
    arrays = step_arrays(found, head.layouts)
    sound = sound_steps(arrays.steps)
    sums = sums_of(found, head.layouts)
    sound_sums = _addable(sums)
    rank = rank_of(head.header, parsed, arrays.only(sound), sums[sound_sums])
    if made_up := int(np.count_nonzero(~sound)) + int(np.count_nonzero(~sound_sums)):
        rank.notes.append(Note(steps_name(name), f"{count(made_up, 'step')} {LEFT_OUT}"))
    rank.notes += notes_of_damage(parsed, undamaged, name)
    return rank


def rank_of(header: RankHeader, parsed: Parsed, arrays: StepArrays, sums: IntArray) -> RankData:
    """The rank with what is in its lines and in its steps."""
    rank = RankData(header, StepTable(arrays.steps))
    last_step = int(arrays.steps[-1, 0]) if len(arrays.steps) else MISSING
    rank.aggregates = as_aggregates(merged(sums, last_step))
    rank.context = context_of(parsed)
    rank.windows = parsed.of("w")
    rank.calibration = parsed.of("b")
    rank.clock_readings = parsed.of("t")
    rank.overhead = overhead_of(parsed)
    rank.loader_costs = parsed.of("d")
    rank.drops = list({(drop.source, drop.many): drop for drop in parsed.of("u")}.values())  # they are cumulative
    rank.training_loss = parsed.of("v")
    rank.spans = [span for span in parsed.of("p") if span.what in SPANS]
    rank.pipelines, rank.routed = parsed.of("h"), parsed.of("x")
    rank.checkpoint_files = parsed.of("r")
    rank.strides = parsed.of("i")
    rank.amounts = parsed.of("o")
    rank.phases = sorted(parsed.of("P"), key=lambda phase: phase.step)
    rank.health = [reading for reading in parsed.of("y") if reading.counter in COUNTERS]
    rank.groups = {facts.group: facts for facts in parsed.of("m")[-MAX_GROUPS:] if is_known(facts)}
    rank.end = next(reversed(parsed.of("e")), None)
    rank.collector = parsed.of("O")
    rank.recompiled = [each.reason for each in parsed.of("A")]
    rank.graph_breaks = parsed.of("B")
    rank.first_batches = next((each.digest for each in parsed.of("F")), None)
    rank.samples, rank.places = samples_of(parsed), places_of(parsed)
    rank.compute_samples = compute_samples_of(parsed)
    packed, rank.untold = pack(arrays, shapes_of(parsed))
    rank.expand = packed.expand
    rank.notes = list(parsed.of("n"))
    return rank


def sound_steps(steps: IntArray) -> NDArray[np.bool_]:
    """A mask of the plausible steps: no number is below MISSING, the classes add up, and all steps can be added up."""
    classes = np.maximum(steps[:, _CLASS_COLUMNS], 0).sum(axis=1)
    known = ((steps >= _LEAST) & (steps < LARGEST)).all(axis=1)
    small = (steps[:, _SUMMED_COLUMNS] < LARGEST_OF_STEP).all(axis=1)
    sound = np.asarray(known & small & (classes == steps[:, _STEP_COLUMN]))
    sound[sound] = _small_sums(steps[sound][:, _SUMMED_COLUMNS])
    return sound


def _addable(sums: IntArray) -> NDArray[np.bool_]:
    least = np.array([MISSING if name in OPTIONAL_FIELDS else 0 for name in _SUM_FIELDS])
    sound = np.asarray(((sums >= least) & (sums < LARGEST_SUM)).all(axis=1))
    sound[sound] = _small_sums(sums[sound][:, 1:-1])
    return sound


def _small_sums(values: IntArray) -> NDArray[np.bool_]:
    sums = np.cumsum(np.maximum(values, 0), axis=0, dtype=np.float64)
    return np.asarray((sums < LARGEST_SUM).all(axis=1))


def notes_of_damage(parsed: Parsed, undamaged: Undamaged, name: str) -> list[Note]:
    """What is said of damage in the lines."""
    notes = []
    if parsed.damaged:
        notes.append(Note(name, f"{count(parsed.damaged, 'damaged line')} left out"))
    if undamaged.lost_parts:
        parts = count(undamaged.lost_parts, "damaged part")
        notes.append(Note(name, f"{parts} left out, {count(undamaged.lost_lines, 'line')} in all"))
    return notes
