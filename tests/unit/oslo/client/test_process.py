"""The life of the thread: nothing before the first use, nothing after the last, forks, the end of the interpreter."""

import os
import subprocess
import sys
import threading
import time

import pytest

from broker.oslo.client.client import THREAD_NAME
from broker.oslo.client.session import ClientSession
from broker.oslo.contract import Address
from tests.live.oslo_raw import PATIENCE_S
from tests.unit.oslo.client.nodes import settings_at

pytestmark = pytest.mark.interpreter

WHERE = Address("x", "t")
SERVER = Address("x", "t", "s")


PROXY = """
import sys
from broker.oslo.proxy.process import NodeProxy
from tests.unit.oslo.client.nodes import whole_node
NodeProxy(whole_node(sys.argv[1])).run(ready=lambda: print("ready", flush=True))
"""


@pytest.fixture
def proxy(folder):
    """A node in a process of its own, so that only ours are counted here."""
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    started = subprocess.Popen(
        [sys.executable, "-c", PROXY, str(folder)], stdout=subprocess.PIPE, env=environ
    )
    with started:
        assert started.stdout.readline() == b"ready\n"
        yield started
        started.terminate()


def threads_of_sockets():
    return [each for each in threading.enumerate() if each.name == THREAD_NAME]


def test_nothing_is_opened_before_the_first_use(folder, descriptors):
    before = descriptors()
    ports = [ClientSession(settings_at(folder)) for _ in range(3)]
    assert (descriptors(), threads_of_sockets()) == (before, [])
    for port in ports:
        port.close()
    assert (descriptors(), threads_of_sockets()) == (before, [])


@pytest.mark.patient
def test_ports_of_equal_settings_have_one_thread_and_it_ends_with_the_last(proxy, folder, descriptors):
    before = descriptors()
    for _ in range(3):
        one, same, other = (ClientSession(settings_at(folder, linger_s=s)) for s in (1.0, 1.0, 0.5))
        inboxes = [port.listen(Address("x", "t", str(n))) for n, port in enumerate((one, same, other))]
        assert one._client is same._client is not other._client
        assert len(threads_of_sockets()) == 2
        for port in (one, same, other):
            port.cast(WHERE, b"")
        one.close()
        same.cast(WHERE, b"")
        same.listen(Address("x", "t", "again"))
        other.close()
        assert len(threads_of_sockets()) == 1
        same.close()
        assert threads_of_sockets() == []
        assert all(inbox.get(None) is None for inbox in inboxes)
        assert descriptors() == before


@pytest.mark.patient
def test_close_is_bounded_when_nobody_takes_what_is_there(folder, node):
    port = ClientSession(settings_at(folder, linger_s=0.3))
    inbox = port.listen(SERVER)
    node.proxy.stop("gone")
    node.join()
    for _ in range(5):
        port.cast(WHERE, b"")
    begin = time.monotonic()
    port.close()
    assert time.monotonic() - begin < 5.0
    assert inbox.get(None) is None


def test_close_flushes_what_was_handed_over(node, folder, open_session):
    inbox = open_session(linger_s=3.0).listen(SERVER)
    client = ClientSession(settings_at(folder, linger_s=5.0))
    for number in range(500):
        client.cast(WHERE, b"%d" % number)
    client.fanout(WHERE, b"last")
    client.close()
    got = [inbox.get(PATIENCE_S).body for _ in range(501)]
    assert sorted(got) == sorted([b"last", *(b"%d" % number for number in range(500))])


PRELUDE = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("error")
from broker.oslo.contract import *
from broker.oslo.client import open_session
from broker.oslo.client.client import THREAD_NAME
signal.alarm(40)
port = open_session(Settings(ipc_dir=sys.argv[1], ready_s=5.0))
where, server = Address("x", "t"), Address("x", "t", "s")
def said(text):
    os.write(1, (text + "\\n").encode())
"""


def run(folder, program, code=0):
    """What a program in a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", PRELUDE + program, str(folder)],
        capture_output=True, text=True, timeout=50, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, ""), (done.stdout, done.stderr)
    return done.stdout.splitlines()


def serving(open_session, stack):
    """Answers calls with the body and the count of calls."""
    inbox = open_session().listen(SERVER)

    def serve():
        while (item := inbox.get(None)) is not None:
            if item.wants_reply:
                item.reply(b"re:" + item.body)

    thread = threading.Thread(target=serve)
    thread.start()
    stack.callback(thread.join, PATIENCE_S)
    stack.callback(inbox.close)
    return inbox


