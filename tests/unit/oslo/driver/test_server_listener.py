"""The threads of a server's executor take messages, as many as have something to do; everybody else is polled for."""

import os
import queue
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import oslo_messaging
import pytest
from oslo_config import cfg
from oslo_messaging.server import MessageHandlingServer

from broker.oslo.contract import Address
from broker.oslo.driver import listener as listeners
from broker.oslo.driver.listener import ServerListener, Workers, ZmqListener
from broker.oslo.driver.serialization import request_body
from tests.tables import for_each
from tests.unit.oslo.driver.memory import MemoryIntake, MemoryItem

PATIENCE_S = 40.0


class Asked:
    """An executor whose thread is the test: it runs what it was asked to when it is told so."""

    def __init__(self):
        self.calls = []
        self.error = None

    def submit(self, call, *args):
        if self.error is not None:
            raise self.error
        self.calls.append((call, args))

    def run(self):
        call, args = self.calls.pop(0)
        call(*args)


class Server(MessageHandlingServer):
    """oslo.messaging's, its executor and what it does with a message apart."""

    def __init__(self, executor=None, kind="threading"):
        self.executor_type = kind
        self._work_executor = Asked() if executor is None else executor
        self.came = []
        self.threads = set()
        self.more = threading.Condition()
        self.error = None

    @property
    def asked(self):
        return self._work_executor

    def _create_listener(self):
        raise NotImplementedError

    def _process_incoming(self, incoming):
        with self.more:
            self.threads.add(threading.current_thread())
            self.came += incoming
            self.more.notify_all()
            if self.error is not None:
                raise self.error

    def wait_for(self, n):
        with self.more:
            assert self.more.wait_for(lambda: len(self.came) >= n, PATIENCE_S), len(self.came)


class OwnWay(Server):
    """One that does something of its own with what comes."""

    def _on_incoming(self, incoming):
        self._process_incoming(incoming)


def item(number, *, wants_reply=False):
    body = request_body({}, {"method": "m", "args": {"n": number}})
    return MemoryItem(body, Address("e", "t", ""), wants_reply=wants_reply)


def numbers(server):
    return [each.message["args"]["n"] for each in server.came]


@pytest.fixture
def inbox():
    return MemoryIntake([("e", "t")])


def listener_of(inbox, size=1):
    return ServerListener(ZmqListener(inbox, 1000, 4), inbox, size, None)


def test_one_thread_is_asked_for_however_much_comes_and_does_it_in_order(inbox):
    server, listener = Server(), listener_of(inbox)
    listener.start(server._on_incoming)
    for number in range(100):
        inbox.put(item(number))
    assert len(server.asked.calls) == 1
    server.asked.run()
    assert numbers(server) == list(range(100))
    assert len(server.asked.calls) == 1, "the first asks for one more, should it be kept waiting"
    inbox.put(item(100))
    assert len(server.asked.calls) == 1, "it is on its way"
    server.asked.run()
    assert numbers(server)[100:] == [100]
    assert server.asked.calls == []
    listener.stop()


def test_as_many_threads_as_there_are_messages_when_each_waits_for_something(inbox):
    together = threading.Barrier(5)

    class Waiting(Server):
        def _process_incoming(self, incoming):
            together.wait(PATIENCE_S)
            super()._process_incoming(incoming)

    with ThreadPoolExecutor(5) as executor:
        server, listener = Waiting(executor), listener_of(inbox)
        listener.start(server._on_incoming)
        for number in range(10):
            inbox.put(item(number))
        server.wait_for(10)
        assert len(server.threads) == 5
        listener.stop()
    assert sorted(numbers(server)) == list(range(10))


def test_what_is_here_when_it_stops_is_handed_over_and_no_thread_is_asked_for_any_more(inbox):
    server, listener = Server(), listener_of(inbox)
    listener.start(server._on_incoming)
    for number in range(5):
        inbox.put(item(number))
    listener.stop()
    assert inbox.calls == ["stop"]
    asked = len(server.asked.calls)
    inbox.put(item(5))
    assert len(server.asked.calls) == asked
    while server.asked.calls:
        server.asked.run()
    assert numbers(server) == list(range(6))


