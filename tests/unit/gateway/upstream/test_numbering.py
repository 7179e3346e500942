import pytest

from broker.wire.event_history import NUMBERS
from gateway.upstream import numbering as module
from gateway.upstream.numbering import Numbering
from tests.tables import for_each
from tests.unit.gateway.events.audience import event
from tests.unit.gateway.upstream.recorder import Recorder


def following(*, certain, epoch="one", last=10):
    """A numbering that has seen event ``last``, and what its centre is told from now on."""
    centre = Recorder()
    doubts = []
    numbering = Numbering(centre, lambda: doubts.append(True))
    numbering.certain = certain
    numbering.received([event(last)])
    numbering.settle(epoch, last)
    assert centre.told == [("joined", True, None), ("published", [last])]
    centre.told.clear()
    return numbering, centre, doubts


def events(*numbers):
    return [event(number) for number in numbers]


def test_nothing_is_handed_on_before_it_is_settled():
    centre = Recorder()
    numbering = Numbering(centre, lambda: None)
    numbering.received(events(5))
    numbering.received(events(6, 7))
    assert (centre.told, numbering.in_doubt) == ([], True)
    numbering.settle("one", 6)
    assert centre.told == [("joined", True, None), ("published", [5, 6, 7])]
    assert not numbering.in_doubt
    assert centre.history.covers("one", 4)
    assert not centre.history.covers("one", 3)


def test_the_number_of_the_own_event_is_the_baseline_where_nothing_came():
    centre = Recorder()
    numbering = Numbering(centre, lambda: None)
    numbering.settle("one", 6)
    assert centre.history.covers("one", 6)
    numbering.received(events(7))
    assert centre.told == [("joined", True, None), ("published", [7])]


def test_only_the_unbroken_stretch_of_a_new_numbering_counts():
    centre = Recorder()
    numbering = Numbering(centre, lambda: None)
    numbering.received(events(90, 91, 1, 2, 4, 5, 6))
    numbering.settle("new", 5)
    assert centre.told == [("joined", True, None), ("published", [4, 5, 6])]
    assert centre.history.covers("new", 3)
    assert not centre.history.covers("new", 2)


@for_each("certain", [True, False])
def test_the_next_number_is_handed_on_and_remembered(certain):
    numbering, centre, doubts = following(certain=certain)
    numbering.received(events(11, 12))
    numbering.received(events(13))
    assert centre.told == [("published", [11, 12]), ("published", [13])]
    assert [m.sequence for m in centre.history.since(10, 99)] == [11, 12, 13]
    assert doubts == []


@for_each("certain", [True, False])
def test_a_repetition_is_dropped_and_counted(certain):
    numbering, centre, doubts = following(certain=certain)
    numbering.received(events(11, 11, 12))
    assert centre.told == [("published", [11]), ("published", [12])]
    assert (numbering.duplicates, doubts) == (1, [])


def test_an_old_number_on_a_certain_link_is_a_repetition():
    numbering, centre, _ = following(certain=True)
    numbering.received(events(3, 11))
    assert centre.told == [("published", [11])]
    assert numbering.duplicates == 1


def test_an_event_without_a_number_is_dropped():
    numbering, centre, _ = following(certain=True)
    numbering.received(events(0, 11))
    assert centre.told == [("published", [11])]


def test_a_gap_on_a_certain_link_is_told_where_it_is():
    numbering, centre, doubts = following(certain=True)
    numbering.received(events(11, 15, 16))
    assert centre.told == [("published", [11]), ("joined", False, 3), ("published", [15, 16])]
    assert (numbering.missed, doubts) == (3, [])
    assert not centre.history.covers("one", 11)
    assert centre.history.covers("one", 14)