def test_a_child_that_ends_disturbs_nobody(node, folder, open_session, stack):
    serving(open_session, stack)
    lines = run(folder, """
assert port.call(where, b"1", timeout_s=10) == b"re:1"
intake = port.listen(Address("x", "parent", "s"))
for how in ("exit", "return", "close"):
    child = os.fork()
    if child == 0:
        assert intake.get(None) is None
        if how == "close":
            intake.close()
            port.close()
        if how == "exit":
            sys.exit(0)
        said("child " + how)
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert port.call(where, b"2", timeout_s=10) == b"re:2"
port.cast(Address("x", "parent"), b"still mine")
assert intake.get(10).body == b"still mine"
port.close()
said("parent")
""")  # fmt: skip
    assert lines == ["child return", "child close", "parent"]


@pytest.mark.patient
def test_a_port_from_before_the_fork_works_in_the_child(node, folder, open_session, stack):
    serving(open_session, stack)
    lines = run(folder, """
import gc
assert port.call(where, b"1", timeout_s=10) == b"re:1"
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        gc.collect()
        body = b"child %d" % number
        assert port.call(where, body, timeout_s=10) == b"re:" + body
        port.cast(where, b"")
        topic = "mine-%d" % number  # else another child's fan-out may come before our own has been published
        mine = port.listen(Address("x", topic, "s"))
        assert [each.name for each in threading.enumerate()].count(THREAD_NAME) == 1
        port.fanout(Address("x", topic), body)
        assert mine.get(10).body == body
        mine.close()
        if number:
            port.close()
        sys.exit(0)
    children.append(child)
for number in range(50):
    assert port.call(where, b"parent", timeout_s=10) == b"re:parent"
for child in children:
    assert os.waitpid(child, 0)[1] == 0, "a child has failed"
assert port.call(where, b"parent", timeout_s=10) == b"re:parent"
port.close()
said("parent")
""")  # fmt: skip
    assert lines == ["parent"]


def test_a_fork_before_the_first_use_and_prefork_workers(node, folder):
    lines = run(folder, """
children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        intake = port.listen(Address("x", "workers", "w%d" % number))
        while True:
            item = intake.get(20)
            if item.body == b"end":
                break
            item.reply(b"%d" % os.getpid())
        port.close()
        sys.exit(0)
    children.append(child)
for number in range(3):
    port.call(Address("x", "workers", "w%d" % number), b"", timeout_s=10)
pids = {int(port.call(Address("x", "workers"), b"", timeout_s=10)) for _ in range(3)}
assert pids == set(children), (pids, children)
port.fanout(Address("x", "workers"), b"end")
for child in children:
    assert os.waitpid(child, 0)[1] == 0
port.close()
said("all three")
""")  # fmt: skip
    assert lines == ["all three"]


@pytest.mark.patient
def test_a_fork_while_others_use_the_port(node, folder, open_session, stack):
    """Locks of the moment, held by threads that the child does not have, stop nothing there."""
    serving(open_session, stack)
    lines = run(folder, """
over = False
def busy():
    while not over:
        assert port.call(where, b"p", timeout_s=10) == b"re:p"
        port.cast(where, b"")
        other = open_session(Settings(ipc_dir=sys.argv[1], linger_s=0.3))
        other.cast(where, b"")
        other.close()
threads = [threading.Thread(target=busy) for _ in range(4)]
for thread in threads:
    thread.start()
for number in range(10):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        ok = port.call(where, b"c", timeout_s=10) == b"re:c"
        port.close()
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
over = True
for thread in threads:
    thread.join()
port.close()
said("ten children")
""")  # fmt: skip
    assert lines == ["ten children"]


def test_a_process_that_ends_without_closing_loses_nothing(node, folder, open_session):
    inbox = open_session().listen(SERVER)
    assert run(folder, """
for number in range(200):
    port.cast(where, b"%d" % number)
""") == []  # fmt: skip
    assert [int(inbox.get(PATIENCE_S).body) for _ in range(200)] == list(range(200))


def test_a_child_that_ends_without_closing_loses_nothing_either(node, folder, open_session):
    inbox = open_session().listen(SERVER)
    run(folder, """
port.cast(where, b"parent")
child = os.fork()
if child == 0:
    port.cast(where, b"child")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
""")  # fmt: skip
    assert {inbox.get(PATIENCE_S).body for _ in range(2)} == {b"parent", b"child"}


def test_what_a_server_has_not_taken_when_its_process_ends_is_dropped_and_counted(node, folder):
    lines = run(
        folder,
        """
import atexit
def after():
    said(f"{inbox.get(0)} {client.counters.counts['dropped']}")
atexit.register(after)
inbox, client = port.listen(server), port._client
for number in range(5):
    port.cast(where, b"", mandatory=True)
assert inbox.get(10) is not None
while len(inbox._items) < 4:
    time.sleep(0.01)
""",
    )
    assert lines == ["None 4"]
