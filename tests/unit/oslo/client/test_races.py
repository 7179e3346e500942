"""What happens at the same time: listeners that begin while ports end, handlers that log and send."""

import logging
import threading
import time

import pytest

from broker.oslo.client.links import TrustedFolder
from broker.oslo.client.routing import RoutingTable
from broker.oslo.client.waiting import LogWriter
from broker.oslo.contract import Address, Closed, Settings, Undelivered
from broker.oslo.directory.wire import DirectoryKind, DirectoryMessage, States, Welcome
from broker.oslo.names import Pipeline
from broker.oslo.reactor import Reactor
from broker.oslo.records import Opened, Record, State
from tests.live.oslo_raw import PATIENCE_S, until

WHERE = Address("x", "t")
SERVER = Address("x", "t", "s")


@pytest.mark.patient
def test_a_listener_that_begins_while_its_port_is_closed_does_not_stay(node, open_session):
    keep = open_session()
    keep.cast(WHERE, b"")
    for turn in range(30):
        port = open_session()
        port.cast(WHERE, b"")
        ended = []

        def listen(port=port, ended=ended):
            try:
                ended.append(port.listen(SERVER))
            except Closed as error:
                ended.append(error)

        thread = threading.Thread(target=listen)
        thread.start()
        until(lambda port=port, turn=turn: port._inboxes or turn % 3 == 0, "the listener")
        port.close()
        thread.join(PATIENCE_S)
        assert isinstance(ended[0], Closed) or ended[0].closed
    until(lambda: keep.status()["listeners"] == 0, "the end of all listeners")
    until(lambda: node.status("call")["listeners"] == 0, "their end at the proxy")


def test_listeners_that_begin_at_once_are_all_ended(node, open_session):
    keep, port = open_session(), open_session()
    keep.cast(WHERE, b"")
    threads = [
        threading.Thread(target=port.listen, args=(Address("x", f"t{number}", "s"),)) for number in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert keep.status()["listeners"] == len(port._inboxes) == 16
    port.close()
    until(lambda: keep.status()["listeners"] == 0, "the end of all listeners")


def test_who_listens_after_another_has_closed_hears_its_own_fanouts(node, open_session):
    """The record of the one before is still in the directory when the next one begins."""
    one, two = open_session(linger_s=0.5), open_session(linger_s=0.6)
    before = one.listen(SERVER)
    for turn in range(10):
        for port in (two, one):
            before.begin_stop()
            time.sleep(turn * 0.0004)
            inbox = port.listen(SERVER)
            port.fanout(WHERE, b"%d" % turn)
            assert inbox.get(PATIENCE_S).body == b"%d" % turn
            before.close()
            before = inbox
    assert "nobody" not in {**one.status()["counts"], **two.status()["counts"]}


def test_a_promised_version_comes_even_if_what_came_has_gone(node):
    announcer = node.proxy.pipelines["fanout"]._announcer

    def promise():
        before = announcer.state.version
        announcer.add((Record("x", "t"),))
        announcer.remove((Record("x", "t"),))
        return before, announcer.promise()

    before, promised = node.within(promise)
    assert promised == before + 1
    until(lambda: node.within(lambda: announcer.state.version) == promised, "the promised version")
    assert node.within(announcer.promise) == promised


class Sending(logging.Handler):
    """What oslo.log's publish_errors does: each record is published."""

    def __init__(self, send):
        super().__init__()
        self.send = send
        self.threads = set()

    def emit(self, record):
        self.threads.add(threading.current_thread().name)
        self.send(record.getMessage().encode())


@pytest.fixture
def handler(stack):
    def make(send):
        made = Sending(send)
        log = logging.getLogger("headgate.oslo")
        log.addHandler(made)
        stack.callback(log.removeHandler, made)
        return made

    return make


def test_a_handler_of_records_may_publish(node, open_session, handler):
    port = open_session()
    inbox = port.listen_notifications([("x", "logs.error")], None)
    made = handler(lambda text: port.notify("x", "logs.error", text))

    def flood(name):
        for number in range(300):
            port.cast(Address("x", f"nobody-{name}-{number}"), b"")

    threads = [threading.Thread(target=flood, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
        assert not thread.is_alive()
    assert inbox.get(PATIENCE_S).body.startswith(b"cast to x/nobody-")
    assert made.threads == {"headgate-oslo-log"}
    port.cast(WHERE, b"")


def test_the_thread_of_the_sockets_does_not_wait_for_itself(node, open_session):
    port = open_session(outbox_msgs=1)
    port.listen(SERVER)
    errors = []

    def call_back(_answer):
        try:
            port.call(WHERE, b"", timeout_s=None)
        except Undelivered as error:
            errors.append(str(error))
        port.cast(WHERE, b"fits")

    port.start_call(Address("x", "nobody"), b"", call_back, timeout_s=0.05)
    until(lambda: errors, "the call from within")
    assert errors == ["x/t: the thread of the sockets would wait for itself"]


def test_records_are_written_in_order_and_bounded(caplog):
    say = LogWriter()
    gate = threading.Event()

    class Slow(logging.Handler):
        def emit(self, record):
            gate.wait(PATIENCE_S)

    slow = Slow()
    log = logging.getLogger("headgate.oslo")
    log.addHandler(slow)
    try:
        for number in range(1_500):
            say(logging.WARNING, "line %d", (number,))
        assert say.dropped >= 400
        gate.set()
        say.flush(PATIENCE_S)
    finally:
        log.removeHandler(slow)
    lines = [int(record.getMessage().split()[1]) for record in caplog.records]
    assert lines == list(range(len(lines)))
    assert len(lines) + say.dropped == 1_500


def test_a_record_of_the_one_before_does_not_count():
    """Fan-outs have no listeners in the directory: what was announced before is told apart by its version."""
    settings = Settings(ipc_dir="/nowhere", directories=("tcp://127.0.0.1:1",))
    folder = TrustedFolder(settings.ipc_dir, lambda *_: None)
    routes = RoutingTable(Reactor(), settings, folder, lambda _nodes: None)
    record = Record("x", "t")

    def told(version, *records):
        state = State("n1", "fanout", 7, version, "", "", records)
        routes.replica.feed("d", DirectoryMessage(DirectoryKind.STATES, States((state,), True)), 0.0)

    def lists(version):
        opened = Opened("n1", 7, version=version)
        return routes.lists({Pipeline.FANOUT: opened})

    routes.replica.feed("d", DirectoryMessage(DirectoryKind.WELCOME, Welcome("d", 1, 5.0)), 0.0)
    told(3, record)
    assert (lists(3), lists(4), lists(5)) == (True, False, False)
    told(4)
    assert not lists(5)
    told(5, record)
    assert lists(5)
