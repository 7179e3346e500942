"""Names of hosts: looked up in other threads, once for all who wait, again when it fails, again when a peer is away."""

import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import zmq

from broker.errors import ConfigError
from broker.oslo.reactor import Reactor, naming
from broker.oslo.reactor.link import AWAY_FIRST_S, AWAY_LAST_S, Link
from broker.oslo.reactor.naming import look_up, names_of
from tests.live.oslo_wire import tell
from tests.unit.oslo.reactor.turns import PATIENCE_S, by_hand, received

NAME = "tcp://node7.example"
ROOT = Path(__file__).resolve().parents[4]
PYTHON = ROOT / ".venv-oslo" / "bin" / "python"


class Resolver:
    """Answers when the test says so, with what it says: addresses, or an error."""

    def __init__(self) -> None:
        self.asked = []
        self.answers = {}
        self._there = threading.Condition()

    def __call__(self, host):
        with self._there:
            self.asked.append(host)
            assert self._there.wait_for(lambda: host in self.answers, PATIENCE_S)
            answer = self.answers[host]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def say(self, host, answer):
        with self._there:
            self.answers[host] = answer
            self._there.notify_all()


class Clock:
    """Real seconds, and those that a test leaps over."""

    def __init__(self) -> None:
        self.leapt = 0.0
        self._real = naming.natives.monotonic

    def __call__(self) -> float:
        return self._real() + self.leapt


@pytest.fixture
def resolver(monkeypatch):
    resolver = Resolver()
    monkeypatch.setattr(naming, "look_up", resolver)
    yield resolver
    for host in list(resolver.asked):
        resolver.say(host, OSError("the test is over"))


@pytest.fixture
def hand():
    with by_hand() as it:
        it.reactor.now = Clock()
        yield it


def listening(hand, host="127.0.0.1"):
    sock = hand.peer(zmq.ROUTER, IPV6=int(":" in host))
    text = f"[{host}]" if ":" in host else host
    return sock, sock.bind_to_random_port(f"tcp://{text}")


def dial(hand, where, got=None):
    """A link to ``where``; what comes is put into ``got``."""
    return Link(hand.reactor, zmq.DEALER, where, received([] if got is None else got))


def echoed(hand, peer):
    """The peer answers what it gets."""

    def did():
        if not peer.poll(0):
            return False
        tell(peer, *peer.recv_multipart())
        return True

    hand.until(did)


def threads():
    return [each for each in threading.enumerate() if each.name == naming.THREAD_NAME]


def test_numbers_and_files_are_connected_at_once_and_need_no_thread(hand, resolver, rundir):
    for host in ("127.0.0.1", "::1"):
        try:
            peer, port = listening(hand, host)
        except zmq.ZMQError:
            pytest.skip("optional: this machine has no IPv6")
        got = []
        where = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        link = dial(hand, where, got)
        assert link.at == where
        assert not link.movable
        link.send([b"x"])
        echoed(hand, peer)
        hand.until(lambda got=got: got == [[b"x"]])
        link.check_peer(True)
        link.close()
    peer = hand.peer(zmq.ROUTER)
    peer.bind(f"ipc://{rundir}/s")
    got = []
    dial(hand, f"ipc://{rundir}/s", got).send([b"x"])
    echoed(hand, peer)
    hand.until(lambda: got)
    assert resolver.asked == []
    assert threads() == []


def test_a_name_keeps_nobody_but_its_own_socket(hand, resolver):
    slow_got = []
    slow = dial(hand, f"{NAME}:1", slow_got)
    hand.until(lambda: resolver.asked == ["node7.example"])
    slow.send([b"kept until then"])
    peer, port = listening(hand)
    got = []
    other = dial(hand, f"tcp://127.0.0.1:{port}", got)
    for n in range(50):  # the name server says nothing all the while
        other.send([b"%d" % n])
        echoed(hand, peer)
        hand.until(lambda n=n: len(got) == n + 1)
    assert (slow.at, slow.waiting, slow_got) == ("", 1, [])
    slow._where = slow._where._replace(port=port)
    resolver.say("node7.example", ("127.0.0.1",))
    hand.until(lambda: slow.at == f"tcp://127.0.0.1:{port}")
    echoed(hand, peer)
    hand.until(lambda: slow_got == [[b"kept until then"]])


