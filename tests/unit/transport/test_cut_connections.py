"""A connection breaks that took half a message, while its socket is closed or unbound: libzmq 4.3.5 would abort.

Who may be aborted is a process of its own.
"""

import asyncio
import socket
import subprocess
import sys
from unittest.mock import Mock

import pytest
import zmq

from broker.transport.zeromq.connection import inode
from broker.transport.zeromq.hub import LOOKS, _break_and_close, came_within
from broker.transport.zeromq.monitor import EVENT
from tests.tables import for_each

ROUNDS = 60
"""Before connections had to be gone first, one of the first twenty or so ended the process."""


@pytest.mark.patient
@pytest.mark.parametrize("side", ["listener", "dialer"])
def test_both_sides_end_connections_that_took_half_a_message(side):
    command = [sys.executable, "-m", "tests.unit.transport.cut_connections", side, str(ROUNDS)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


class Stopped:
    """A poller of a process that is stopped while it looks for the first time."""

    looks = 0

    def register(self, sock, _flags):
        self.last = sock

    def poll(self, _ms):
        self.looks += 1
        return {self.last: zmq.POLLIN} if self.looks > 1 else {}


def test_who_was_stopped_waits_for_the_end_of_a_connection_all_the_same(monkeypatch):
    poller = Stopped()
    monkeypatch.setattr(zmq, "Poller", lambda: poller)
    monitor, sock = Mock(), Mock()
    monitor.recv_multipart.return_value = [EVENT.pack(zmq.EVENT_DISCONNECTED, 0)]
    near, far = socket.socketpair()
    with near, far:
        _break_and_close(sock, monitor, near.fileno(), inode(near.fileno()))
    assert (poller.looks, sock.close.called) == (2, True)


class Awaited:
    """What libzmq does in the time of a later look."""

    def __init__(self, look):
        self.look, self.looks = look, 0

    async def wait(self):
        self.looks += 1
        if self.looks < self.look:
            await asyncio.Event().wait()
        return True


@for_each("look", [1, 2, LOOKS])
def test_a_stop_of_this_process_uses_up_one_look_of_a_listener(look):
    awaited = Awaited(look)
    assert asyncio.run(came_within(0.04, awaited))
    assert awaited.looks == look


def test_what_libzmq_does_not_do_is_waited_for_no_longer():
    assert not asyncio.run(came_within(0.04, asyncio.Event()))
