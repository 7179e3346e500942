"""A gateway with few file descriptors, and clients that open connections and say nothing, or nonsense."""

import contextlib
import socket
from urllib.parse import urlsplit

import pytest

from broker.loglines import LINES_PER_S
from tests.live.gateways import GatewayProcess, config_in

pytestmark = [pytest.mark.story, pytest.mark.patient]
FILES = 256
IDLE = 400
MALFORMED = 500


def dial(running):
    place = urlsplit(running.urls[0])
    return socket.create_connection((place.hostname, place.port), timeout=20)


def ask(sock, running, user):
    """The status of one answer; the connection stays."""
    credential = running.bearer(user)["Authorization"]
    sock.sendall(f"GET /v1/session HTTP/1.1\r\nHost: x\r\nAuthorization: {credential}\r\n\r\n".encode())
    said = b""
    while not said.endswith(b"}"):
        more = sock.recv(4096)
        assert more, said
        said += more
    return int(said.split()[1])


@pytest.fixture
def running(rundir, broker):
    started = GatewayProcess(config_in(rundir, broker.uri), files=FILES)
    try:
        started.wait_ready()
        yield started
    finally:
        started.kill()


def test_idle_strangers_keep_nobody_out_however_few_descriptors_there_are(running):
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(dial(running))
        assert ask(mine, running, "bob") == 200
        for number in range(IDLE):
            stack.enter_context(dial(running))
            if number % 100 == 99:
                with dial(running) as fresh:
                    assert ask(fresh, running, "ada") == 200
        assert ask(mine, running, "bob") == 200, "a connection of a user is ended for no stranger"
    assert running.stop() == 0
    text = "\n".join(running.lines())
    assert "file descriptors allow" in text
    assert "by the limit anonymous_per_address" in text
    assert "Traceback" not in text
    assert len(text) < 4000


def test_what_is_no_http_is_a_few_lines(running):
    before = len(running.lines())
    for _ in range(MALFORMED):
        with dial(running) as sock:
            sock.sendall(b"G\x00T / HTTP/1.1\r\nHost: " + b"x" * 4000 + b"\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.0 400 ")
    with dial(running) as sock:
        assert ask(sock, running, "bob") == 200
    assert running.stop() == 0
    lines = running.lines()[before:]
    told = [line for line in lines if "malformed request" in line]
    assert told
    assert all(len(line) < 200 for line in told)
    assert "Traceback" not in "\n".join(lines)
    assert len(lines) - len(told) < 10
    seconds = len({line[:19] for line in told})  # a fresh allowance in each of them
    assert len(told) <= LINES_PER_S * (seconds + 1)
