"""A record that has the classes of a step as attributes cannot have fields that hide them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ddlprof.recommender.estimate import StepTimes, WithTimes


def test_a_field_with_the_name_of_a_class_is_refused() -> None:
    with pytest.raises(TypeError, match="data_s would hide the class of a step"):

        @dataclass
        class Clashing(WithTimes):
            times: StepTimes
            data_s: float
