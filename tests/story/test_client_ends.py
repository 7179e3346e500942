"""However a client ends, nothing of it stays behind and nobody waits for it."""

import signal
import socket
import subprocess
import sys
import time

import pytest

from broker.wire.message import RESPONSE, request
from broker.wire.payload import decode_json, encode_json
from tests.live.brokers import eventually
from tests.live.load import Caller, Provider, stop_all
from tests.live.speaker import Speaker, path_of, provide

pytestmark = pytest.mark.story

EHOSTUNREACH = 113
HALF_A_FRAME = """
import socket, sys, time
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
sock.recv(1)
sock.sendall(bytes.fromhex("1200eeff000f4240000b") + b"broker.p")
print("said half", flush=True)
time.sleep(60)
"""
HANG = """
import sys
sys.path.insert(0, sys.argv[2])
from tests.live.speaker import Speaker, provide
with Speaker(sys.argv[1]) as speaker:
    provide(speaker, "fragile")
    print("ready", flush=True)
    while True:
        speaker.next(60)
"""


def child(code: str, *args: str) -> "subprocess.Popen[str]":
    process = subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def test_killed_in_the_middle_of_a_frame(broker):
    provider = Provider(broker.uri, "calm")
    other = Caller(broker.uri, "calm", 1, 0)
    fds = broker.fds()
    for _ in range(3):
        kill(child(HALF_A_FRAME, path_of(broker.uri)))
    eventually(broker.fds, fds)
    stop_all([other, provider])
    assert other.done > 0


def test_a_provider_killed_with_calls_in_flight(broker, request_root):
    process = child(HANG, broker.uri, request_root)
    with Speaker(broker.uri) as one, Speaker(broker.uri) as two:
        for caller in (one, two):
            caller.tell(*(request("fragile.x", b"", matchtag=tag) for tag in range(1, 101)))
            assert caller.ping() == 0
            assert caller.seen == []
        kill(process)
        for caller in (one, two):
            answers = [caller.next() for _ in range(100)]
            assert {(answer.type, answer.errnum) for answer in answers} == {(RESPONSE, EHOSTUNREACH)}
            assert [answer.matchtag for answer in answers] == list(range(1, 101))
            assert caller.ask(request("fragile.x", matchtag=7)).errnum == 38
            assert caller.ping() == 0
            assert caller.seen == []


@pytest.fixture
def request_root(pytestconfig):
    return str(pytestconfig.rootpath)


def test_a_stream_of_a_killed_provider_ends(broker, request_root):
    process = child(HANG, broker.uri, request_root)
    with Speaker(broker.uri) as caller:
        caller.tell(request("fragile.watch", matchtag=5, flags=0x40))
        assert caller.ping() == 0
        kill(process)
        end = caller.next()
        assert (end.errnum, end.flags & 0x40) == (EHOSTUNREACH, 0x40)


def test_a_caller_gone_gets_no_answer_and_its_provider_one_notice(broker):
    with Speaker(broker.uri) as provider:
        provide(provider, "quiet")
        caller = Speaker(broker.uri)
        caller.tell(*(request("quiet.x", matchtag=tag) for tag in range(1, 11)))
        for _ in range(10):
            assert provider.next().topic == "quiet.x"
        caller.close()
        assert provider.next().topic == "quiet.disconnect"
        assert provider.ping() == 0
        assert provider.seen == []


def figures(uri: str) -> tuple[int, int]:
    """(links, open calls) that the broker itself counts."""
    with Speaker(uri) as client:
        stats = decode_json(
            client.ask(request("broker.stats-get", encode_json({"detail": True}), matchtag=1)).payload
        )
        return stats["links"], stats["pending"]


@pytest.mark.patient
def test_a_storm_of_connections_leaves_nothing(broker):
    with Speaker(broker.uri) as provider:
        provide(provider, "busy")
        for warm in range(20):
            come_and_go(broker.uri, warm)
        while provider.seen or readable(provider):
            provider.seen.clear()
        fds, memory = broker.fds(), broker.rss_kib()
        for number in range(1500):
            come_and_go(broker.uri, number)
            if number % 50 == 49:
                while readable(provider):
                    provider.seen.clear()
        eventually(broker.fds, fds)
        assert figures(broker.uri) == (2, 1)  # the provider and the one that asks
        assert broker.rss_kib() - memory < 8 << 10


def readable(speaker: Speaker) -> bool:
    try:
        return speaker.receive(0.05)
    except TimeoutError:
        return False


def come_and_go(uri: str, number: int) -> None:
    """Connect and leave in one of several ways."""
    client = Speaker(uri, greet=number % 3 != 0)
    if number % 5 == 1:
        client.tell(request("busy.x", encode_json({}), matchtag=1))
    if number % 5 == 2:
        client.tell(request("event.subscribe", encode_json({"topic": "x"}), matchtag=1))
    if number % 5 == 3:
        client.tell(request("service.add", encode_json({"service": f"svc{number}"}), matchtag=1))
    if number % 7 == 0:
        client.sock.shutdown(socket.SHUT_WR)
    client.close()


@pytest.mark.slow
def test_two_thousand_idle_connections(broker):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("optional: needs 4096 file descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (4096, hard))
    before, fds = broker.rss_kib(), broker.fds()
    idle = []
    try:
        for _ in range(2000):
            idle.append(Speaker(broker.uri))
        with Speaker(broker.uri) as client:
            began = time.monotonic()
            assert all(client.ping() == 0 for _ in range(100))
            assert time.monotonic() - began < 10
        assert (broker.rss_kib() - before) / 2000 <= 8, "KiB per idle connection"
    finally:
        for one in idle:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    eventually(broker.fds, fds)