def test_one_look_up_serves_all_and_is_kept_for_a_while(hand, resolver):
    resolver.say("node7.example", ("127.0.0.1",))
    ways = [dial(hand, f"{NAME}:{port}") for port in range(9501, 9505)]
    hand.until(lambda: all(way.at for way in ways))
    assert [way.at for way in ways] == [f"tcp://127.0.0.1:{port}" for port in range(9501, 9505)]
    assert dial(hand, f"{NAME}:9505").at == "tcp://127.0.0.1:9505"
    assert len(resolver.asked) == 1


def test_a_name_that_hangs_does_not_keep_the_others(hand, resolver):
    dial(hand, f"{NAME}:1")
    hand.until(lambda: resolver.asked)
    for n in range(20):
        resolver.say(f"n{n}", ("127.0.0.2",))
    ways = [dial(hand, f"tcp://n{n}:1") for n in range(20)]
    hand.until(lambda: all(way.at for way in ways))
    assert 2 <= len(threads()) <= naming.THREADS_MAX


def test_failures_are_said_once_and_tried_again_until_the_socket_is_closed(hand, resolver, monkeypatch):
    monkeypatch.setattr(naming, "PAUSE_FIRST_S", 0.02)
    resolver.say("node7.example", OSError("no name server"))
    way = dial(hand, f"{NAME}:1")
    hand.until(lambda: len(resolver.asked) >= 4)
    lines = [text for _level, text in hand.said]
    assert lines == [
        "host 'node7.example' cannot be resolved: no name server; tried again while it is needed"
    ]
    resolver.say("node7.example", ("127.0.0.1",))
    hand.until(lambda: way.at)
    given_up = []
    for number in range(2):
        resolver.say(f"no{number}", UnicodeError("label too long"))
        given_up.append(dial(hand, f"tcp://no{number}:1"))
    hand.until(lambda: resolver.asked.count("no0") > 1)
    for each in given_up:
        each.close()
    hand.until(lambda: list(names_of(hand.reactor)._hosts) == ["node7.example"])
    assert len(hand.said) == 1  # the others failed within the same few seconds


def test_a_name_is_looked_up_soon_at_first_and_then_more_rarely(hand, resolver):
    resolver.say("node7.example", OSError("no"))
    dial(hand, f"{NAME}:1")
    pauses = []
    for tries in range(1, 9):
        host = names_of(hand.reactor)._hosts["node7.example"]
        hand.until(lambda tries=tries, host=host: len(resolver.asked) == tries and host.timer)
        pauses.append(round(host.timer.due_s - hand.reactor.now(), 1))
        hand.reactor.now.leapt += host.timer.due_s - hand.reactor.now()
    assert pauses == [0.2, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]


def test_a_peer_that_is_away_is_looked_up_again_and_followed(hand, resolver):
    old, port = listening(hand)
    resolver.say("node7.example", ("127.0.0.1",))
    got = []
    way = dial(hand, f"{NAME}:{port}", got)
    hand.until(lambda: way.at)
    way.send([b"1"])
    echoed(hand, old)
    hand.until(lambda: got)
    old.close()  # or libzmq might still give it something
    new = hand.peer(zmq.ROUTER)
    new.bind(f"tcp://127.0.0.2:{port}")
    resolver.say("node7.example", ("127.0.0.2",))
    way.check_peer(False)
    hand.reactor.now.leapt += AWAY_FIRST_S - 1
    way.check_peer(True)
    assert len(resolver.asked) == 1  # it has not been away for long
    hand.reactor.now.leapt += 2
    way.check_peer(True)
    hand.until(lambda: way.at == f"tcp://127.0.0.2:{port}")

    def arrived():
        way.send(
            [b"2"]
        )  # until libzmq has noticed the end of the old connection, it may give that one something
        return new.poll(0)

    hand.until(arrived)
    echoed(hand, new)
    hand.until(lambda: len(got) == 2)


def test_an_address_that_leads_nowhere_gives_way_to_the_next_one(hand, resolver):
    resolver.say("node7.example", ("127.0.0.1", "127.0.0.2", "127.0.0.3"))
    way = dial(hand, f"{NAME}:1")
    hand.until(lambda: way.at)
    seen = [way.at]
    for _ in range(3):
        hand.reactor.now.leapt += AWAY_LAST_S
        way.check_peer(True)
        hand.until(lambda: way.at != seen[-1])
        seen.append(way.at)
    assert seen == [f"tcp://127.0.0.{n}:1" for n in (1, 2, 3, 1)]


