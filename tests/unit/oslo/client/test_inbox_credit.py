"""What a listener gives credit for: as much as it has room for, given back as it is taken, the same over a restart."""

import pytest

from broker.oslo.client.inbox import (
    CALLS,
    CREDIT,
    CREDIT_BYTES,
    CREDIT_PARTS,
    SMALL,
    InboxCredit,
)
from broker.oslo.contract import Address
from broker.oslo.frames import Flag, Kind
from broker.oslo.names import Pipeline, Reason
from broker.oslo.proxy import process
from tests.live.oslo_raw import PATIENCE_S, Node, until
from tests.tables import for_each
from tests.unit.oslo.client.desk import Desk
from tests.unit.oslo.client.nodes import whole_node

SERVER = Address("x", "t", "s")
LISTENER = "l" * 24
ROOM = 10


@for_each(
    ("pipeline", "holds", "window"),
    [
        (Pipeline.CALL, 10, 10),
        (Pipeline.CALL, 10_000, 10_000),
        (Pipeline.CALL, 1 << 20, CALLS),
        (Pipeline.CAST, 10, 10),
        (Pipeline.NOTIFY, 10_000, CREDIT),
    ],
)
def test_a_window_is_what_an_inbox_holds_and_has_an_end(pipeline, holds, window):
    credit = InboxCredit(pipeline, (holds, 1 << 30))
    assert (credit.window, credit.window_bytes) == (window, 1 << 30)


def test_credit_is_due_when_a_part_of_the_window_was_taken():
    credit = InboxCredit(Pipeline.CALL, (160, 1 << 40))
    for _ in range(50):
        credit.come(5)
    assert [credit.take(5) for _ in range(160 // CREDIT_PARTS)] == [False] * 19 + [True]
    assert (credit.owed, credit.held, credit.held_bytes) == (20, 50, 250)
    credit.give(20)
    assert (credit.owed, credit.held, credit.held_bytes) == (0, 30, 150)
    assert not credit.take(CREDIT_BYTES - 1)
    assert credit.take(1), "as many bytes"


@for_each("window", [1, SMALL])
def test_a_small_window_has_each_given_back_at_once(window):
    credit = InboxCredit(Pipeline.CAST, (window, 1 << 20))
    credit.come(1)
    assert credit.take(1)


def restarted(node, stack, monkeypatch):
    """The node's next proxy; the first one waits for no answers."""
    monkeypatch.setattr(process, "FLUSH_S", 0.05)
    node.proxy.stop("another one comes", returns=True)
    node.join()
    return stack.enter_context(Node(node.config))


def answers_of(node, slow, port, calls):
    """Fill the inbox, with more than it has room for behind; returns the answers to come."""
    answers = []
    for _ in range(calls):
        port.start_call(SERVER, b"", answers.append, timeout_s=PATIENCE_S)
    until(lambda: len(slow._items) == ROOM, "a full inbox")
    return answers


def member(node, room="call"):
    return next(iter(node.status(room)["members"]), None)


@pytest.mark.patient
@pytest.mark.parametrize("more", [0, 15])
def test_after_a_restart_a_full_inbox_gets_nothing_more_and_each_call_is_answered_once(
    folder, open_session, stack, monkeypatch, more
):
    """Those that come again need no room: it has them."""
    with Node(whole_node(folder)) as node:
        port = open_session(inbox_msgs=ROOM)
        slow = port.listen(SERVER)
        answers = answers_of(node, slow, port, ROOM + more)
        for number in range(2 * ROOM):
            port.cast(SERVER, b"%d" % number)
        until(lambda: len(slow._items) == 2 * ROOM, "casts in it")
        again = restarted(node, stack, monkeypatch)
    stack.callback(port.close)  # before the node, or it waits for its answer
    until(lambda: port.status()["counts"].get("had_already", 0) >= ROOM, "the calls to come again")
    until(lambda: again.status("call")["pending"] == ROOM, "the new proxy to know them")
    until(lambda: member(again, "cast"), "the server to open")
    assert len(slow._items) == 2 * ROOM
    assert member(again)["credit"] <= 0
    assert member(again, "cast")["credit"] <= 0
    seen = set()
    while len(seen) < ROOM + more:
        item = slow.get(PATIENCE_S)
        assert len(slow._items) <= 2 * ROOM
        if item.wants_reply:
            assert item.envelope.id not in seen
            seen.add(item.envelope.id)
            item.reply(b"once")
    until(lambda: answers == [b"once"] * (ROOM + more), "all answers")


def test_after_a_restart_there_is_credit_for_the_room_that_is_left(folder, open_session, stack, monkeypatch):
    with Node(whole_node(folder)) as node:
        port = open_session(inbox_msgs=ROOM)
        slow = port.listen(SERVER)
        for _ in range(4):
            port.cast(SERVER, b"")
        until(lambda: len(slow._items) == 4, "four casts")
        slow.get(0)
        until(lambda: member(node, "cast")["credit"] == ROOM - 3, "the credit for one")
        again = restarted(node, stack, monkeypatch)
    stack.callback(port.close)  # before the node, or it waits for its answer

    def credit():
        one = member(again, "cast")
        return one and (one["credit"], one["unconfirmed"])

    until(lambda: port.status()["counts"].get("had_already") == 4, "those that it has had to come again")
    until(lambda: credit() == (ROOM - 3, 3), "the credit that is left")
    for _ in range(3):
        slow.get(0)
    until(lambda: credit() == (ROOM, 0), "the credit for the others")


@pytest.fixture
def desk():
    desk = Desk(ROOM)
    yield desk
    desk.close()


def test_a_call_for_a_listener_that_is_no_more_there_is_refused_at_once(desk):
    """Its client need not wait until its time is over."""
    desk.listeners.forget(desk.inbox)
    number = desk.come()
    assert desk.refusals() == [(number, Reason.NO_ROUTE)]
    desk.come(Kind.CAST)
    assert len(desk.said) == 1


def test_a_call_that_came_again_and_was_had_gives_its_credit_back(desk):
    number = desk.come()
    desk.come(number=number, flags=Flag.REPEATED)
    assert desk.refusals() == []
    assert len(desk.inbox._items) == 1
    credit = desk.inbox.call_credit
    assert (credit.held, credit.owed, desk.credit()) == (1, 0, 1)


def test_a_call_that_came_again_and_finds_no_room_is_refused_and_gives_its_credit_back(desk):
    for _ in range(ROOM):
        desk.come()
    number = desk.come(flags=Flag.REPEATED)
    assert desk.refusals() == [(number, Reason.BUSY)]
    assert len(desk.inbox._items) == ROOM
    assert desk.credit() == 1
    desk.inbox.get(0)
    desk.come(number=number, flags=Flag.REPEATED)
    assert len(desk.inbox._items) == ROOM


def test_each_pipeline_has_credit_of_its_own(desk):
    desk.come()
    desk.come(Kind.CAST)
    assert (desk.inbox.call_credit.held, desk.inbox.credit.held) == (2, 0)
    openings = [desk.inbox.opening(each) for each in desk.inbox.credits]
    assert [(each.credit, each.held) for each in openings] == [(ROOM, 2), (ROOM, 0)]
