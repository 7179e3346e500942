"""Bodies that are too large, and publications that wait for a subscription: refused or held back, never unbounded."""

import threading
import time

import pytest

from broker.oslo.contract import Address, CallTimeout, TooLarge, Undelivered
from broker.oslo.names import Reason
from broker.oslo.records import Record
from tests.live.oslo_raw import PATIENCE_S, until
from tests.unit.oslo.client.nodes import DIRECTORY_ONLY, Played, door_of

WHERE = Address("x", "t")
SERVER = Address("x", "t", "s")
LIMIT = 100_000
NODE = "node"
PROCESS = "process"


@pytest.fixture(params=[NODE, PROCESS])
def limited(request, run_node, open_session):
    """A port where the node, or the process itself, takes so much at most."""
    run_node(**({"message_bytes_max": LIMIT} if request.param == NODE else {}))
    return open_session(**({"message_bytes_max": LIMIT} if request.param == PROCESS else {}))


def test_too_large_is_refused_at_once_and_disturbs_nobody(limited):
    inbox = limited.listen(SERVER)
    answers = []
    limited.start_call(WHERE, b"slow", answers.append, timeout_s=PATIENCE_S)
    slow = inbox.get(PATIENCE_S)
    for send in (
        lambda: limited.call(WHERE, bytes(LIMIT + 1), timeout_s=PATIENCE_S),
        lambda: limited.cast(WHERE, bytes(LIMIT + 1)),
        lambda: limited.cast(WHERE, bytes(LIMIT + 1), mandatory=True),
        lambda: limited.fanout(WHERE, bytes(LIMIT + 1)),
        lambda: limited.notify("x", "t", bytes(LIMIT + 1)),
    ):
        with pytest.raises(
            TooLarge, match=f"x/t: saw a body of {LIMIT + 1} bytes, expected {LIMIT} at most"
        ) as raised:
            send()
        assert raised.value.reason is Reason.MALFORMED
    limited.start_call(WHERE, bytes(LIMIT + 1), answers.append, timeout_s=PATIENCE_S)
    assert isinstance(answers.pop(), TooLarge)
    slow.reply(b"done")
    until(lambda: answers == [b"done"], "the answer of a call that was under way")


def test_the_largest_one_arrives(limited):
    inbox = limited.listen(SERVER)
    for send in (limited.cast, limited.fanout):
        send(WHERE, bytes(LIMIT))
        assert len(inbox.get(PATIENCE_S).body) == LIMIT
    answers = []
    limited.start_call(WHERE, bytes(LIMIT), answers.append, timeout_s=PATIENCE_S)
    inbox.get(PATIENCE_S).reply(bytes(LIMIT))
    until(lambda: answers == [bytes(LIMIT)], "the largest reply")


def test_a_reply_that_is_too_large_is_counted_and_ends_nothing(limited):
    inbox = limited.listen(SERVER)
    answers = []
    limited.start_call(WHERE, b"slow", answers.append, timeout_s=PATIENCE_S)
    slow = inbox.get(PATIENCE_S)
    limited.start_call(WHERE, b"", answers.append, timeout_s=0.3)
    item = inbox.get(PATIENCE_S)
    assert item.reply_bytes_max == LIMIT
    item.reply(bytes(LIMIT + 1))
    until(lambda: answers, "the end of a call without an answer")
    assert isinstance(answers.pop(), CallTimeout)
    assert limited.status()["counts"]["too_large"] == 1
    slow.reply(b"done")
    until(lambda: answers == [b"done"], "the answer of the other one")


@pytest.fixture
def silent(run_node, stack):
    """A node that is listed for fan-outs and never subscribes."""
    directory = run_node(run=DIRECTORY_ONLY)
    node = stack.enter_context(Played(door_of(directory), "silent"))
    node.announce(Record("x", "t"), pipeline="fanout", endpoint=node.endpoint)
    return node


@pytest.mark.parametrize(
    ("bounds", "size"), [({"outbox_msgs": 20}, 0), ({"outbox_bytes": 1 << 20}, 64 << 10)]
)
def test_what_waits_for_a_subscription_is_bounded(silent, open_session, bounds, size):
    port = open_session(fanout_wait_s=30.0, linger_s=0.1, **bounds)
    port._use()
    until(lambda: port._client.routes.replica.fanout_nodes("x", "t"), "the node")
    most = 0
    with pytest.raises(Undelivered, match="its queue is full"):
        for _ in range(2_000):
            port.fanout(WHERE, bytes(size), retry=0)
            most += 1
    assert most <= 20 + 128  # the bound, and what was handed over meanwhile


def test_who_is_held_back_goes_on_when_the_node_is_given_up(silent, open_session):
    port = open_session(fanout_wait_s=0.3, outbox_msgs=5, linger_s=0.1)
    port._use()
    until(lambda: port._client.routes.replica.fanout_nodes("x", "t"), "the node")
    begin = time.monotonic()
    sent = threading.Event()

    def flood():
        for _ in range(300):
            port.fanout(WHERE, b"")
        sent.set()

    thread = threading.Thread(target=flood)
    thread.start()
    assert sent.wait(PATIENCE_S)
    thread.join()
    assert time.monotonic() - begin >= 0.3
    until(lambda: port.status()["counts"].get("not_reached") == 300, "300 that the node did not get")
    assert [each["waiting"] for each in port.status()["links"]["fanout"].values()] == [0]
