"""Listeners of stream sockets (``StreamListener``), and those whose peers shake hands before there is a link
(``HandshakeListener``).

Nobody is left without an answer. When the process is out of descriptors, one that was kept for this is closed, and the
next peer is told so; guests are told before that, while there are some left for the owner (``DescriptorReserve``).

Strangers are bounded: so many handshakes at once, each of so long, so much time for steps of handshakes in one turn of
the loop, and no more than a share of the loop's time for all of them together, so that links do not feel the strangers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from broker.endpoints import bracketed, parse
from broker.identity import PeerInfo
from broker.listening import contact, listen, listening_at
from broker.obstacles import obstacle
from broker.transport.dialing import HANDSHAKE_S, PROBING, tune
from broker.transport.link import Listener, Options

log = logging.getLogger("headgate")

ACCEPTS: Final = 32
"""Connections accepted in one turn, each of which takes a tenth of a millisecond."""
ACCEPT_RETRY_S: Final = 0.25
"""Pause after EMFILE and the like: accepting again at once would spin."""
TOLD_S: Final = 60.0
"""A want of descriptors is told once in so long."""
HANDSHAKES_MAX: Final = 256
"""Connections that have not finished their handshake; beyond it the one goes that has been silent for longest, but none
that is promising: a storm of others must not put out a peer that we have answered."""
TURN_S: Final = 0.002
"""For steps of handshakes in one turn of the loop; one of CURVE takes 0.15 to 0.35 ms, one of TLS up to 2 ms."""
SHARE: Final = 0.25
"""Of the loop's time for accepting and handshakes. What they took is counted as CPU time: on a machine whose cores are
wanted by others, too, a step that was interrupted would else be paid for with a pause of a tenth of a second, and two
hundred peers that come within seconds were not let in within 20 s."""
DEBT_S: Final = 0.01
"""Nobody is accepted while strangers had so much more than their share."""
_READ_BYTES: Final = 4096


class SpareDescriptor:
    """One descriptor that is open for nothing, to be closed when another is needed and none is left."""

    def __init__(self) -> None:
        self._fd = -1
        self.renew()

    def lend(self) -> bool:
        """Free it; False when it is lent already."""
        if self._fd < 0:
            return False
        os.close(self._fd)
        self._fd = -1
        return True

    def renew(self) -> None:
        """Have it back, if there is one."""
        if self._fd < 0:
            with contextlib.suppress(OSError):
                self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def exhausted(error: OSError) -> bool:
    """Whether ``error`` says that no descriptor is left, to this process or to the system."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class StreamListener(Listener):
    """Accepts connections of one listening socket; a transport says in ``greet`` what follows.

    Args:
        sock: listens, and does not block; owned by this.
        address: where, for those who are to connect. path: the file of a UNIX socket, which is removed at the end.

    Attributes:
        turned_away: what those are told for whom no descriptor is left, before they are hung up on; b"": there is no
            word for it, and they wait until there is one.

    Raises:
        ConfigError: somebody has removed the file.
    """

    turned_away = b""

    def __init__(self, sock: socket.socket, address: str, options: Options, path: str = "") -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._path = path
        try:
            self._inode = os.stat(path).st_ino if path else 0
        except OSError as error:
            sock.close()
            raise obstacle(f"cannot listen at {address}: {error.strerror}", error) from error
        self._options = options
        self._spare = SpareDescriptor()
        self._told_s = -TOLD_S
        self._retry: asyncio.TimerHandle | None = None
        self.address = self.contact_address = address
        self._loop.add_reader(sock.fileno(), self._acceptable)

    @abstractmethod
    def greet(self, sock: socket.socket) -> None:
        """A connection has come, which is yours from here on; it does not block."""

    async def stop(self) -> None:
        """Accept no more and remove the socket file, if it is still this listener's."""
        if self._sock.fileno() < 0:
            return
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._spare.lend()
        if self._path:
            with contextlib.suppress(OSError):
                # another broker may have bound the path meanwhile: its socket is not ours to remove
                if os.stat(self._path).st_ino == self._inode:
                    os.unlink(self._path)

    def _acceptable(self) -> None:
        crowded = False
        for _ in range(ACCEPTS):
            try:
                sock, _address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                crowded = True
                if not (exhausted(error) and self._turn_away(error)):
                    break
            else:
                sock.setblocking(False)
                self.greet(sock)
                if self._retry is not None:  # it has had enough for now
                    break
        if crowded:
            self._rest()

    def _rest(self, pause_s: float = ACCEPT_RETRY_S) -> None:
        """Out of descriptors or memory, or too busy: accept again later instead of spinning."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock.fileno())
        self._retry = self._loop.call_later(pause_s, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._spare.renew()
        self._loop.add_reader(self._sock.fileno(), self._acceptable)

    def _turn_away(self, error: OSError) -> bool:
        """Tell the next peer that waits why nobody is let in; False when that cannot be, or nobody waits."""
        self._tell(error.strerror or "")
        if not self.turned_away or not self._spare.lend():
            return False
        try:
            sock, _address = self._sock.accept()
            with sock:
                sock.setblocking(False)
                sock.send(self.turned_away)
        except OSError:  # nobody waits, or the peer that did has gone
            return False
        else:
            return True
        finally:
            self._spare.renew()

    def _tell(self, text: str) -> None:
        now = self._loop.time()
        if now - self._told_s >= TOLD_S:
            self._told_s = now
            log.error(
                "%s: %s: connections are turned away until some descriptors are free", self.address, text
            )

    def _kept_from(self, peer: PeerInfo, fd: int) -> int:
        """EMFILE when ``fd`` is one of the last, and not for ``peer``; 0 when it may have it."""
        if not self._options.refuses_reserve(peer, fd):
            return 0
        self._tell("what descriptors are left is the owner's (limits.reserved_descriptors)")
        return errno.EMFILE


class Handshake(Protocol):
    """The listener's side of one, sans I/O."""

    @property
    def failure(self) -> Exception | None:
        """None, or why there will be no link."""

    @property
    def asks(self) -> bool:
        """Whether the peer has said who it is, so that it can be judged."""

    def feed(self, data: bytes) -> object:
        """Take what came. Never raises: see ``failure``."""

    def take_owed(self) -> bytes:
        """The bytes to be sent now."""


