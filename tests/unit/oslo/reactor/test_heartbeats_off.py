"""A peer that was read up to RCVHWM is killed: libzmq's own heartbeats would abort the process, so nobody arms them.

libzmq issues 4364, 3937 and 4767. Who may be aborted is a process of its own; with ``BEATS=1`` in the environment it
arms a heartbeat all the same, which shows what the test is about.
"""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import zmq

from broker.oslo.reactor.tuning import Tuning, tune_tcp
from tests.tables import for_each

ALIVE_S = 6
"""Longer than the interval of any heartbeat we ever had, 5 s."""
READER = """
    import os, sys, time, zmq
    with zmq.Context() as context, context.socket(zmq.ROUTER) as sock:
        from broker.oslo.reactor.tuning import Tuning, tune_tcp
        tune_tcp(sock, Tuning())
        if "BEATS" in os.environ:
            sock.set(zmq.HEARTBEAT_IVL, 1000)
            sock.set(zmq.HEARTBEAT_TIMEOUT, 20000)
        sock.set(zmq.RCVHWM, 10)
        sock.bind_to_random_port("tcp://127.0.0.1")
        print(sock.get_string(zmq.LAST_ENDPOINT), flush=True)
        peer = sock.recv_multipart()[0]
        for _ in range(60):
            sock.send_multipart([peer, bytes(100_000)], zmq.NOBLOCK)
        sys.stdin.readline()  # the peer is dead
        time.sleep({alive_s})
        count = 0
        while sock.poll(500):
            sock.recv_multipart()
            count += 1
        print(count, flush=True)
"""
PEER = """
    import sys, time, zmq
    with zmq.Context() as context, context.socket(zmq.DEALER) as sock:
        sock.set(zmq.RCVHWM, 1)  # what the kernel holds for a process that is killed is answered by RST
        sock.connect(sys.argv[1])
        for _ in range(1000):
            sock.send(bytes(2000))
        time.sleep(1)  # all of it is with the kernels now, and more than RCVHWM cannot go further
        print("sent", flush=True)
        time.sleep(60)
"""


def python(code: str, *args: str, **more) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *args]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | more
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def lose_a_peer() -> tuple[int, str, int]:
    """What becomes of the reader: return code, what it complained of, messages read afterwards."""
    with python(READER.format(alive_s=ALIVE_S)) as reader:
        with python(PEER, reader.stdout.readline().strip()) as peer:
            assert peer.stdout.readline() == "sent\n"
            peer.send_signal(signal.SIGKILL)
        said, complaint = reader.communicate("dead\n", timeout=30)
        return reader.returncode, complaint, int(said or 0)


@pytest.mark.patient
def test_who_is_behind_with_reading_a_peer_survives_its_end():
    code, complaint, count = lose_a_peer()
    assert (code, complaint) == (0, "")
    assert count >= 10


@for_each("kind", [zmq.ROUTER, zmq.DEALER])
def test_tcp_looks_after_connections_and_zmtp_does_not(kind):
    with zmq.Context() as context, context.socket(kind) as sock:
        tune_tcp(sock, Tuning())
        assert [sock.get(option) for option in (zmq.HEARTBEAT_IVL, zmq.HEARTBEAT_TTL)] == [0, 0]
        assert sock.get(zmq.TCP_KEEPALIVE) == 1
        idle_s, interval_s, count, unconfirmed_ms = (
            sock.get(option)
            for option in (
                zmq.TCP_KEEPALIVE_IDLE,
                zmq.TCP_KEEPALIVE_INTVL,
                zmq.TCP_KEEPALIVE_CNT,
                zmq.TCP_MAXRT,
            )
        )
        assert 1000 * (idle_s + interval_s * count) == unconfirmed_ms <= 20_000
