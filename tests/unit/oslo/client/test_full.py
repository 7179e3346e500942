"""A listener that takes nothing costs the others of its process nothing."""

import threading
import time

import pytest

from broker.oslo.contract import Address
from tests.live.oslo_raw import PATIENCE_S, until

SLOW = Address("x", "slow", "a")
FAST = Address("x", "fast", "b")


@pytest.fixture
def answering(stack):
    """Have a thread answer the calls of an intake."""

    def make(inbox):
        def serve():
            while (item := inbox.get(None)) is not None:
                if item.wants_reply:
                    item.reply(b"re:" + item.body)

        thread = threading.Thread(target=serve)
        thread.start()
        stack.callback(thread.join, PATIENCE_S)
        stack.callback(inbox.close)
        return inbox

    return make


@pytest.fixture
def full(node, open_session, answering):
    """(port, intake that is full, calls that wait for it)."""
    port = open_session(inbox_msgs=10)
    slow = port.listen(SLOW)
    answering(port.listen(FAST))
    answers = []
    for _ in range(25):
        port.start_call(SLOW, b"", answers.append, timeout_s=PATIENCE_S)
    until(lambda: node.count("call", "refused_busy") >= 15, "calls that found no room")
    until(lambda: len(slow._items) == 10, "the others")
    return port, slow, answers


def test_calls_to_others_and_registrations_go_on(full):
    port, slow, _answers = full
    for _ in range(20):
        assert port.call(FAST, b"", timeout_s=PATIENCE_S / 2) == b"re:"
    begin = time.monotonic()
    port.listen(Address("x", "third", "c")).close()
    slow.stop()
    assert time.monotonic() - begin < PATIENCE_S / 2


def test_calls_that_found_no_credit_come_again_and_each_once(full):
    _port, slow, answers = full
    seen = []
    for _ in range(25):
        item = slow.get(PATIENCE_S)
        seen.append(item.envelope.id)
        item.reply(b"")
    assert len(set(seen)) == 25
    until(lambda: answers == [b""] * 25, "all answers")
    assert slow.get(0.05) is None


def test_a_call_goes_to_a_server_that_has_room(node, open_session, answering):
    port = open_session(inbox_msgs=1)
    full = port.listen(Address("x", "t", "full"))
    port.start_call(Address("x", "t", "full"), b"", lambda _answer: None, timeout_s=PATIENCE_S)
    until(lambda: full.full, "a full inbox")
    answering(open_session(inbox_msgs=100).listen(Address("x", "t", "other")))
    for number in range(6):
        assert port.call(Address("x", "t"), b"%d" % number, timeout_s=PATIENCE_S) == b"re:%d" % number
    assert node.count("call", "chosen_again") >= 1


def test_casts_of_a_full_one_wait_at_the_proxy_and_those_for_others_come(full, node):
    """As many as it gave credit for come, whatever else is there; in order, and none is lost."""
    port, slow, _answers = full
    other = port.listen(Address("x", "casts", "c"))
    for number in range(30):
        port.cast(SLOW, b"%d" % number)
        port.cast(Address("x", "casts"), b"%d" % number)
    assert [int(other.get(PATIENCE_S).body) for _ in range(30)] == list(range(30))
    members = {each["listener"]: each for each in node.status("cast")["members"]}
    assert (members[slow.listener]["waiting"], members[slow.listener]["unconfirmed"]) == (20, 10)
    assert len(slow._items) == 20, "ten calls and ten casts"
    got = []
    while len(got) < 30:
        item = slow.get(PATIENCE_S)
        if item.wants_reply:
            item.reply(b"")
        else:
            got.append(int(item.body))
    assert got == list(range(30))
    assert "dropped" not in port.status()["counts"]


def test_one_that_takes_something_has_its_casts_wait(node, open_session):
    """Slowly, but nothing is lost, and others have theirs."""
    port = open_session(inbox_msgs=10)
    slow, other = port.listen(SLOW), port.listen(FAST)
    for number in range(60):
        port.cast(SLOW, b"%d" % number)
    port.cast(FAST, b"behind them")
    assert other.get(PATIENCE_S).body == b"behind them"
    assert len(slow._items) == 10
    got = []
    while len(got) < 60:
        got.append(int(slow.get(PATIENCE_S).body))
        time.sleep(0.005)
    assert got == list(range(60))
    assert "dropped" not in port.status()["counts"]


def test_what_is_large_is_bounded_in_bytes(node, open_session):
    """One always comes, those behind it as others are taken."""
    port = open_session(inbox_bytes=1000)
    slow = port.listen(SLOW)
    for number in range(20):
        port.cast(SLOW, b"%d" % (number % 10) * 400)
    until(lambda: node.status("cast")["members"][0]["waiting"] == 18, "the others to wait")
    until(lambda: len(slow._items) == 2, "those that have room to be there")
    assert [slow.get(PATIENCE_S).body[:1] for _ in range(20)] == [
        b"%d" % (number % 10) for number in range(20)
    ]
