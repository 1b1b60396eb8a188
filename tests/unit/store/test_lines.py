"""Lines told apart by how they begin."""

from __future__ import annotations

from ddlprof.store.lines import Lines

PREFIX = b'["s",'


def test_lines_that_begin_so_are_told_from_the_others() -> None:
    text = b'["s",1]\n["c",2]\n\n["s",3]\n["s",4]\n["s"\n["s",\n\xff\xfe\n'
    lines = Lines(text, PREFIX, 100)
    assert lines.begin_so.tolist() == [True, False, False, True, True, False, True, False]
    assert lines.before.tolist() == [0, 1, 1, 1, 2, 3, 3, 4, 4]
    assert [lines.text_of(index) for index in (1, 2, 5, 7)] == ['["c",2]', "", '["s"', "\ufffd\ufffd"]
    assert lines.joined(8) == b'["s",1]\n["s",3]\n["s",4]\n["s",\n'
    assert lines.joined(4) == b'["s",1]\n["s",3]\n'
    assert lines.joined(0) == b""


def test_no_lines() -> None:
    lines = Lines(b"", PREFIX, 100)
    assert len(lines) == 0
    assert lines.before.tolist() == [0]
    assert lines.joined(0) == b""


def test_a_line_that_is_too_long_does_not_begin_so() -> None:
    assert Lines(b'["s",12]\n["s",123]\n', PREFIX, 8).begin_so.tolist() == [True, False]
