"""One connection of ZMTP 3.1, sans I/O: bytes in, messages and bytes out (ZeroMQ RFC 37)."""

# compiled: mypyc

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final

from broker.errors import DecodeError, MessageTooLarge, ProtocolError
from broker.transport.batching import Part
from broker.transport.zeromq.frames import (
    COMMAND,
    COPIED_BYTES,
    GREETING_BYTES,
    IDENTITY_MAX,
    MORE,
    FrameReader,
    check_greeting,
    command,
    greeting,
    head_of,
    split_command,
)
from broker.transport.zeromq.mechanisms import MESSAGE_OVERHEAD, Mechanism, Refused, refusal

HANDSHAKE_BYTES: Final = 4096
"""The largest command of a handshake; libzmq's INITIATE has about 300."""
PARTS_MAX: Final = 4096
"""Parts of one message; a Flux message has one for each hop and four more."""
PING_CONTEXT_MAX: Final = 16
PONGS_MAX: Final = 64
"""Answers to pings that may wait: of more the oldest is left out, since any sign of life will do for its peer. One that
pinged while we were stopped must not be cut off for it.
"""
BESIDE_BYTES: Final = 256 << 10
"""A larger box takes longer than others should wait for: where it may, it is opened (and sealed) beside the loop."""
_PEERS: Final = (b"DEALER", b"ROUTER", b"REQ", b"REP")


class State(Enum):
    """Where a connection stands; it goes through these from top to bottom, a client's without ASKED."""

    GREETING = "greeting"
    HANDSHAKE = "handshake"
    ASKED = "asked"
    """A server's: the peer has said who it is, and ``grant`` or ``refuse`` is due."""
    OPEN = "open"


