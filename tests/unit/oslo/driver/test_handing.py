"""Messages go straight to a server's executor where that only queues them; everybody else is polled for."""

import threading

import pytest

from broker.oslo.contract import Address
from broker.oslo.driver import handing
from broker.oslo.driver.handing import ServerListener
from broker.oslo.driver.listener import ZmqListener
from broker.oslo.driver.serialization import request_body
from tests.unit.oslo.driver.memory import MemoryIntake, MemoryItem

PATIENCE_S = 10.0


class Server:
    """As oslo.messaging's: it says what executor it has, and takes what comes."""

    def __init__(self, executor="threading"):
        self.executor_type = executor
        self.came = []
        self.threads = set()
        self.more = threading.Condition()
        self.error = None

    def on_incoming(self, incoming):
        with self.more:
            self.threads.add(threading.current_thread())
            self.came += incoming
            self.more.notify_all()
            if self.error is not None:
                raise self.error

    def wait(self, n):
        with self.more:
            assert self.more.wait_for(lambda: len(self.came) >= n, PATIENCE_S), len(self.came)


def item(number, *, wants_reply=False):
    body = request_body({}, {"method": "m", "args": {"n": number}})
    return MemoryItem(body, Address("e", "t", ""), wants_reply=wants_reply)


def numbers(server):
    return [each.message["args"]["n"] for each in server.came]


@pytest.fixture
def inbox():
    return MemoryIntake([("e", "t")])


def listener_of(inbox, window=4, size=1):
    return ServerListener(ZmqListener(inbox, 1000, window), inbox, size, None)


def test_an_executor_of_threads_is_handed_what_comes_in_the_thread_that_has_it(inbox):
    server, listener = Server(), listener_of(inbox)
    listener.start(server.on_incoming)
    for number in range(3):
        inbox.put(item(number))
    assert numbers(server) == [0, 1, 2]
    assert server.threads == {threading.current_thread()}
    listener.stop()
    listener.cleanup()


def test_no_more_than_the_window_is_out(inbox):
    server, listener = Server(), listener_of(inbox, window=4)
    listener.start(server.on_incoming)
    for number in range(10):
        inbox.put(item(number))
    assert numbers(server) == [0, 1, 2, 3]
    server.came[0].acknowledge()
    server.came[0].acknowledge()  # counts once
    assert len(server.came) == 4
    server.came[1].acknowledge()
    assert numbers(server) == [0, 1, 2, 3, 4, 5]
    for each in list(server.came)[2:]:
        each.acknowledge()
    assert numbers(server) == list(range(10))
    listener.stop()


def test_what_is_here_when_it_stops_is_handed_over(inbox):
    server, listener = Server(), listener_of(inbox, window=2)
    listener.start(server.on_incoming)
    for number in range(5):
        inbox.put(item(number))
    assert len(server.came) == 2
    listener.stop()
    assert numbers(server) == list(range(5))
    assert inbox.calls == ["stop"]


def test_what_cannot_be_read_is_answered_and_the_next_one_comes(inbox):
    server, listener = Server(), listener_of(inbox)
    listener.start(server.on_incoming)
    bad = MemoryItem(b"{", Address("e", "t", ""), wants_reply=True)
    inbox.put(bad)
    inbox.put(item(1))
    assert numbers(server) == [1]
    assert bad.replies.get(timeout=PATIENCE_S)


def test_a_server_that_cannot_take_costs_that_message_only(inbox, caplog):
    server, listener = Server(), listener_of(inbox, window=1)
    listener.start(server.on_incoming)
    server.error = RuntimeError("can't start new thread")
    inbox.put(call := item(0, wants_reply=True))
    server.error = None
    inbox.put(item(1))
    assert numbers(server) == [0, 1]
    assert "could not be given to its server" in caplog.text
    assert b"can't start new thread" in call.replies.get(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("server", "size", "green"),
    [
        (Server("eventlet"), 1, False),
        (Server("blocking"), 1, False),
        (Server(), 2, False),
        (Server(), 1, True),
    ],
    ids=["eventlet", "blocking", "batches", "green threads"],
)
def test_everybody_else_is_polled_for(inbox, monkeypatch, server, size, green):
    monkeypatch.setattr(handing.natives, "threads_are_green", lambda: green)
    listener = listener_of(inbox, size=size)
    listener.start(server.on_incoming)
    for number in range(2):
        inbox.put(item(number))
    server.wait(2)
    assert threading.current_thread() not in server.threads
    listener.stop()


def test_a_callback_that_is_no_servers_is_polled_for(inbox):
    server, listener = Server(), listener_of(inbox)
    listener.start(lambda incoming: server.on_incoming(incoming))
    inbox.put(item(0))
    server.wait(1)
    assert threading.current_thread() not in server.threads
    listener.stop()
