"""A flood of log lines: some are written, none is forgotten."""

import logging

from broker.node.flood import LINES_PER_S, TEMPLATES_MAX, FloodGate


def record(template: str, at: float) -> logging.LogRecord:
    made = logging.LogRecord("headgate", logging.WARNING, __file__, 1, template, ("peer",), None)
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
