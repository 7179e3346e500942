"""The queue of a peer: bounded, in order, with messages that wait for a commit."""

from broker.nfp.names import Command
from broker.nfp.server.turn import Outbox, QueueLimits, Waiting

USUAL = QueueLimits(1000, 10)


def filled(*entries, limits=USUAL):
    box = Outbox(limits)
    for number, (after, uuid) in enumerate(entries):
        box.put(Waiting(after, uuid, 10, number))
    return box


def leave(box, committed):
    return list(box.due(committed))


def test_what_waits_for_a_commit_holds_back_what_is_behind_it():
    box = filled((0, "a"), (5, "b"), (0, "c"), (6, "d"))
    assert leave(box, 0) == [0]
    assert leave(box, 4) == []
    assert leave(box, 5) == [1, 2]
    assert leave(box, 6) == [3]
    assert (len(box), box.size) == (0, 0)


def test_who_stops_keeps_what_was_not_taken():
    box = filled((0, "a"), (0, "b"), (0, "c"))
    for form in box.due(0):
        if form == 1:
            break
    assert box.size == 20
    assert leave(box, 0) == [1, 2]


def test_clearing_in_the_middle_ends_it():
    box = filled((0, "a"), (0, "b"))
    for _form in box.due(0):
        box.clear()
    assert (len(box), box.size) == (0, 0)


def test_overtaking_keeps_the_order_of_each_job():
    box = filled((5, "a"), (0, "b"), (0, "a"), (0, "b"), (9, "b"), (0, "b"))
    for waiting in box.ready_despite_gate(4):
        box.remove(waiting)
    assert leave(box, 9) == [0, 2, 4, 5]
    assert box.size == 0


def test_only_what_waits_for_the_failed_commit_is_dropped():
    box = filled((5, "a"), (0, "a"), (5, "b"))
    assert box.drop({"a"}) == 1
    assert leave(box, 5) == [1, 2]
    assert box.drop({"a"}) == 0


def test_events_leave_room_for_results():
    box = filled(*[(9, "a")] * 8, limits=QueueLimits(200, 10))
    assert not box.has_room(Command.EVENT, 10)
    assert box.has_room(Command.RESPONSE, 10)
    assert not box.has_room(Command.RESPONSE, 121)
    box = filled(*[(9, "a")] * 10)
    assert not box.has_room(Command.RESPONSE, 1)


def test_a_single_message_always_finds_room():
    assert Outbox(QueueLimits(10, 1)).has_room(Command.STREAM, 10_000)


def test_clearing_counts_what_is_lost():
    box = filled((0, "a"), (1, "b"))
    assert box.clear() == 2
    assert (len(box), box.size) == (0, 0)
