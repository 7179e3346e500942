"""In a process that eventlet has patched: nothing blocks the hub, no green lock meets the thread of the sockets."""

import importlib.util
import os
import subprocess
import sys
import threading

import pytest

from broker.oslo.contract import Address
from tests.live.oslo_raw import PATIENCE_S

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("eventlet") is None, reason="optional: eventlet is not installed"
)

PRELUDE = """
import warnings
warnings.simplefilter("ignore")
import eventlet
eventlet.monkey_patch()
import logging, os, signal, sys, time
from broker.oslo.contract import *
from broker.oslo.client import open_session
from broker.oslo.client import waiting
signal.alarm(40)
port = open_session(Settings(ipc_dir=sys.argv[1], ready_s=5.0, retry_s=0.05))
where, server = Address("x", "t"), Address("x", "t", "s")
ticks = 0
def tick():
    global ticks
    while True:
        eventlet.sleep(0.01)
        ticks += 1
ticker = eventlet.spawn(tick)
def said(text):
    os.write(1, (text + "\\n").encode())
"""


def run(folder, program):
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, str(folder)],
        capture_output=True, text=True, timeout=50, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), (done.stdout, done.stderr)
    return done.stdout.splitlines()


@pytest.fixture
def answering(node, open_session, stack):
    """A server in this process that answers calls."""
    inbox = open_session().listen(Address("x", "t", "s"))

    def serve():
        while (item := inbox.get(None)) is not None:
            if item.wants_reply and item.body != b"silence":
                item.reply(b"re:" + item.body)

    thread = threading.Thread(target=serve)
    thread.start()
    stack.callback(thread.join, PATIENCE_S)
    stack.callback(inbox.close)
    return inbox


@pytest.mark.patient
def test_greenlets_call_at_once_and_others_run_meanwhile(answering, folder):
    assert run(folder, """
def ask(number):
    body = b"%d" % number
    return port.call(where, body, timeout_s=10) == b"re:" + body
pool = eventlet.GreenPool(50)
assert all(pool.imap(ask, range(200)))
before = ticks
begin = time.monotonic()
try:
    port.call(where, b"silence", timeout_s=0.25)
except CallTimeout as error:
    assert 0.25 <= time.monotonic() - begin
    assert "1 server listens there" in str(error)
assert ticks - before > 10, ticks - before
port.close()
said("done")
""") == ["done"]  # fmt: skip


@pytest.mark.smoke
def test_a_server_in_greenlets(node, folder):
    assert run(folder, """
intake = port.listen(server)
got = []
def serve():
    while True:
        item = intake.get(None)
        if item is None:
            return
        got.append(item.body)
        if item.wants_reply:
            eventlet.spawn_n(item.reply, item.body)
serving = [eventlet.spawn(serve) for _ in range(3)]
for number in range(50):
    assert port.call(where, b"%d" % number, timeout_s=10) == b"%d" % number
    port.cast(where, b"c")
port.fanout(where, b"fan")
begin = time.monotonic()
while len(got) < 101 and time.monotonic() - begin < 10:
    eventlet.sleep(0.01)
assert len(got) == 101, len(got)
assert port.listen_notifications([("x", "n.info")], None).get(0.1) is None
intake.stop()
for each in serving:
    each.wait()
port.close()
eventlet.sleep(0)
assert waiting._dispatchers == {}
said("done")
""") == ["done"]  # fmt: skip


@pytest.mark.patient
def test_a_greenlet_that_is_killed_or_times_out_disturbs_nobody(answering, folder):
    assert run(folder, """
waits = eventlet.spawn(port.call, where, b"silence", timeout_s=30)
eventlet.sleep(0.1)
waits.kill()
with eventlet.Timeout(0.1, False):
    port.call(where, b"silence", timeout_s=30)
    raise AssertionError("it was answered")
deadline = time.monotonic() + 10
while port.status()["pending"] and time.monotonic() < deadline:
    eventlet.sleep(0.01)
assert port.status()["pending"] == 0
assert port.call(where, b"1", timeout_s=10) == b"re:1"
port.close()
said("done")
""") == ["done"]  # fmt: skip


@pytest.mark.patient
def test_logs_of_the_thread_are_written_by_a_greenlet(answering, folder):
    assert run(folder, """
import threading
class Handler(logging.Handler):
    def emit(self, record):
        with lock:
            eventlet.sleep(0.05)
        said(record.getMessage() + " / " + str(eventlet.getcurrent() is eventlet.hubs.get_hub().greenlet))
lock = threading.Lock()
logging.getLogger("headgate.oslo").addHandler(Handler())
with lock:
    port.cast(Address("x", "nobody"), b"")
    eventlet.sleep(0.1)
    assert port.call(where, b"1", timeout_s=10) == b"re:1"
eventlet.sleep(0.2)
port.close()
""") == ["cast to x/nobody dropped: nobody listens there / False"]  # fmt: skip


@pytest.mark.patient
def test_a_worker_that_was_forked_has_a_hub_of_its_own(answering, folder):
    assert run(folder, """
assert port.call(where, b"1", timeout_s=10) == b"re:1"
child = os.fork()
if child == 0:
    eventlet.hubs.use_hub()
    assert port.call(where, b"2", timeout_s=10) == b"re:2"
    mine = port.listen(Address("x", "child", "s"))
    port.cast(Address("x", "child"), b"")
    assert mine.get(10) is not None
    port.close()
    os._exit(0)
for _ in range(20):
    assert port.call(where, b"1", timeout_s=10) == b"re:1"
assert os.waitpid(child, 0)[1] == 0
port.close()
said("done")
""") == ["done"]  # fmt: skip


@pytest.mark.patient
def test_real_threads_wait_on_hubs_of_their_own(answering, folder):
    assert run(folder, """
from eventlet import tpool
def ask(number):
    return port.call(where, b"%d" % number, timeout_s=10)
assert port.call(where, b"1", timeout_s=10) == b"re:1"
pool = eventlet.GreenPool(10)
assert list(pool.imap(lambda n: tpool.execute(ask, n), range(30))) == [b"re:%d" % n for n in range(30)]
port.close()
tpool.killall()
said("done")
""") == ["done"]  # fmt: skip


@pytest.mark.patient
def test_a_process_that_ends_without_closing_loses_nothing(node, open_session, folder):
    inbox = open_session().listen(Address("x", "t", "s"))
    run(folder, """
for number in range(200):
    port.cast(where, b"%d" % number)
""")  # fmt: skip
    assert [int(inbox.get(PATIENCE_S).body) for _ in range(200)] == list(range(200))
