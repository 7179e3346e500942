"""Real threads, locks and epoll, whatever eventlet has done to the modules they come from."""

import subprocess
import textwrap
import threading
from pathlib import Path

import pytest

from broker.oslo.reactor import natives

ROOT = Path(__file__).parents[4]
PYTHON = ROOT / ".venv-oslo" / "bin" / "python"
TIMEOUT_S = 30

STORY = """
import _thread, os, sys, time

def real(value):
    '''Of the interpreter, not of eventlet.'''
    return "eventlet" not in type(value).__module__

def check():
    from broker.oslo.reactor import Reactor, natives
    from broker.oslo.reactor.bundle import pack
    from broker.oslo.reactor.socket import Outcome, Socket
    import zmq

    assert natives.threads_are_green() is GREEN
    lock = natives.allocate_lock()
    assert real(lock) and lock.acquire() and not lock.acquire(False)
    lock.release()
    epoll = natives.new_epoll()
    assert type(epoll).__name__ == "epoll" and real(epoll)
    epoll.close()
    before = natives.monotonic()
    assert isinstance(before, float)
    bell = natives.Bell()
    bell.ring(); bell.quiet(); bell.quiet()

    idents, beats, made, came = [], [], [], []
    reactor = Reactor(say=lambda level, text, values: made.append(text % values))

    def run():
        idents.append(natives._original("_thread").get_ident())
        reactor.open()
        a, b = (reactor.context.socket(zmq.DEALER) for _ in range(2))
        a.bind("tcp://127.0.0.1:*")
        b.connect(a.get_string(zmq.LAST_ENDPOINT))
        one = Socket(reactor, a, lambda frames, _: one.send([pack(frames)]))
        two = Socket(reactor, b, lambda frames, _: came.append(frames))
        two.send([pack([b"hello", b"there"])])
        reactor.call_later(0.05, made.append, "timer")
        reactor.call_later(0.3, made.append, "late timer")
        reactor.run()
        one.close(); two.close()
        reactor.close()

    thread = natives.start_thread(run, "io")
    assert thread.daemon and thread.name == "io" and real(thread)
    if GREEN:
        import eventlet
        def beat():
            while True:
                beats.append(time.monotonic())
                eventlet.sleep(0.01)
        eventlet.spawn(beat)
    deadline = time.monotonic() + 20
    while not (came and "late timer" in made and len(beats) >= 5 * GREEN):  # beats: the hub does not stand still
        assert time.monotonic() < deadline, (came, made, beats)
        reactor.call_threadsafe(made.append, "from outside") if len(made) < 5 else None
        time.sleep(0.01)
    assert came == [[b"hello", b"there"]]
    assert idents[0] != natives._original("_thread").get_ident(), "it was a greenlet"
    reactor.call_threadsafe(reactor.stop)
    while thread.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert reactor.context is None
    assert "from outside" in made and not [text for text in made if "thread of the sockets" in text], made
"""
ORDERS = {
    "patched before": (True, "import eventlet; eventlet.monkey_patch(); check()"),
    "patched after": (
        True,
        "import broker.oslo.reactor.socket; import eventlet; eventlet.monkey_patch(); check()",
    ),
    "imported and not patched": (False, "import eventlet; check()"),
    "patched but for threads": (False, "import eventlet; eventlet.monkey_patch(thread=False); check()"),
    "patched between two checks": (
        True,
        "GREEN = False; check(); import eventlet; eventlet.monkey_patch(); GREEN = True; check()",
    ),
}


@pytest.mark.interop
@pytest.mark.parametrize("order", ORDERS)
def test_natives_are_real_under_eventlet(order):
    if not PYTHON.exists():
        pytest.skip("no .venv-oslo: `make interop` makes it")
    green, end = ORDERS[order]
    program = f"GREEN = {green}\n{textwrap.dedent(STORY)}\n{end}\nprint('all of it')\n"
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "all of it\n"


def test_without_eventlet_they_are_what_everybody_uses():
    assert not natives.threads_are_green()
    lock = natives.allocate_lock()
    assert lock.acquire(False)
    assert not lock.acquire(False)
    done = threading.Event()
    thread = natives.start_thread(done.set, "name")
    assert type(thread) is threading.Thread
    assert thread.daemon
    assert done.wait(10)
    thread.join(10)
