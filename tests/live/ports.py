"""Ports of 127.0.0.1 for what is started later, or started again: nobody else is given them meanwhile.

A port that the kernel picked and that was free a moment ago may be anybody's when it is bound: that of another test, or
of one end of a connection. These ports are none of those that the kernel picks from, and each process that runs tests
has blocks of them to itself, which it holds by the name of a socket until it ends.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

FIRST = 10240
BLOCK = 64
_dice = random.SystemRandom()
_held: list[socket.socket] = []


def free_port() -> int:
    """A port that nobody listens on, and that no other call on this machine gives."""
    return next(_ports)


def free_ports(count: int) -> list[int]:
    """``count`` of them."""
    return [free_port() for _ in range(count)]


def free_endpoint() -> str:
    """One as an address of ZeroMQ."""
    return f"tcp://127.0.0.1:{free_port()}"


def _each() -> Iterator[int]:
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    below, above = range(FIRST, lowest - BLOCK, BLOCK), range(highest + 1, 65536 - BLOCK, BLOCK)
    blocks = list(below or above)
    _dice.shuffle(blocks)
    for first in blocks:
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            mark.bind(f"\0headgate-tests-ports-{first}")
        except OSError:
            mark.close()
            continue
        _held.append(mark)
        yield from filter(_is_free, range(first, first + BLOCK))
    raise AssertionError("no port is left")


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False


_ports = _each()