Shaking = TypeVar("Shaking", bound=Handshake)


class Stranger(Generic[Shaking]):
    """One connection until it is a link.

    Attributes:
        sock: its socket. address: what logs call it. handshake: as ``begin`` made it.
    """

    __slots__ = ("_listener", "_timer", "address", "data", "handshake", "sock")

    def __init__(
        self, listener: HandshakeListener[Shaking], sock: socket.socket, handshake: Shaking, address: str
    ) -> None:
        self._listener = listener
        self.sock = sock
        self.address = address
        self.handshake = handshake
        self.data = b""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HANDSHAKE_S, listener.give_up, self, "it took too long")
        self.await_more()

    def await_more(self) -> None:
        """Look at what comes next."""
        asyncio.get_running_loop().add_reader(self.sock.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            self.data = self.sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._listener.give_up(self, str(error.strerror))
            return
        if not self.data:
            self._listener.give_up(self, "the peer hung up")
            return
        asyncio.get_running_loop().remove_reader(self.sock.fileno())
        self._listener.step_soon(self)

    def say(self) -> bool:
        """Send what is owed; False when the peer is gone, or does not read a few hundred bytes."""
        data = self.handshake.take_owed()
        try:
            return not data or self.sock.send(data) == len(data)
        except OSError:
            return False

    def release(self) -> None:
        """Nobody waits for this connection any more; its socket is the caller's."""
        self._timer.cancel()
        asyncio.get_running_loop().remove_reader(self.sock.fileno())


class HandshakeListener(StreamListener, Generic[Shaking]):
    """Accepts and shakes hands; a subclass says what is said, which peers get in, and what becomes of the connection.

    Args:
        sock, address, path: as of ``StreamListener``. contact: what a peer dials.

    Attributes:
        share: see ``SHARE``. handshakes_max: see ``HANDSHAKES_MAX``. probing: of its connections.
    """

    share = SHARE
    handshakes_max = HANDSHAKES_MAX
    probing = PROBING

    def __init__(
        self, sock: socket.socket, address: str, contact: str, options: Options, path: str = ""
    ) -> None:
        super().__init__(sock, address, options, path)
        self.contact_address = contact
        self._count = 0
        self._strangers: dict[Stranger[Shaking], None] = {}  # the one that was silent for longest first
        self._ready: deque[Stranger[Shaking]] = deque()
        self._turn_due = False
        self._not_before = 0.0

    @abstractmethod
    def begin(self) -> Shaking:
        """The handshake of one who has come."""

    @abstractmethod
    def judge(self, stranger: Stranger[Shaking]) -> Callable[[], object] | None:
        """Judge one who ``asks``; the handshake then owes it the answer.

        Returns:
            What to do once the answer has left, and who does it owns the socket; None: it does not get in, and that was
            told to who is to know.
        """

    def address_of(self, sock: socket.socket, number: int) -> str:
        """The name of connection ``number`` in logs."""
        if sock.family == socket.AF_UNIX:
            return f"{self.address}#{number}"
        return f"{self.address.partition('://')[0]}://{bracketed(host_of(sock) or '?')}#{number}"

    def is_promising(self, stranger: Stranger[Shaking]) -> bool:
        """Whether it has shown something that strangers do not know, and does not make place for newer ones."""
        return False

    def put_off(self, stranger: Stranger[Shaking]) -> None:
        """There is no place for it at present: have the handshake owe that, where there is a word for it."""

    def refuse(self, peer: PeerInfo, number: int, reason: str) -> None:
        """Tell of ``peer``, whom the transport itself turns away: with a key that nobody knows, for example."""
        log.warning("%s: refused %s: %s", self.address, peer.address, reason)
        self._options.refused(peer, number, reason)

    def tell_failure(self, stranger: Stranger[Shaking], why: str) -> None:
        """A handshake has failed."""
        log.warning("%s: %s failed in its handshake: %s", self.address, stranger.address, why)

    async def stop(self) -> None:
        """See ``Listener.stop``; handshakes end, and whoever was in one dials again."""
        await super().stop()
        for each in list(self._strangers):
            self.give_up(each, "")

    def greet(self, sock: socket.socket) -> None:
        """See ``StreamListener``."""
        begin = time.thread_time()
        self._begin(sock)
        self._spent(time.thread_time() - begin)
        debt_s = self._not_before - self._loop.time()
        if debt_s > DEBT_S:
            self._rest(debt_s)

    def _begin(self, sock: socket.socket) -> None:
        tune(sock, self.probing)
        self._count += 1
        stranger = Stranger(self, sock, self.begin(), self.address_of(sock, self._count))
        self._strangers[stranger] = None
        if not stranger.say():
            self.give_up(stranger, "the peer hung up")
            return
        scarce = self._options.reserve.has(sock.fileno())
        most = min(self.handshakes_max, self._options.reserve.strangers) if scarce else self.handshakes_max
        if len(self._strangers) > most:
            silent = (each for each in self._strangers if not (each.data or self.is_promising(each)))
            least = next(silent, stranger)
            self.put_off(least)
            least.say()
            # what is left unread would take our word back (RFC 1122, 4.2.2.13)
            with contextlib.suppress(OSError):
                least.sock.recv(_READ_BYTES)
            self.give_up(least, "too many have said nothing yet")

    def step_soon(self, stranger: Stranger[Shaking]) -> None:
        """Something came of ``stranger``; it has its turn."""
        self._strangers[stranger] = self._strangers.pop(stranger)  # it is not silent
        self._ready.append(stranger)
        self._plan_turn()

    def _plan_turn(self) -> None:
        if self._ready and not self._turn_due:
            self._turn_due = True
            self._loop.call_at(self._not_before, self._turn)

    def _spent(self, seconds: float) -> None:
        """So much CPU time went to strangers; what ``share`` leaves to others has to pass before the next of them."""
        self._not_before = max(self._not_before, self._loop.time()) + seconds * (1 - self.share) / self.share

    def _turn(self) -> None:
        self._turn_due = False
        begin = time.thread_time()
        try:
            while self._ready and time.thread_time() - begin < TURN_S:
                stranger = self._ready.popleft()
                if stranger in self._strangers:
                    self._step(stranger)
        finally:
            self._spent(time.thread_time() - begin)
            self._plan_turn()

    def _step(self, stranger: Stranger[Shaking]) -> None:
        handshake = stranger.handshake
        handshake.feed(stranger.data)
        stranger.data = b""
        asks = handshake.asks and handshake.failure is None
        let_in = self.judge(stranger) if asks else None
        said = stranger.say()
        if asks and let_in is None:
            self.give_up(stranger, "")
        elif not said:
            self.give_up(stranger, "the peer hung up")
        elif let_in is not None:
            self._leave(stranger)
            let_in()
        elif handshake.failure is not None:
            self.give_up(stranger, str(handshake.failure))
        else:
            stranger.await_more()

    def give_up(self, stranger: Stranger[Shaking], why: str) -> None:
        """End a connection that is no link yet; ``why`` is for the log, "" where that has been told."""
        if stranger not in self._strangers:
            return
        self._leave(stranger)
        stranger.sock.close()
        if why:
            self.tell_failure(stranger, why)

    def _leave(self, stranger: Stranger[Shaking]) -> None:
        del self._strangers[stranger]
        stranger.release()


def host_of(sock: socket.socket) -> str:
    """The host at the other end of a connection of TCP, without the IPv6 clothes of IPv4; "" when it has gone."""
    try:
        return str(sock.getpeername()[0]).removeprefix("::ffff:")
    except OSError:
        return ""


def listen_tcp(uri: str) -> tuple[socket.socket, str, str]:
    """A socket that listens at ``SCHEME://HOST:PORT``, where it is, and what a peer dials.

    A name as host, or ``*``, means all interfaces (``endpoints.listening_host``), but for that of an interface; ``*``
    as port a free one. Whether others may read what passes is the transport's matter (``Capabilities.protection``).

    Raises:
        ConfigError: the address cannot be used.
    """
    asked = parse(uri)
    sock, place = listen(listening_at(asked, protected=True, insecure=False))
    return sock, place.text, contact(place, asked)
