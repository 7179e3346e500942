"""Names belong to the first key that used them."""

from broker.nfp.records import Pinned
from broker.nfp.server import pins as module
from broker.nfp.server.pins import Pins
from tests.unit.nfp.server.scripted import RecordingJournal


def made(in_use=lambda name: False):
    journal = RecordingJournal()
    return Pins(journal, in_use), journal


def test_the_first_key_owns_a_name():
    pins, journal = made()
    assert pins.fits("w1", "K")
    pins.pin("w1", "K")
    pins.pin("w1", "L")
    assert pins.fits("w1", "K")
    assert not pins.fits("w1", "L")
    assert not pins.fits("w1", "")
    assert pins.violations == 2
    assert journal.ops == [Pinned("w1", "K")]


def test_without_a_key_nothing_is_pinned():
    pins, journal = made()
    pins.pin("w1", "")
    assert pins.fits("w1", "K")
    assert journal.ops == []


def test_pins_survive_and_can_be_taken_off():
    pins, journal = made()
    pins.restore([Pinned("w1", "K"), Pinned("gone", "")])
    assert len(pins) == 1
    assert not pins.fits("w1", "L")
    assert pins.unpin("w1")
    assert not pins.unpin("w1")
    assert pins.fits("w1", "L")
    assert journal.ops == [Pinned("w1", "")]


def test_a_reserved_name_is_nobody_elses():
    pins, _ = made()
    pins.reserve("fss")
    assert not pins.fits("fss", "K")
    pins.release("fss")
    assert pins.fits("fss", "K")


def test_inventing_names_forgets_the_oldest_that_is_away(monkeypatch):
    monkeypatch.setattr(module, "PINS_MAX", 3)
    pins, journal = made(lambda name: name == "n0")
    for number in range(4):
        pins.pin(f"n{number}", "K")
    assert len(pins) == 3
    assert pins.key_of("n0") == "K"
    assert pins.key_of("n1") == ""
    assert journal.ops[3] == Pinned("n1", "")
