"""Listeners that are dropped: few at once, many in portions, and none of a process keeps those of another waiting."""

import pytest

from broker.identity import Credentials
from broker.oslo.proxy.registration import DROPS_MAX, ListenerDrops, ServerLink
from broker.oslo.records import Opening


class Turns:
    """Stands for a reactor whose turns are the test's."""

    def __init__(self):
        self.turns = 0
        self.soon = []

    def call_soon(self, call):
        self.soon.append(call)

    def turn(self):
        self.turns += 1
        calls, self.soon = self.soon, []
        for call in calls:
            call()


class Rig(Turns):
    def __init__(self):
        super().__init__()
        self.dropped, self.finished = [], []
        self.drops = ListenerDrops(self, self.drop, lambda *told: self.finished.append(told))

    def drop(self, link, listener):
        del link.dropping[listener]
        self.dropped.append(listener)


@pytest.fixture
def rig():
    return Rig()


def link_with(count, name="l"):
    link = ServerLink(name.encode(), "localhost:0:0:1", Credentials(0, 1))
    link.listeners = {f"{name}{number}": Opening(f"{name}{number}", ()) for number in range(count)}
    return link


def test_few_are_dropped_at_once_and_then_it_is_finished(rig):
    link = link_with(3)
    rig.drops.put(link, ["waited"])
    assert (rig.dropped, rig.finished, link.listeners) == (["l0", "l1", "l2"], [(link, ["waited"])], {})
    assert not rig.soon


def test_many_are_dropped_in_portions(rig):
    link = link_with(3 * DROPS_MAX + 1)
    rig.drops.put(link, [])
    counts = [len(rig.dropped)]
    while rig.soon:
        assert not rig.finished
        rig.turn()
        counts.append(len(rig.dropped))
    assert counts == [DROPS_MAX, 2 * DROPS_MAX, 3 * DROPS_MAX, 3 * DROPS_MAX + 1]
    assert rig.finished == [(link, [])]


def test_one_turn_has_one_portion_however_many_links_end_in_it(rig):
    for number in range(10):
        rig.drops.put(link_with(20, f"{number}-"), [])
    assert len(rig.dropped) == DROPS_MAX
    for _ in range(3):
        rig.turn()
    assert (len(rig.dropped), len(rig.finished)) == (200, 10)


def test_a_small_link_does_not_wait_for_a_large_one(rig):
    rig.drops.put(link_with(1000, "large"), [])
    small = link_with(2, "small")
    rig.drops.put(small, [])
    rig.turn()
    assert rig.finished == [(small, [])]


def test_who_lapses_and_then_ends_is_finished_once_all_are_dropped(rig):
    link = link_with(DROPS_MAX + 10)
    rig.drops.put(link)
    link.listeners = {"new": Opening("new", ())}
    rig.drops.put(link, [])
    while rig.soon:
        rig.turn()
    assert sorted(rig.dropped) == sorted({*rig.dropped})
    assert (len(rig.dropped), rig.finished, link.dropping) == (DROPS_MAX + 11, [(link, [])], {})


def test_what_has_moved_to_another_link_is_not_dropped(rig):
    link = link_with(DROPS_MAX + 1)
    rig.drops.put(link, [])
    (moved,) = link.dropping
    rig.drop(link, moved)
    rig.turn()
    assert rig.dropped.count(moved) == 1
    assert rig.finished == [(link, [])]


def test_an_error_costs_only_its_listener(rig):
    link = link_with(3)

    def fails_once(link, listener):
        rig.drop(link, listener)
        if listener == "l1":
            raise ValueError(listener)

    rig.drops = ListenerDrops(rig, fails_once, lambda *told: rig.finished.append(told))
    with pytest.raises(ValueError, match="l1"):
        rig.drops.put(link, [])
    rig.turn()
    assert (rig.dropped, rig.finished) == (["l0", "l1", "l2"], [(link, [])])


def test_after_the_end_nothing_is_dropped(rig):
    rig.drops.put(link_with(1000), [])
    rig.drops.clear()
    rig.turn()
    assert (len(rig.dropped), rig.finished, rig.soon) == (DROPS_MAX, [], [])