def test_one_thread_goes_on_in_order_while_it_stops(inbox):
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Server):
        def _process_incoming(self, incoming):
            begun.set()
            assert go_on.wait(PATIENCE_S)
            super()._process_incoming(incoming)

    class GoesOn(ThreadPoolExecutor):
        def submit(self, *call):
            try:
                return super().submit(*call)
            finally:
                if stopping:
                    go_on.set()
                    server.wait_for(2)

    stopping = False
    with GoesOn(1) as executor:
        server, listener = Slow(executor), listener_of(inbox)
        listener.start(server._on_incoming)
        for number in range(10):
            inbox.put(item(number))
        assert begun.wait(PATIENCE_S)
        stopping = True
        listener.stop()
    assert numbers(server) == list(range(10))


def test_all_threads_take_part_in_what_is_here_when_it_stops(inbox):
    together, begun = threading.Barrier(3), threading.Event()

    class Waiting(Server):
        def _process_incoming(self, incoming):
            begun.set()
            together.wait(PATIENCE_S)
            super()._process_incoming(incoming)

    with ThreadPoolExecutor(3) as executor:
        server, listener = Waiting(executor), listener_of(inbox)
        inbox.put(item(0))
        listener.start(server._on_incoming)
        inbox.put(item(1))
        assert begun.wait(PATIENCE_S)
        for number in range(2, 9):
            inbox.put(item(number))
        listener.stop()
    assert sorted(numbers(server)) == list(range(9))


def test_what_cannot_be_read_is_answered_and_the_next_one_comes(inbox):
    server, listener = Server(), listener_of(inbox)
    listener.start(server._on_incoming)
    bad = MemoryItem(b"{", Address("e", "t", ""), wants_reply=True)
    inbox.put(bad)
    inbox.put(item(1))
    server.asked.run()
    assert numbers(server) == [1]
    assert bad.replies.get(timeout=PATIENCE_S)
    listener.stop()


def test_a_server_that_fails_costs_that_message_only(inbox, caplog):
    server, listener = Server(), listener_of(inbox)
    listener.start(server._on_incoming)
    server.error = RuntimeError("a bug")
    for number in range(2):
        inbox.put(item(number))
    server.asked.run()
    assert numbers(server) == [0, 1]
    assert "a bug" in caplog.text
    listener.stop()


def test_an_executor_that_cannot_take_costs_that_message_only(inbox, caplog):
    server, listener = Server(), listener_of(inbox)
    listener.start(server._on_incoming)
    server.asked.error = RuntimeError("can't start new thread")
    inbox.put(call := item(0, wants_reply=True))
    assert "could not be given to its server" in caplog.text
    assert b"can't start new thread" in call.replies.get(timeout=PATIENCE_S)
    server.asked.error = None
    inbox.put(item(1))
    server.asked.run()
    assert numbers(server) == [1]
    listener.stop()


def test_no_message_is_lost_for_want_of_a_thread_while_another_one_runs(inbox):
    calls = [item(number, wants_reply=True) for number in range(1, 4)]

    class Starved(Server):
        def _process_incoming(self, incoming):
            super()._process_incoming(incoming)
            self.asked.error = RuntimeError("can't start new thread")
            while calls and len(self.came) == 1:
                inbox.put(calls.pop(0))

    server, listener = Starved(), listener_of(inbox)
    listener.start(server._on_incoming)
    inbox.put(item(0))
    server.asked.run()
    assert numbers(server) == [0, 1, 2, 3]
    inbox.put(last := item(4, wants_reply=True))
    assert "reply" in last.told, "nobody runs any more"
    listener.stop()


def test_an_endpoint_that_ends_its_thread_leaves_the_rest_to_another_one(inbox):
    class Ending(Server):
        def _process_incoming(self, incoming):
            super()._process_incoming(incoming)
            if len(self.came) == 1:
                raise SystemExit

    server, listener = Ending(), listener_of(inbox)
    listener.start(server._on_incoming)
    inbox.put(item(0))
    inbox.put(item(1))
    with pytest.raises(SystemExit):
        server.asked.run()
    server.asked.run()
    assert numbers(server) == [0, 1]
    server.asked.error = RuntimeError("can't start new thread")
    inbox.put(last := item(2, wants_reply=True))
    assert "reply" in last.told, "nobody runs any more"
    listener.stop()


