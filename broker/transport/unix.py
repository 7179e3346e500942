"""UNIX stream sockets: handshake byte, SO_PEERCRED, framing (RFC 3, "Message Framing and Security").

The server speaks first: one byte, 0 for "come in" or the errno of the refusal. After that both sides send frames.
The listening socket is open to everyone (mode 0777) as deployed clients expect; the 0700 directory around it and
``Options.admit`` decide who gets in.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from broker import trust
from broker.errors import (
    ConfigError,
    LinkBroken,
    LinkClosed,
    LinkEnded,
    LinkError,
    LinkRefused,
    ProtocolError,
    Untranslatable,
)
from broker.identity import PeerInfo
from broker.obstacles import obstacle
from broker.schemes import BUILT_IN, too_long
from broker.secret import masked
from broker.transport.accepting import BACKLOG, UnixListener
from broker.transport.link import Accept, Link, Listener, Options
from broker.wire.framing import Splitter, frame
from broker.wire.message import MAGIC_DEPLOYED, Message

READ_BYTES: Final = 128 << 10
"""One read at most; half of what a batch may hold, so that one greedy peer costs the others one batch."""
WRITE_BYTES: Final = 256 << 10
"""Queued frames are joined up to this size for one write."""
CONNECT_RETRY_S: Final = 0.01
"""Pause before another try to join a full queue."""

_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, bytearray] = WeakKeyDictionary()


def path_of(uri: str) -> str:
    """The socket path of ``local://PATH``.

    Raises:
        ConfigError: another scheme, a relative path, or longer than the 107 bytes a UNIX address holds.
    """
    scheme, _, path = uri.partition("://")
    if scheme != "local" or not path.startswith("/"):
        raise ConfigError(f"{masked(uri)!r}: expected local:///absolute/path")
    if shorter := too_long(path):
        raise ConfigError(f"{masked(uri)!r}: expected {shorter}")
    return path


def _buffer() -> bytearray:
    """The receive buffer that all links of this loop share: links keep only their partial frames."""
    loop = asyncio.get_running_loop()
    buffer = _buffers.get(loop)
    if buffer is None:
        buffer = _buffers[loop] = bytearray(READ_BYTES)
    return buffer


class UnixLink(Link):
    """A framed stream over one connected socket."""

    __slots__ = ("_buffer", "_loop", "_plain", "_sock", "_splitter", "_strict", "_writing")

    def __init__(self, sock: socket.socket, peer: PeerInfo, options: Options) -> None:
        super().__init__(peer, options)
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._buffer = _buffer()
        self._splitter = Splitter(options.max_bytes(peer))
        self._strict: Callable[[Message], bytes] | None = _strict_frame(options)
        self._plain = self._strict is None
        self._writing = False

    # -- reading -------------------------------------------------------------------------------

    def resume(self) -> None:
        """Read again."""
        if self.ended is None:
            self._loop.add_reader(self._sock.fileno(), self._readable)

    def pause(self) -> None:
        """Stop reading; the kernel's buffer fills and the peer blocks."""
        if self.ended is None:
            self._loop.remove_reader(self._sock.fileno())

    def _readable(self) -> None:
        buffer = self._buffer
        try:
            count = self._sock.recv_into(buffer, self.flusher.read_bytes)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            kind = LinkEnded if error.errno == errno.ECONNRESET else LinkBroken
            self.abort(kind(f"reading from {self.peer.address}: {error.strerror}", error.errno))
            return
        if count == 0:
            self._shut(LinkEnded(f"{self.peer.address} closed the connection"))
            return
        splitter = self._splitter
        messages = splitter.feed(bytes(memoryview(buffer)[:count]))
        if self._plain and splitter.magic != MAGIC_DEPLOYED:
            self._plain = False
        if messages and self.receiver is not None:
            self.receiver.received(self, messages)
        if splitter.failure is not None and self.ended is None:
            self._refuse(splitter.failure)

    def _refuse(self, failure: ProtocolError) -> None:
        """What the peer sent is no message: nothing after it can be trusted, so the link ends."""
        self.flush()
        self.abort(LinkBroken(f"{self.peer.address}: {failure}", failure.errno))

    # -- writing -------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Queue ``message``; see ``Link.send``."""
        outbox = self.outbox
        form: Any = message.framed() if self._plain else self._form(message)
        if form is None:
            return
        if outbox.queue is None:
            fresh = outbox.unflushed
            if not fresh:
                self.flusher.touch(self)
            fresh.append(form)
        elif self.ended is None:
            outbox.enqueue(form, len(form), message.head[3])

    def _form(self, message: Message) -> bytes | None:
        """The frame of a link that is not plain; None when its dialect cannot carry the message."""
        if self._strict is None:
            return frame(message, self._splitter.magic)
        try:
            return self._strict(message)
        except Untranslatable as error:
            self.refuse(message, error)
            return None

    def flush(self) -> None:
        """Write what is queued in one call; queue what the kernel does not take."""
        outbox = self.outbox
        fresh = outbox.unflushed
        if not fresh:
            return
        outbox.unflushed = []
        if self.ended is not None:
            outbox.discarded += len(fresh)
            return
        data = fresh[0] if len(fresh) == 1 else b"".join(fresh)
        sent = self._write(data)
        if 0 <= sent < len(data):
            outbox.enqueue_rest(fresh, sent)
            if self.ended is None:
                self._want_write(True)
        else:  # who has hung up in between, such as a program that leaves, misses nothing
            outbox.sent += len(fresh)

    def _write(self, data: Any) -> int:
        """Bytes the kernel took; -1 when the link broke."""
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            kind = LinkEnded if error.errno in (errno.EPIPE, errno.ECONNRESET) else LinkBroken
            self._shut(kind(f"writing to {self.peer.address}: {error.strerror}", error.errno))
            return -1
        if sent:
            self.outbox.progressed()
        return sent

    def _writable(self) -> None:
        outbox = self.outbox
        sent = self._write(outbox.joined(WRITE_BYTES))
        if sent >= 0:
            outbox.consume(sent)
            outbox.settle()
            if outbox.queue is None:
                self._want_write(False)

    def _want_write(self, wanted: bool) -> None:
        if wanted and not self._writing:
            self._loop.add_writer(self._sock.fileno(), self._writable)
        elif self._writing and not wanted:
            self._loop.remove_writer(self._sock.fileno())
        self._writing = wanted

    # -- the end -------------------------------------------------------------------------------

    def close(self, reason: str = "") -> None:
        """Write what the kernel takes now, then end with LinkClosed."""
        if self.ended is None:
            self.flush()
            if self.outbox.queue:
                self._writable()
        self._shut(LinkClosed(reason or "closed"))

    def abort(self, error: LinkError) -> None:
        """End at once with ``error``."""
        self._shut(error)

    def _shut(self, error: LinkError) -> None:
        if self.ended is None:
            fd = self._sock.fileno()
            self._loop.remove_reader(fd)
            self._loop.remove_writer(fd)
            self._sock.close()
            self.finish(error)


