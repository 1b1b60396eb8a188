"""The table of classes, and what is held against it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields

import pytest

from ddlprof.base.typed import optional_fields
from ddlprof.model.annotations import SharedAs, annotated_with
from ddlprof.model.classes import MEANINGS, OWN, RECORDED, STALLS, TABLE, TIMES
from ddlprof.model.records import Aggregate, StepRow
from ddlprof.recommender import Estimate, Measurement, StepTimes
from ddlprof.recommender.estimate import CARRIED, CLASSES


def test_names_are_there_once() -> None:
    assert len(set(TIMES)) == len(TIMES)


def test_a_step_and_a_sum_of_steps_record_what_the_table_says() -> None:
    none_of_them = "start_ns", "device_lag_ns"
    times = [f.name for f in fields(StepRow) if f.name.endswith("_ns") and f.name not in none_of_them]
    assert times == [f"{name}_ns" for name in RECORDED]
    assert {f"{each.name}_ns" for each in TABLE} <= {f.name for f in fields(Aggregate)}


def test_what_can_be_unmeasured_may_be_none() -> None:
    always = {"step", *(each.name for each in TABLE if not each.is_optional)}
    for record in (StepRow, Aggregate):
        has, optional = {f.name for f in fields(record)}, optional_fields(record)
        for name in RECORDED:
            if f"{name}_ns" in has:
                assert (f"{name}_ns" in optional) == (name not in always), (record, name)


def test_every_class_can_be_shared_and_has_a_meaning() -> None:
    """Otherwise the classes of a shared step would not add up to it."""
    for record in (StepRow, Aggregate):
        shared = annotated_with(record, SharedAs)
        assert [f.name for f in fields(record) if f.name.removesuffix("_ns") in RECORDED and f.name not in shared] == []
    assert list(MEANINGS) == list(TIMES)
    assert all(each.meaning for each in TABLE)


def test_the_order_of_stalls_and_causes() -> None:
    assert STALLS == ("data", "h2d", "comm", "interconnect", "network", "straggler", "bubble", "other", "rollout")
    assert OWN == ("compute", "data", "h2d", "other")


def test_a_predicted_step_has_the_classes_of_a_measured_one() -> None:
    measured = [name for each in TABLE for name in (each.part_names if each.adds_up else (each.name,))]
    others = [name for name in measured if name not in ("straggler", "bubble")]  # predicted ranks are all alike
    assert list(CLASSES) == [*others, "bubble"]


def test_what_is_carried_over_can_be_measured() -> None:
    both = {f.name for f in fields(Measurement)} & {f.name for f in fields(StepTimes)}
    assert {f"{name}_s" for name in CARRIED} <= both
    assert len(Measurement(placement=(1,), batch_per_gpu=1, step_s=1.0).elsewhere_s) == 1 + len(CARRIED)


def test_an_estimate_shows_its_times_as_its_own() -> None:
    estimate = Estimate(
        6.0, 5.0, 7.0, StepTimes(**{f"{name}_s": float(i) for i, name in enumerate(CLASSES)}), False, ()
    )
    seconds = [getattr(estimate, f"{name}_s") for name in CLASSES]
    assert seconds == [float(i) for i in range(len(CLASSES))]
    assert estimate.times.largest == CLASSES[-1]
    assert list(estimate.values()) == [
        "step_s", "low_s", "high_s", *(f"{name}_s" for name in CLASSES), "extrapolated", "basis", "phases",
        "memory_gib", "fits_memory", "tokens_per_s", "mfu", "dimensions", "memory_verdict",
        "memory_fit_probability",
    ]  # fmt: skip
    assert "compute_s" in dir(estimate)
    assert copy.deepcopy(estimate) == pickle.loads(pickle.dumps(estimate)) == estimate
    for name in ("compute", "straggler_s"):
        with pytest.raises(AttributeError, match=name):
            getattr(estimate, name)
