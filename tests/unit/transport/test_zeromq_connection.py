"""One connection by its descriptor: how long its other end has been silent, by what the kernel says."""

import socket
import time

import pytest

from broker.transport.zeromq.connection import inode, silent_s, taken_bytes


def pair(stack: list[socket.socket]) -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        stack += [near, server.accept()[0]]
    return near


@pytest.mark.patient
def test_an_idle_machine_is_silent_only_where_nothing_asks_for_it():
    ends: list[socket.socket] = []
    try:
        asking, still = pair(ends), pair(ends)
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            asking.setsockopt(socket.IPPROTO_TCP, option, 1)
        time.sleep(2.6)
        assert silent_s(still.fileno(), inode(still.fileno())) >= 2.5
        assert silent_s(asking.fileno(), inode(asking.fileno())) < 1.6
    finally:
        for sock in ends:
            sock.close()


def test_what_is_no_tcp_or_another_socket_by_now_is_never_silent():
    near, far = socket.socketpair()
    with near, far:
        assert silent_s(near.fileno(), inode(near.fileno())) == 0.0
        assert silent_s(near.fileno(), inode(near.fileno()) + 1) == 0.0


def test_what_the_other_end_has_taken():
    ends: list[socket.socket] = []
    try:
        near = pair(ends)
        number = inode(near.fileno())
        before = taken_bytes(near.fileno(), number)
        near.sendall(bytes(1000))
        until = time.monotonic() + 10
        while taken_bytes(near.fileno(), number) < before + 1000:  # whose acknowledgement may come later
            assert time.monotonic() < until
        assert taken_bytes(near.fileno(), number) == before + 1000
        assert taken_bytes(near.fileno(), number + 1) == 0
    finally:
        for sock in ends:
            sock.close()
    assert taken_bytes(near.fileno(), number) == 0
