"""Fan-outs and notifications wait for subscriptions, in order, and say whom they did not reach; the node is played."""

import threading
import time

import pytest
import zmq

from broker.oslo.client import links
from broker.oslo.client.links import NOTIFY_DOWN_S
from broker.oslo.contract import Address, Settings
from broker.oslo.frames import Flag, Kind, decode, fanout_filter, notify_filter
from broker.oslo.proxy.listeners import PAUSE_MAX_S
from broker.oslo.records import Record
from tests.live.oslo_raw import PATIENCE_S, until
from tests.unit.oslo.client.nodes import DIRECTORY_ONLY, Played, door_of

WHERE = Address("x", "t")
FILTER = fanout_filter("x", "t")


class Hearing:
    """The entry of a publishing pipeline, played."""

    def __init__(self, kind, room=1000):
        self._context = zmq.Context()
        self.sock = self._context.socket(kind)
        self.sock.set(zmq.LINGER, 0)
        self.sock.set(zmq.RCVHWM, room)
        self.sock.set(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        self.endpoint = f"tcp://127.0.0.1:{self.sock.bind_to_random_port('tcp://127.0.0.1')}"

    def get(self):
        data, head, body = self.sock.recv_multipart()
        return data, decode(head), body

    def silent(self):
        return not self.sock.poll(100)

    def close(self):
        self.sock.close(0)
        self._context.term()


@pytest.fixture
def directory(run_node):
    return run_node(run=DIRECTORY_ONLY)


@pytest.fixture
def hear(directory, stack):
    def make(name, pipeline, *records, kind=zmq.SUB, room=1000):
        hearing = Hearing(kind, room)
        stack.callback(hearing.close)
        hearing.node = stack.enter_context(Played(door_of(directory), name))
        hearing.node.announce(*records, pipeline=pipeline, endpoint=hearing.endpoint)
        return hearing

    return make


def subscribed(port, pipeline, *nodes):
    """The port has heard of a subscription of each; libzmq sends them while somebody looks at the sockets."""

    def there():
        links = port.status()["links"][pipeline]
        return all(not each.sock.poll(0) and links[each.node.name]["filters"] for each in nodes)

    until(there, "the subscriptions")


def lists(port, n):
    port._use()
    until(lambda: len(port._client.routes.replica.fanout_nodes("x", "t")) == n, f"{n} nodes")


def test_a_fanout_waits_for_the_subscription_and_keeps_its_order(hear, open_session):
    node = hear("n1", "fanout", Record("x", "t"))
    port = open_session(fanout_wait_s=5.0)
    lists(port, 1)
    for number in range(20):
        port.fanout(WHERE, b"%d" % number)
    assert node.silent()
    node.sock.subscribe(FILTER)
    for number in range(20):
        data, envelope, body = node.get()
        assert (data, envelope.kind, envelope.exchange, envelope.topic) == (FILTER, Kind.FANOUT, "x", "t")
        assert body == b"%d" % number


def test_a_node_that_does_not_subscribe_is_waited_for_once(hear, open_session):
    here, away = hear("n1", "fanout", Record("x", "t")), hear("n2", "fanout", Record("x", "t"))
    here.sock.subscribe(FILTER)
    port = open_session(fanout_wait_s=0.3)
    lists(port, 2)
    begin = time.monotonic()
    port.fanout(WHERE, b"first")
    assert here.get()[2] == b"first"  # nobody waits for the other one
    port.fanout(WHERE, b"second")
    assert here.get()[2] == b"second"
    assert time.monotonic() - begin < 5.0
    until(lambda: port.status()["counts"].get("not_reached") == 2, "two that one node did not get")
    away.sock.subscribe(FILTER)
    subscribed(port, "fanout", away)
    port.fanout(WHERE, b"third")
    assert away.get()[2] == b"third"
    assert here.get()[2] == b"third"


@pytest.mark.patient
def test_the_first_message_to_a_node_is_held_for_the_time_of_a_restart(hear, open_session):
    """As those behind it: a proxy that has just been started subscribes when its servers have come back."""
    node = hear("n1", "fanout", Record("x", "t"))
    assert Settings("").fanout_wait_s > 5.0  # a start under load
    port = open_session()
    lists(port, 1)
    port.fanout(WHERE, b"first")
    time.sleep(0.1)
    node.sock.subscribe(FILTER)
    assert node.get()[2] == b"first"
    assert "not_reached" not in port.status()["counts"]


def test_other_topics_go_on_meanwhile(hear, open_session):
    node = hear("n1", "fanout", Record("x", "t"), Record("x", "u"))
    port = open_session(fanout_wait_s=5.0, linger_s=0.1)
    lists(port, 1)
    node.sock.subscribe(fanout_filter("x", "u"))
    port.fanout(WHERE, b"waits")
    port.fanout(Address("x", "u"), b"goes")
    assert node.get()[2] == b"goes"
    node.sock.subscribe(FILTER)
    assert node.get()[2] == b"waits"


def test_after_a_lost_connection_it_waits_for_the_subscription_again(hear, open_session):
    node = hear("n1", "fanout", Record("x", "t"))
    node.sock.subscribe(FILTER)
    port = open_session(fanout_wait_s=5.0)
    lists(port, 1)
    port.fanout(WHERE, b"one")
    assert node.get()[2] == b"one"
    node.sock.close(0)
    until(lambda: port.status()["links"]["fanout"]["n1"]["filters"] == 0, "the end of the subscription")
    port.fanout(WHERE, b"two")
    node.sock = node._context.socket(zmq.SUB)
    node.sock.set(zmq.LINGER, 0)
    node.sock.set(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
    node.sock.subscribe(FILTER)
    node.sock.bind(node.endpoint)
    came = [node.get() for _ in range(2)]
    assert [(envelope.flags, body) for _data, envelope, body in came] == [
        (Flag.REPEATED, b"one"),
        (0, b"two"),
    ]


def test_what_waits_for_a_node_goes_where_that_is_reached_now(hear, open_session, stack):
    node = hear("n1", "fanout", Record("x", "t"))
    node.sock.subscribe(FILTER)
    port = open_session(fanout_wait_s=5.0)
    lists(port, 1)
    port.fanout(WHERE, b"one")
    assert node.get()[2] == b"one"
    node.sock.close(0)
    until(lambda: port.status()["counts"].get("repeated"), "the end of the connection")
    port.fanout(WHERE, b"two")
    elsewhere = Hearing(zmq.SUB)
    stack.callback(elsewhere.close)
    elsewhere.sock.subscribe(FILTER)
    node.node.announce(Record("x", "t"), pipeline="fanout", endpoint=elsewhere.endpoint)
    came = [elsewhere.get() for _ in range(2)]
    assert [(envelope.flags, body) for _data, envelope, body in came] == [
        (Flag.REPEATED, b"one"),
        (0, b"two"),
    ]
    assert "not_reached" not in port.status()["counts"]


def test_a_notification_names_one_of_each_pool_and_goes_once_to_each_node(hear, open_session):
    records = [Record("x", "n.info", "", listener, pool) for listener, pool in (("a1", None), ("a2", "p"))]
    first = hear("n1", "notify", *records)
    second = hear("n2", "notify", Record("x", "n.info", "", "b1", None))
    data = notify_filter("x", "n.info")
    for node in (first, second):
        node.sock.subscribe(data)
    port = open_session()
    port._use()
    until(lambda: len(port._client.routes.replica.pools("x", "n.info").get(None, ())) == 2, "three listeners")
    port._client.post(lambda: [port._client.notifications.get(name) for name in ("n1", "n2")])
    subscribed(port, "notify", first, second)
    for number in range(4):
        port.notify("x", "n.info", b"%d" % number)
    at_first = [first.get() for _ in range(4)]
    at_second = [second.get() for _ in range(2)]
    chosen = [tuple(sorted(each[1].listeners)) for each in at_first]
    assert chosen == [("a1", "a2"), ("a2",), ("a1", "a2"), ("a2",)]
    assert [each[1].listeners for each in at_second] == [("b1",), ("b1",)]
    assert [each[2] for each in at_second] == [b"1", b"3"]
    assert at_first[1][1].id == at_second[0][1].id
    assert first.silent()
    assert second.silent()


def test_a_pool_has_another_listener_where_one_node_is_away(hear, open_session):
    here = hear("n1", "notify", Record("x", "n.info", "", "a1", None))
    hear("n2", "notify", Record("x", "n.info", "", "b1", None))
    here.sock.subscribe(notify_filter("x", "n.info"))
    port = open_session(fanout_wait_s=0.1)
    port._use()
    until(lambda: len(port._client.routes.replica.pools("x", "n.info").get(None, ())) == 2, "two listeners")
    for number in range(4):
        port.notify("x", "n.info", b"%d" % number)
    assert sorted(here.get()[2] for _ in range(4)) == [b"0", b"1", b"2", b"3"]


def test_a_pool_whose_nodes_are_all_out_of_reach_costs_its_own_notification_only(
    directory, open_session, stack
):
    for name in ("n1", "n2", "n3"):
        node = stack.enter_context(Played(door_of(directory), name))
        node.announce(Record("x", "t.info", "", name * 12, "p"), pipeline="notify", endpoint="")
    port = open_session()
    port._use()
    until(lambda: len(port._client.routes.replica.pools("x", "t.info").get("p", ())) == 3, "the pool")
    for _ in range(3):
        port.notify("x", "t.info", b"1")
    until(lambda: port.status()["counts"].get("not_reached") == 3, "three lost ones")


@pytest.mark.patient
def test_a_proxy_that_lets_senders_wait_is_not_taken_for_one_that_is_down(hear, open_session, monkeypatch):
    """It reads nothing for seconds where a listener is slow; what would be dropped meanwhile has nowhere else to go."""
    assert NOTIFY_DOWN_S > PAUSE_MAX_S
    monkeypatch.setattr(links, "DOWN_S", 0.1)
    node = hear("n1", "notify", Record("x", "n.info", "", "a1", None), room=1)
    node.sock.subscribe(notify_filter("x", "n.info"))
    port = open_session(outbox_msgs=4)
    port._use()
    until(lambda: port._client.routes.replica.pools("x", "n.info").get(None, ()), "the listener")
    port._client.post(lambda: port._client.notifications.get("n1"))
    subscribed(port, "notify", node)
    sending = threading.Thread(
        target=lambda: [port.notify("x", "n.info", bytes(1 << 15)) for _ in range(1000)]
    )
    sending.start()
    time.sleep(0.3)  # its clock is that of the kernel's buffers
    assert sending.is_alive()
    for _ in range(1000):
        node.get()
    sending.join(PATIENCE_S)
    assert "not_reached" not in port.status()["counts"]
