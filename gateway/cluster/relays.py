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


def crossing(shape: Shape, apart: frozenset[int]) -> frozenset[int]:
    """The ranks whose link to their parent leads from one side to the other.

    >>> sorted(crossing(Shape("demo", 7), frozenset({1})))
    [1, 3, 4]
    >>> sorted(crossing(Shape("demo", 7), frozenset({1, 3})))
    [1, 4]
    """
    parents = {rank: shape.parent(rank) for rank in shape.ranks()}
    return frozenset(
        rank
        for rank, parent in parents.items()
        if parent is not None and (rank in apart) != (parent in apart)
    )


class Relays:
    """The links between the ranks of one cluster, made before the first rank and closed behind the last.

    Args:
        shape: of the cluster.
        sockets: folder of the sockets.
        rank_of: process id -> the rank that it is at present; None: nobody we know, who is turned away.
    """

    def __init__(self, shape: Shape, sockets: Path, rank_of: Callable[[int], int | None]) -> None:
        self._shape = shape
        self._sockets = sockets
        self._rank_of = rank_of
        self._uncut = {rank: asyncio.Event() for rank in shape.ranks()}
        """Rank -> set unless its link to its parent is cut."""
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut(frozenset())

    async def open(self) -> None:
        """Listen in front of every rank that has children."""
        for rank in self._shape.ranks():
            if not self._shape.children(rank):
                continue
            path = self._sockets / f"tree-{rank}"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.setblocking(False)
            self._listeners.append(listener)
            listener.bind(str(path))
            listener.listen(BACKLOG)
            self._start(self._accept(listener, rank), f"relay of rank {rank}")

    async def close(self) -> None:
        """Close every connection and every listener."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def cut(self, apart: frozenset[int]) -> None:
        """Have no byte pass between the ranks in ``apart`` and the others, silently; the empty set heals."""
        held_back = crossing(self._shape, apart)
        for rank, uncut in self._uncut.items():
            if rank in held_back:
                uncut.clear()
            else:
                uncut.set()

    async def _accept(self, listener: socket.socket, parent: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                near, _ = await loop.sock_accept(listener)
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
            self._start(self._relay(near, parent, self._uncut[child]), f"link of rank {child}")

    async def _relay(self, near: socket.socket, parent: int, uncut: asyncio.Event) -> None:
        """One connection, from the child's to the parent's socket and back, until one of them ends."""
        loop = asyncio.get_running_loop()
        with near, contextlib.ExitStack() as stack:
            try:
                far = stack.enter_context(await self._dial_parent(near, parent, uncut))
            except ConnectionAbortedError:
                return
            copies = [
                loop.create_task(_copy(near, far, uncut), name="up"),
                loop.create_task(_copy(far, near, uncut), name="down"),
            ]
            try:
                await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in copies:
                    each.cancel()
                await asyncio.gather(*copies, return_exceptions=True)

    async def _dial_parent(self, near: socket.socket, parent: int, uncut: asyncio.Event) -> socket.socket:
        """A connection to the rank itself, once it listens: a peer that accepts and hangs up would be taken for a wrong
        one.

        Raises:
            ConnectionAbortedError: the child has given up meanwhile; each of its attempts would be kept until the heal.
        """
        loop = asyncio.get_running_loop()
        while True:
            await _until_uncut(near, uncut)
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

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _until_uncut(near: socket.socket, uncut: asyncio.Event) -> None:
    """Until its link is not cut.

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
                await uncut.wait()
                return


async def _copy(source: socket.socket, sink: socket.socket, uncut: asyncio.Event) -> None:
    """Bytes from one socket to the other while the link is not cut, until one has ended and the other may know."""
    loop = asyncio.get_running_loop()
    try:
        while True:
            await uncut.wait()
            data = await loop.sock_recv(source, CHUNK_BYTES)
            await uncut.wait()
            if not data:
                return
            await loop.sock_sendall(sink, data)
    except OSError:
        await uncut.wait()