def test_a_child_that_was_forked_while_a_thread_was_asked_for_can_stop(inbox):
    children = []

    def submit(_call):
        children.append(child := os.fork())
        if child == 0:
            signal.alarm(2)
            workers.close()
            os._exit(0)

    server = Server(SimpleNamespace(submit=submit, _max_workers=1))
    workers = Workers(server, ZmqListener(inbox, 1000, 4), inbox)
    inbox.put(item(0))
    workers.more()
    assert [os.waitpid(child, 0)[1] for child in children] == [0]


@for_each(
    ("server", "size", "green"),
    [
        (Server(kind="eventlet"), 1, False),
        (Server(kind="blocking"), 1, False),
        (Server(), 2, False),
        (Server(), 1, True),
        (OwnWay(), 1, False),
    ],
    ids=["eventlet", "blocking", "batches", "green threads", "another callback"],
)
def test_everybody_else_is_polled_for(monkeypatch, server, size, green):
    inbox = MemoryIntake([("e", "t")])
    monkeypatch.setattr(listeners.natives, "threads_are_green", lambda: green)
    assert size > 1 or listeners.find_server(server._on_incoming) is None
    listener = listener_of(inbox, size=size)
    server.asked.submit = lambda call, incoming: call(incoming)
    listener.start(server._on_incoming)
    for number in range(2):
        inbox.put(item(number))
    server.wait_for(2)
    assert threading.current_thread() not in server.threads
    listener.stop()


def test_a_callback_that_is_no_servers_is_polled_for(inbox):
    server, listener = Server(), listener_of(inbox)
    listener.start(lambda incoming: server._process_incoming(incoming))
    inbox.put(item(0))
    server.wait_for(1)
    assert threading.current_thread() not in server.threads
    listener.stop()


@for_each("name", ["_on_incoming", "_process_incoming", "_work_executor"])
def test_a_release_that_has_renamed_what_is_private_to_its_server_is_polled_for(caplog, name):
    class Renamed(MessageHandlingServer):
        def __init__(self):
            self.executor_type = "threading"
            self.came = queue.Queue()
            for each in {"_process_incoming", "_work_executor"} - {name}:
                setattr(self, each, Asked())

        _create_listener = None

        def on_message(self, incoming):
            self.came.put(incoming)

    Renamed.__abstractmethods__ = frozenset()
    inbox = MemoryIntake([("e", "t")])
    caplog.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(MessageHandlingServer, "_process_incoming")
        patch.setattr(MessageHandlingServer, "_on_incoming", Renamed.on_message)
        server, listener = Renamed(), listener_of(inbox)
        callback = server._on_incoming
        if name == "_on_incoming":
            patch.delattr(MessageHandlingServer, "_on_incoming")
        listener.start(callback)
        inbox.put(item(7))
        assert [each.message["args"]["n"] for each in server.came.get(timeout=PATIENCE_S)] == [7]
        assert "polled for" in caplog.text
        listener.stop()


@for_each("kind", ["rpc", "notifications"])
def test_servers_of_this_release_are_not_polled_for(kind):
    conf = cfg.ConfigOpts()
    conf([], project="test", default_config_files=[])
    target = oslo_messaging.Target(topic="t", server="s")
    if kind == "rpc":
        transport = oslo_messaging.get_rpc_transport(conf, url="fake:")
        server = oslo_messaging.get_rpc_server(transport, target, [object()])
    else:
        transport = oslo_messaging.get_notification_transport(conf, url="fake:")
        server = oslo_messaging.get_notification_listener(
            transport, [target], [object()], executor="threading"
        )
    server.start()
    try:
        assert listeners.find_server(server._on_incoming) is server
    finally:
        server.stop()
        server.wait()