def _strict_frame(options: Options) -> Callable[[Message], bytes] | None:
    """The text's framing when ``strict_rfc3`` asks for it; None for the deployed one."""
    if options.dialect != "flux1":
        raise ConfigError(
            f"dialect {options.dialect!r} is carried by ZeroMQ only (RFC 3, CMB1), not by UNIX sockets"
        )
    if not options.strict_rfc3:
        return None
    from broker.wire.dialects import dialect

    return dialect("flux1", strict=True).frame


class UnixTransport:
    """``local:///absolute/path``."""

    capabilities = BUILT_IN["local"].capabilities

    async def listen(self, uri: str, accept: Accept, options: Options) -> Listener:
        """Bind and listen; a socket file nobody listens at any more is replaced.

        Raises:
            ConfigError: in use, no permission, missing directory, path too long.
        """
        path = path_of(uri)
        _strict_frame(options)
        _remove_stale(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.bind(path)
            os.chmod(path, 0o777)  # noqa: S103 - the directory and admit() decide who gets in
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            raise obstacle(
                f"cannot listen at {uri}: {error.strerror}", error, absent=True, path=path
            ) from error
        return UnixListener(sock, path, accept, options, UnixLink)

    async def dial(self, uri: str, options: Options) -> Link:
        """Connect and wait for the handshake byte.

        Raises:
            LinkRefused: the server sent a nonzero errno, or is nobody whom we trust (EACCES).
            LinkBroken: nobody listens there, or no byte in time.
        """
        path = path_of(uri)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            async with asyncio.timeout(options.connect_timeout_s or None):
                await _connect(sock, path, uri)
                greeting = await asyncio.get_running_loop().sock_recv(sock, 1)
        except TimeoutError as error:
            sock.close()
            raise LinkBroken(
                f"{uri}: no handshake within {options.connect_timeout_s:g} s", errno.ETIMEDOUT
            ) from error
        except OSError as error:
            sock.close()
            raise LinkBroken(f"cannot connect to {uri}: {error.strerror}", error.errno) from error
        except BaseException:
            sock.close()
            raise
        if greeting != b"\0":
            sock.close()
            raise _refusal(uri, greeting)
        return UnixLink(sock, PeerInfo(uri, local=True), options)


async def _connect(sock: socket.socket, path: str, uri: str) -> None:
    """Connect to whom we may trust.

    Where too many wait to be accepted, a UNIX socket fails at once (EAGAIN) and has to try again.
    """
    while True:
        try:
            trust.connect(sock, path)
        except BlockingIOError:
            await asyncio.sleep(CONNECT_RETRY_S)
        except trust.Untrusted as error:
            raise LinkRefused(f"{uri} is not spoken to: {error.strerror}", error.errno) from None
        else:
            return


def _refusal(uri: str, greeting: bytes) -> LinkError:
    if not greeting:
        return LinkEnded(f"{uri} closed the connection before the handshake byte")
    return LinkRefused(f"{uri} refused the connection: {os.strerror(greeting[0])}", greeting[0])


def _remove_stale(path: str) -> None:
    """Unlink a socket file that refuses connections; leave anything else for bind to complain about."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except OSError:
        return
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                os.unlink(path)
        except OSError:
            return


transport = UnixTransport()
