"""A flood of log lines: some are written, none is forgotten."""

import logging

from broker.loglines import LINES_PER_S, TEMPLATES_MAX, FloodGate, shortened


def record(template: str, at: float, args: tuple = ("peer",), line: int = 1) -> logging.LogRecord:
    made = logging.LogRecord("headgate", logging.WARNING, __file__, line, template, args, None)
    made.created = at
    return made


def test_the_rest_of_a_second_is_told_in_the_next():
    gate = FloodGate()
    passed = [gate.filter(record("refused %s", 100 + n / 1000)) for n in range(250)]
    assert passed == [True] * LINES_PER_S + [False] * (250 - LINES_PER_S)
    later = record("refused %s", 101.5)
    assert gate.filter(later)
    assert later.getMessage() == f"refused peer (and {250 - LINES_PER_S} more of this kind)"
    quiet = record("refused %s", 103)
    assert gate.filter(quiet)
    assert quiet.getMessage() == "refused peer"


def test_an_object_without_a_readable_text_is_let_through_like_any_other():
    class Unreadable:
        def __str__(self):
            raise ValueError("no text")

    gate = FloodGate()
    assert gate.filter(record(Unreadable(), 100))
    for _ in range(LINES_PER_S):
        gate.filter(record(Unreadable(), 100, ()))
    gate.filter(record(Unreadable(), 100, ()))
    later = record(Unreadable(), 102, ())
    assert gate.filter(later)
    assert "Unreadable, whose text cannot be read" in later.getMessage()


def test_kinds_do_not_hide_each_other():
    gate = FloodGate()
    for n in range(100):
        gate.filter(record("refused %s", 100 + n / 1000))
    assert gate.filter(record("lost %s", 100.2))


def test_a_clock_that_steps_back_opens_the_gate():
    gate = FloodGate()
    for _ in range(50):
        gate.filter(record("refused %s", 100))
    assert gate.filter(record("refused %s", 40))


def test_templates_are_bounded():
    gate = FloodGate()
    for n in range(3 * TEMPLATES_MAX):
        gate.filter(record(f"template {n} %s", 100))
    assert len(gate._seen) <= TEMPLATES_MAX


def test_texts_without_arguments_are_of_a_kind_by_where_they_come_from():
    """asyncio puts its texts together before it logs them, with the address of each object."""
    gate = FloodGate()
    passed = [gate.filter(record(f"Fatal error\nprotocol: <{n:#x}>", 100, ())) for n in range(50)]
    assert passed == [True] * LINES_PER_S + [False] * (50 - LINES_PER_S)
    assert gate.filter(record("Fatal error", 100, (), line=2))
    later = record("100 % of <0x5>", 102, ())
    assert gate.filter(later)
    assert later.getMessage() == f"100 % of <0x5> (and {50 - LINES_PER_S} more of this kind)"


def test_a_long_text_loses_its_middle():
    text = shortened("begin" + "x" * 10_000 + "end", 100)
    assert len(text) == 100
    assert (text[:5], text[-3:]) == ("begin", "end")
    assert shortened("short", 100) == "short"