def test_known_addresses_stay_in_use_without_a_name_server(hand, resolver):
    resolver.say("node7.example", ("127.0.0.1",))
    first = dial(hand, f"{NAME}:1")
    hand.until(lambda: first.at)
    hand.reactor.now.leapt += naming.FRESH_S + 1
    resolver.say("node7.example", OSError("no name server"))
    second = dial(hand, f"{NAME}:2")
    hand.until(lambda: second.at == "tcp://127.0.0.1:2")
    assert len(resolver.asked) == 2


def test_names_that_nobody_waits_for_are_forgotten_when_there_are_many(hand, resolver, monkeypatch):
    monkeypatch.setattr(naming, "HOSTS_MAX", 3)
    for n in range(8):
        resolver.say(f"n{n}", ("127.0.0.1",))
        way = dial(hand, f"tcp://n{n}:1")
        hand.until(lambda way=way: way.at)
    assert len(names_of(hand.reactor)._hosts) <= 3


def test_closing_waits_for_no_resolver_and_forgets_what_comes_late(resolver):
    reactor = Reactor()
    reactor.open()
    link = Link(reactor, zmq.DEALER, f"{NAME}:1")
    while not resolver.asked:
        reactor.call_later(0.01, lambda: None)
        reactor.turn()
    (thread,) = threads()
    link.close()
    reactor.close()
    assert thread.is_alive()
    assert reactor not in naming._names
    resolver.say("node7.example", ("127.0.0.1",))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_the_end_of_the_process_and_a_fork_wait_for_no_resolver():
    script = """
        import os, threading, zmq
        from broker.oslo.reactor import Reactor, naming
        from broker.oslo.reactor.link import Link
        never = threading.Event()
        asked = threading.Event()
        def hang(host):
            asked.set()
            never.wait()
        naming.look_up = hang
        def begin():
            reactor = Reactor()
            reactor.open()
            link = Link(reactor, zmq.DEALER, "tcp://node7.example:1")
            assert asked.wait(10)
            return reactor, link
        parents = begin()
        child = os.fork()
        asked.clear()
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        else:
            naming.look_up = lambda host: ("127.0.0.1",)
            asked.set()
            reactor, link = begin()
            while not reactor.turns or not link.sock.get(zmq.LAST_ENDPOINT):
                reactor.call_later(0.01, lambda: None)
                reactor.turn()
            link.close()
            reactor.close()
            os._exit(7)
        parents[1].close()
        parents[0].close()
        print("ended")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ended"), done.stderr


PATCHED = """
import time
import eventlet
eventlet.monkey_patch()
import threading
import zmq
from broker.oslo.reactor import Reactor, naming, natives
from broker.oslo.reactor.link import Link

real, blocked = naming.look_up, []

def look_up(host):
    blocked.append(natives._original("_thread").get_ident())
    end = natives.monotonic() + 10
    while len(beats) <= 5 and natives.monotonic() < end:  # it keeps its thread, as the system's resolver does
        natives._original("time").sleep(0.01)
    return real(host)

naming.look_up = look_up
reactor, made, beats = Reactor(), [], []

def run():
    reactor.open()
    way = Link(reactor, zmq.DEALER, "tcp://localhost:1")

    def look():
        if not way.at:
            reactor.call_later(0.01, look)
            return
        made.append(way.at)
        way.close()
        reactor.stop()

    look()
    reactor.run()
    reactor.close()

thread = natives.start_thread(run, "io")
over = time.monotonic() + 20
while thread.is_alive():
    assert time.monotonic() < over
    beats.append(eventlet.sleep(0.01))
assert made == ["tcp://127.0.0.1:1"], made
assert blocked and blocked[0] != natives._original("_thread").get_ident()
assert len(beats) > 5, "the hub stood still"
print("all of it")
"""


@pytest.mark.interop
def test_names_are_looked_up_in_real_threads_under_eventlet():
    if not PYTHON.exists():
        pytest.skip("no .venv-oslo: `make interop` makes it")
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", PATCHED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "all of it\n"), done.stderr[-2000:]


def test_what_is_no_endpoint_is_refused(hand):
    for wrong in ("tcp://nowhere", "udp://127.0.0.1:1", "tcp://h:99999"):
        with pytest.raises(ConfigError):
            dial(hand, wrong)


def test_the_system_is_asked_for_ipv4_first():
    found = look_up("localhost")
    assert found[0] == "127.0.0.1"
    with pytest.raises(ValueError, match=r".+"):
        look_up("a" * 64 + ".example")