class Connection:
    """Either side of one connection.

    Args:
        mechanism: of our side.

    Attributes:
        state: see ``State``.
        failure: None, or why nothing more is read: a ProtocolError; of a dialer that was not let in ``Refused``.
        identity: the peer's; b"" where it says none.
        opens_beside: the feeder looks at ``waits``, and has large boxes opened beside the loop.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        self.state = State.GREETING
        self.failure: ProtocolError | None = None
        self.identity = b""
        self.opens_beside = False
        self._owed = bytearray(greeting(mechanism.name, as_server=mechanism.as_server))
        # commands, which are sealed when they are sent: boxes have an order. Another thread may send meanwhile
        self._commands: deque[bytes] = deque(maxlen=PONGS_MAX)
        self._seals = mechanism.seals
        self._early = b""
        self._frames = FrameReader(HANDSHAKE_BYTES)
        self._max_bytes = 0
        self._parts: list[Part] = []
        self._size = 0
        self._waiting: list[
            tuple[int, Part]
        ] = []  # frames, the first of which is to be opened beside the loop ...
        self._opened: tuple[int, Part] | None = None  # ... and was
        self._broken: ProtocolError | None = None  # what is behind them

    @property
    def owed(self) -> bool:
        """Whether there is something to send that nobody asked for; it goes before anything that is sealed later."""
        return bool(self._owed or self._commands)

    @property
    def early(self) -> bool:
        """Whether something came with the end of the handshake, which ``feed(b"")`` gives."""
        return bool(self._early)

    @property
    def seals(self) -> bool:
        """Whether frames are sealed."""
        return self._seals is not None

    @property
    def waits(self) -> bool:
        """Whether ``open_large`` is due, and ``feed(b"")`` behind it."""
        return bool(self._waiting)

    @property
    def asks(self) -> bool:
        """Whether ``grant`` or ``refuse`` is due."""
        return self.state is State.ASKED

    @property
    def pending_bytes(self) -> int:
        """Bytes held of what is not complete."""
        waiting = sum(len(body) for _flags, body in self._waiting)
        return len(self._early) + self._frames.pending_bytes + self._size + waiting

    @property
    def missing_bytes(self) -> int:
        """Bytes that have to come until the next frame is complete, as far as is known; 0: nothing of it has come."""
        return self._frames.missing_bytes

    # -- in ------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> list[list[Part]]:
        """The messages, as lists of parts, that ``data`` completes. Never raises: see ``failure``.

        Until the connection is open there are none: what came early is kept for the first ``feed`` behind it. A server
        that is asked is to answer before it feeds more.
        """
        out: list[list[Part]] = []
        if self.failure is not None:
            return out
        try:
            if self.state is State.OPEN:
                self._read(data, out)
            else:
                self._shake(data)
        except ProtocolError as failure:
            self.failure = failure.with_traceback(None)  # which would make a cycle with this connection
            self._parts, self._size = [], 0
        return out

    def forget(self) -> None:
        """Let go of what has come and is not complete: nothing follows."""
        self._frames.forget()
        self._parts, self._size, self._early, self._waiting, self._opened = [], 0, b"", [], None

    def _shake(self, data: bytes) -> None:
        self._early += data
        if self.state is State.GREETING:
            check_greeting(self._early, self.mechanism.name)
            if len(self._early) < GREETING_BYTES:
                return
            self._early = self._early[GREETING_BYTES:]
            self.state = State.HANDSHAKE
            self._say(self.mechanism.begin())
        while self.state is State.HANDSHAKE:
            body = self._next_command()
            if body is None:
                return
            self._say(self.mechanism.take(body))
            if self.mechanism.metadata is not None:
                self._meet(self.mechanism.metadata)

    def _next_command(self) -> bytes | None:
        """The next frame of the handshake; what follows it stays where it is."""
        data = self._early
        if len(data) < 2:
            return None
        if data[0] == COMMAND:
            head, size = 2, data[1]
        elif data[0] == COMMAND | 2:
            head, size = 9, int.from_bytes(data[1:9], "big")
        else:
            raise DecodeError(f"a frame with flags {data[0]:#04x} in the handshake, expected a command")
        if len(data) >= head and size > HANDSHAKE_BYTES:
            raise MessageTooLarge(
                f"a command of {size} bytes in the handshake, the largest is {HANDSHAKE_BYTES}"
            )
        if len(data) < head + size:
            return None
        self._early = data[head + size :]
        return data[head : head + size]

    def _meet(self, metadata: dict[bytes, bytes]) -> None:
        kind, self.identity = metadata.get(b"socket-type", b""), metadata.get(b"identity", b"")
        if kind not in _PEERS:
            raise DecodeError(
                f"a peer of type {kind[:16]!r}, expected {', '.join(map(bytes.decode, _PEERS))}"
            )
        if len(self.identity) > IDENTITY_MAX:
            raise DecodeError(f"an identity of {len(self.identity)} bytes, the longest has {IDENTITY_MAX}")
        self.state = State.ASKED if self.mechanism.as_server else State.OPEN
        self._seals = self.mechanism.seals

    def _say(self, body: bytes) -> None:
        if body:
            self._owed += command(body)

    def grant(self) -> None:
        """A server's: let the peer in."""
        self._say(self.mechanism.grant())
        self._seals = self.mechanism.seals
        self.state = State.OPEN

    def refuse(self, status: bytes = b"400") -> None:
        """A server's: tell the peer by a status of ZAP that it does not get in; the connection is to be closed then."""
        self._say(refusal(status))
        self.failure = Refused("by us")

    def limit(self, max_bytes: int, part_bytes: int = 0) -> None:
        """The largest message that the peer may send, now that its identity is known.

        ``part_bytes``: the largest of several parts; 0: as large as the message.
        """
        self._max_bytes = max_bytes
        self._frames.max_bytes = (part_bytes or max_bytes) + MESSAGE_OVERHEAD

    def _read(self, data: bytes, out: list[list[Part]]) -> None:
        if self._early:
            data, self._early = self._early + data, b""
        frames, self._waiting = self._waiting, []
        if self._broken is None:
            try:
                self._frames.feed(data, frames)
            except ProtocolError as error:  # what stands before a bad frame counts
                self._broken = error.with_traceback(None)
        seals = self._seals
        for at, (flags, body) in enumerate(frames):
            if seals is None:
                part = bytes(body) if len(body) < COPIED_BYTES else body
            elif self._opened is not None:
                (flags, part), self._opened = self._opened, None
            elif len(body) > BESIDE_BYTES and self.opens_beside:
                self._waiting = frames[at:]
                return
            else:
                flags, part = seals.open(flags, body)
            if flags == 0 and not self._parts:  # as nearly all
                out.append([part])
            elif flags & COMMAND:
                self._obey(bytes(part))
            else:
                self._add(part, flags & MORE, out)
        if self._broken is not None:
            raise self._broken

    def open_large(self) -> None:
        """Open the box that ``waits``, in any thread. Nothing else may be fed meanwhile."""
        assert self._seals is not None
        try:
            self._opened = self._seals.open(*self._waiting[0])
        except ProtocolError as failure:
            self.failure = failure.with_traceback(None)

    def _add(self, part: Part, more: int, out: list[list[Part]]) -> None:
        parts = self._parts
        parts.append(part)
        self._size += len(part)
        if self._size > self._max_bytes:
            raise MessageTooLarge(
                f"message of {self._size} bytes and more, the cap for this peer is {self._max_bytes}"
            )
        if len(parts) > PARTS_MAX:
            raise DecodeError(f"a message of more than {PARTS_MAX} parts")
        if not more:
            self._parts, self._size = [], 0
            out.append(parts)

    def _obey(self, body: bytes) -> None:
        """A command; those that we do not know are passed over (RFC 37).

        It should come between two messages. libzmq puts its pings between the parts of one, too, whenever they are due.
        """
        name, data = split_command(body)
        if name == b"PING":
            if not 2 <= len(data) <= 2 + PING_CONTEXT_MAX:
                raise DecodeError(f"a PING of {len(data)} bytes, expected 2 to {2 + PING_CONTEXT_MAX}")
            self._commands.append(b"\x04PONG" + data[2:])
        elif name == b"ERROR":
            raise DecodeError("an ERROR behind the handshake")

    # -- out -----------------------------------------------------------------------------------

    def frame(self, flags: int, pieces: Sequence[Part], out: list[Part | bytearray]) -> None:
        """Append a frame of ``pieces``, one behind the other, to ``out``; sealed frames are sent in this order."""
        if self._seals is None:
            out.append(head_of(sum(map(len, pieces)), flags))
            out += pieces
        else:
            self._seals.seal(flags, pieces, out)

    def encode(self, parts: Sequence[Part], out: list[Part | bytearray]) -> None:
        """Append the frames of one message to ``out``."""
        last = len(parts) - 1
        for at, part in enumerate(parts):
            self.frame(MORE if at < last else 0, (part,), out)

    def ping(self) -> None:
        """Owe the peer a ping. Without time to live: nothing ends for want of another one."""
        self._commands.append(b"\x04PING" + bytes(2))

    def take_owed(self) -> bytes:
        """Take the bytes that have to be sent now."""
        out: list[Part | bytearray] = [self._owed]
        self._owed = bytearray()
        while self._commands:
            self.frame(COMMAND, (self._commands.popleft(),), out)
        return b"".join(out)
