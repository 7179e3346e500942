"""Between the worker processes of one gateway: a connection of a UNIX socket for each thing that is told.

Each worker listens at ``NAME.sock`` in a folder that only the gateway's user enters. What is told is with the others,
in the kernel, when ``say`` returns: whatever a client does next, the worker that it comes to can know. Whoever counts
a connection does so in its ``turn``: one after the other, and each reads first what was told. When a worker was killed,
the supervisor says so for it (``tell_end``).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from broker import listening
from broker.endpoints import Endpoint
from broker.tasks import Tasks
from gateway.fleet.messages import Bye, Counts, Question, Said, decode, encode
from gateway.fleet.peers import ASK_S, BEAT_S, Peers

log = logging.getLogger("headgate")

BACKLOG: Final = 4096
"""What may wait for a worker that does not listen; what comes beyond that is left out, and told again with a beat."""
TURN_S: Final = 0.02
"""Longest wait for a turn, which takes microseconds. Whoever has it for longer stands still, and is not waited for."""
PAUSE_S: Final = 0.001
READ_BYTES: Final = 65536
SUFFIX: Final = ".sock"


class Siblings:
    """What the worker of these ``peers`` tells the others, and hears of them.

    Args:
        folder: the directory that they share; it exists, mode 0700.
        peers: who is there.

    Raises:
        ConfigError: the directory cannot be used. NotReady: not now.
    """

    tells_ends = True

    def __init__(self, folder: str, peers: Peers) -> None:
        self._folder = folder
        self._peers = peers
        self._place = f"{folder}/{peers.name}{SUFFIX}"
        self._tasks = Tasks()
        self._unread: dict[socket.socket, bytearray] = {}
        """Connections in their order, and what has come: others tell one thing with each, and end it."""
        self._listener, _ = listening.listen(Endpoint("local", self._place), BACKLOG)
        self._lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._places: list[
            str
        ] = []  # a look at the folder for each connection would cost as much as all the rest
        asyncio.get_running_loop().add_reader(self._listener, self._take)
        peers.join(self)

    async def start(self) -> None:
        """Wait until every other worker has said how many connections it has, ``ASK_S`` at most."""
        self._places = _places(self._folder)
        self._say_counts(hello=True)
        expected = {os.path.basename(place).removesuffix(SUFFIX) for place in self._places}
        expected.discard(self._peers.name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ASK_S):
                while expected.difference(self._peers.names()):  # noqa: ASYNC110 - once in a life, a millisecond
                    await asyncio.sleep(PAUSE_S)
        self._tasks.spawn("beats of this worker", self._beat_often())

    async def stop(self) -> None:
        """Say that this worker ends, and hear nothing more."""
        await self._tasks.stop()
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        for sock in list(self._unread):
            self._leave_unread(sock)
        os.close(self._lock)
        tell_end(self._folder, self._peers.name)

    async def _beat_often(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            asyncio.get_running_loop().add_reader(self._listener, self._take)
            self._take()  # if we were stopped: before others are taken for silent
            self._look()
            self._say_counts()
            self._peers.beat(self)

    def _look(self) -> None:
        with contextlib.suppress(OSError):  # no descriptors: those that were there
            self._places = _places(self._folder)

    # -- what is told --------------------------------------------------------------------------

    def say(self, said: Said, to: str = "") -> None:
        """See ``Carrier``."""
        data = encode(said)
        for place in [f"{self._folder}/{to}{SUFFIX}"] if to else self._places:
            if place != self._place and (left := _send(place, data)) is not None:
                self._tasks.spawn("tell another worker", _send_rest(*left))

    def changed(self, user: str) -> None:
        """See ``Carrier``."""
        for each in self._peers.counts([user]):
            self.say(each)

    def _say_counts(self, *, hello: bool = False) -> None:
        for each in self._peers.counts(hello=hello):
            self.say(each)

    # -- what is heard -------------------------------------------------------------------------

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """See ``Carrier``."""
        for _ in range(round(TURN_S / PAUSE_S)):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(PAUSE_S)
        try:
            self._take()
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # harmless where it was not to be had

    def _take(self) -> None:
        """Hear all that others have told by now, each of them in the order in which it told."""
        more = True
        while more:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                more = False
            except OSError:  # no descriptors: it would be tried without a pause, and is with the next beat
                asyncio.get_running_loop().remove_reader(self._listener)
                more = False
            else:
                sock.setblocking(False)
                self._unread[sock] = bytearray()
            # A worker that was stopped between connecting and sending has told nothing since. What it tells later comes
            # behind in here, so that the older word, read first each time, never replaces the newer.
            for each in list(self._unread):
                self._read(each)

    def _read(self, sock: socket.socket) -> None:
        data = self._unread[sock]
        try:
            while part := sock.recv(READ_BYTES):
                data += part
        except BlockingIOError:
            asyncio.get_running_loop().add_reader(sock, self._take)
            return
        except OSError:  # cut off: what is there is no whole message
            pass
        self._leave_unread(sock)
        self._hear(data)

    def _leave_unread(self, sock: socket.socket) -> None:
        del self._unread[sock]
        asyncio.get_running_loop().remove_reader(sock)
        sock.close()

    def _hear(self, data: bytearray) -> None:
        try:
            said = decode(data)
        except (
            msgspec.DecodeError,
            msgspec.ValidationError,
        ) as error:  # cut off: counts come with the next beat
            log.debug("what another worker said was left out: %s", error)
            return
        if isinstance(said, Counts) and said.hello:
            self._look()
        if isinstance(said, Question):  # it may end sessions, and this may be the turn of one that begins
            asyncio.get_running_loop().call_soon(self._peers.hear, said, self)
        else:
            self._peers.hear(said, self)


def tell_end(folder: str, name: str) -> None:
    """The worker ``name`` has ended: nobody waits for it any more, and all that are there are told."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{folder}/{name}{SUFFIX}")
    for place in _places(folder):
        _send(place, encode(Bye(name)))


def _places(folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in os.listdir(folder) if name.endswith(SUFFIX)]


def _send(place: str, data: bytes) -> tuple[socket.socket, memoryview] | None:
    """Tell the worker that listens there; returns what the kernel does not hold of it, and where to send that."""
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError:  # no descriptors: counts come with the next beat
        return None
    try:
        sock.connect(place)
        sent = sock.send(data)
    except OSError:  # it has ended, or too much waits for it
        sent = len(data)
    if sent < len(data):
        return sock, memoryview(data)[sent:]
    sock.close()
    return None


async def _send_rest(sock: socket.socket, data: memoryview) -> None:
    with sock, contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ASK_S):
            await asyncio.get_running_loop().sock_sendall(sock, data)
