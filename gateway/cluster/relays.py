"""Partitions without privileges: whoever dials a rank reaches a relay of the supervisor, which can hold back.

The address of a rank is a UNIX socket of the relay; the rank itself listens on another one behind it. The relay knows
who dials by the process id that the kernel tells (SO_PEERCRED). A cut link stays open on both sides and carries
nothing, not even its end; a connection that is made meanwhile is accepted and hangs. At the heal all of it goes on.

What one read has taken before the cut (``CHUNK_BYTES`` at most) still arrives, as a packet on its way would.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import select
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from gateway.cluster.control import peer_pid
from gateway.cluster.links import Enter, crossing
from gateway.cluster.shape import Shape

log = logging.getLogger("headgate")

CHUNK_BYTES: Final = 256 << 10
BACKLOG: Final = 128
REDIAL_S: Final = 0.05
"""From one attempt to reach a rank behind its relay to the next."""
REST_S: Final = 1.0
"""After a connection could not be taken; and how often it is looked whether the child of one that waits is there."""


def addresses(shape: Shape, sockets: Path) -> dict[int, str]:
    """Rank -> where it is dialled: at its relay."""
    return {rank: f"ipc://{sockets}/tree-{rank}" for rank in shape.ranks()}


def binds(shape: Shape, sockets: Path) -> dict[int, str]:
    """Rank -> where it listens: behind its relay."""
    return {rank: f"ipc://{sockets}/rank-{rank}" for rank in shape.ranks()}


class Relays:
    """All relays of one cluster (``links.Links``).

    Args:
        shape: of the cluster.
        sockets: folder of the sockets.
        rank_of: process id -> the rank that it is at present; None: nobody we know, who is turned away.
    """

    def __init__(self, shape: Shape, sockets: Path, rank_of: Callable[[int], int | None]) -> None:
        self._shape = shape
        self._sockets = sockets
        self._rank_of = rank_of
        self._gates = {rank: asyncio.Event() for rank in shape.ranks()}
        for gate in self._gates.values():
            gate.set()
        self._doors: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen in front of every rank that has children."""
        for rank in self._shape.ranks():
            if not self._shape.children(rank):
                continue
            path = self._sockets / f"tree-{rank}"
            door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            door.setblocking(False)
            self._doors.append(door)
            door.bind(str(path))
            door.listen(BACKLOG)
            self._keep(self._accept(door, rank), f"relay of rank {rank}")

    async def close(self) -> None:
        """Close every connection and every door."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for door in self._doors:
            door.close()
        self._doors.clear()

    def enter(self, rank: int) -> Enter | None:
        """Nothing: all ranks share the machine's network."""
        return None

    async def cut(self, apart: frozenset[int]) -> None:
        """Close the gates of the links that lead from one side to the other, open all others."""
        closed = crossing(self._shape, apart)
        for rank, gate in self._gates.items():
            if rank in closed:
                gate.clear()
            else:
                gate.set()

    async def _accept(self, door: socket.socket, parent: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                near, _ = await loop.sock_accept(door)
            except OSError as error:  # no descriptors left: those who wait get in later
                log.warning("relay of rank %d: %s", parent, error)
                await asyncio.sleep(REST_S)
                continue
            near.setblocking(False)
            child = self._rank_of(peer_pid(near))
            if child is None or self._shape.parent(child) != parent:
                log.warning("relay of rank %d: pid %d is no child of it", parent, peer_pid(near))
                near.close()
                continue
            self._keep(self._carry(near, parent, self._gates[child]), f"link of rank {child}")

    async def _carry(self, near: socket.socket, parent: int, gate: asyncio.Event) -> None:
        """One connection, from the child's to the parent's socket and back, until one of them ends."""
        loop = asyncio.get_running_loop()
        with near, contextlib.ExitStack() as stack:
            try:
                far = stack.enter_context(await self._dialled(near, parent, gate))
            except ConnectionAbortedError:
                return
            ways = [
                loop.create_task(_pump(near, far, gate), name="up"),
                loop.create_task(_pump(far, near, gate), name="down"),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _dialled(self, near: socket.socket, parent: int, gate: asyncio.Event) -> socket.socket:
        """A connection to the rank itself, once it listens: a peer that accepts and hangs up would be taken for a wrong
        one.

        Raises:
            ConnectionAbortedError: the child has given up meanwhile; each of its attempts would be kept until the heal.
        """
        loop = asyncio.get_running_loop()
        while True:
            await _opened(near, gate)
            far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            far.setblocking(False)
            try:
                await loop.sock_connect(far, str(self._sockets / f"rank-{parent}"))
                far.getpeername()  # a full queue of the parent's looks like success until now
                return far
            except OSError:
                far.close()
            except BaseException:
                far.close()
                raise
            await asyncio.sleep(REDIAL_S)

    def _keep(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _opened(near: socket.socket, gate: asyncio.Event) -> None:
    """Until the gate is open.

    Raises:
        ConnectionAbortedError: whoever has connected has left.
    """
    look = select.poll()
    look.register(near, select.POLLRDHUP)
    while True:
        if look.poll(0):
            raise ConnectionAbortedError
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REST_S):
                await gate.wait()
                return


async def _pump(source: socket.socket, sink: socket.socket, gate: asyncio.Event) -> None:
    """Bytes from one socket to the other while the gate is open; returns when one has ended and the other may know."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            await gate.wait()
            data = await loop.sock_recv(source, CHUNK_BYTES)
            await gate.wait()
            if not data:
                return
            await loop.sock_sendall(sink, data)
    except OSError:
        await gate.wait()