def test_a_gap_elsewhere_is_a_doubt_until_rank_0_was_asked():
    numbering, centre, doubts = following(certain=False)
    numbering.received(events(11, 15, 16))
    numbering.received(events(17))
    assert (centre.told, doubts) == ([("published", [11])], [True])
    numbering.settle("one", 17)
    assert centre.told[1:] == [("joined", False, 3), ("published", [15, 16, 17])]
    assert numbering.missed == 3
    assert not centre.history.covers("one", 11)
    assert centre.history.covers("one", 14)
    numbering.received(events(18))
    assert centre.told[-1] == ("published", [18])


@for_each("first", [1, 12, 500])
def test_rank_0_started_again_shows_in_any_number(first):
    numbering, centre, doubts = following(certain=False)
    numbering.received(events(first))
    assert doubts == [True]
    numbering.received(events(first + 1))
    numbering.settle("two", first + 1)
    assert centre.told == [("joined", True, None), ("published", [first, first + 1])]
    assert not centre.history.covers("one", 10)
    assert centre.history.covers("two", first - 1)


def test_a_doubt_that_was_none_loses_nothing():
    numbering, centre, _ = following(certain=False)
    numbering.doubt()
    numbering.doubt()
    numbering.received(events(11, 12))
    numbering.settle("one", 12)
    assert centre.told == [("joined", False, 0), ("published", [11, 12])]
    assert centre.history.covers("one", 10)


def test_events_that_came_again_while_in_doubt_are_dropped():
    numbering, centre, _ = following(certain=False)
    numbering.doubt()
    numbering.received(events(9, 10, 11))
    numbering.settle("one", 11)
    assert centre.told == [("joined", False, 0), ("published", [11])]
    assert numbering.duplicates == 2


def test_a_gap_in_what_was_held_is_told_where_it_is():
    numbering, centre, _ = following(certain=False)
    numbering.doubt()
    numbering.received(events(12, 14))
    numbering.settle("one", 14)
    assert centre.told == [
        ("joined", False, 1), ("published", [12]), ("joined", False, 1), ("published", [14]),
    ]  # fmt: skip
    assert numbering.missed == 2
    assert not numbering.certain


def test_the_history_bridges_two_links_of_one_epoch():
    _, centre, _ = following(certain=True)
    second = Numbering(centre, lambda: None)
    second.certain = True
    second.received(events(11, 12))
    second.settle("one", 12)
    assert centre.told == [("joined", False, 0), ("published", [11, 12])]
    assert centre.history.covers("one", 9)


def test_what_was_missed_between_two_links_is_counted():
    _, centre, _ = following(certain=True)
    second = Numbering(centre, lambda: None)
    second.received(events(14, 15))
    second.settle("one", 15)
    assert centre.told == [("joined", False, 3), ("published", [14, 15])]
    assert not centre.history.covers("one", 10)
    assert centre.history.covers("one", 13)


def test_missed_is_known_even_if_the_own_event_did_not_come():
    _, centre, _ = following(certain=True)
    second = Numbering(centre, lambda: None)
    second.settle("one", 12)
    assert centre.told == [("joined", False, 2)]
    assert centre.history.covers("one", 12)


def test_numbers_wrap():
    numbering, centre, _ = following(certain=True, last=NUMBERS - 1)
    numbering.received(events(NUMBERS, 1, 3))
    assert centre.told == [("published", [NUMBERS, 1]), ("joined", False, 1), ("published", [3])]
    second = Numbering(centre, lambda: None)
    second.received(events(1, 2))
    second.settle("two", 2)
    assert centre.history.covers("two", 0)


@pytest.mark.parametrize(("bound", "value"), [("HELD_MAX", 4), ("HELD_MAX_BYTES", 4 * event(1).size)])
def test_what_is_held_is_bounded(monkeypatch, bound, value):
    monkeypatch.setattr(module, bound, value)
    numbering, centre, _ = following(certain=False)
    numbering.doubt()
    for number in range(11, 21):
        numbering.received(events(number))
    numbering.settle("one", 20)
    assert centre.told == [("joined", False, 6), ("published", [17, 18, 19, 20])]
