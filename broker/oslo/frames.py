r"""The frames of the wing's messages: a fixed envelope with the address behind it, then the body as it came (pure).

A message is ``[envelope][body]``; on publishing sockets a filter stands in front of it, and between a proxy and a
server a route stands between the two (opaque: whom to answer). Frames go as ZeroMQ's, but towards DEALERs, where all
of a message are in one (``reactor.bundle``)::

    0   3  magic "HGO"          12  4  word: CALL monitor ms, FANOUT number    40  exchange NUL topic NUL server NUL
    3   1  version 1            16  4  userid   \ filled in by the proxy          listener [NUL listener ...]
    4   1  kind                 20  4  rolemask /  at its entry
    5   1  flags                24 16  id
    6   2  reason
    8   4  ttl ms, 0 none; with ``Flag.DUE`` a deadline

Between a proxy and the servers of its node the ttl of calls and casts is replaced by the **deadline**: milliseconds of
the host's CLOCK_MONOTONIC, modulo 2**32, which both read from the same kernel. So what a frozen process finds when it
goes on is not taken for new: its sender has given up meanwhile.

Numbers are big-endian; the address is UTF-8. Bodies are never looked into here.

``server`` is the addressed one, empty for any of the topic; ``listener`` is the one that the sender has chosen from
what it knows of the directory. A notification may name several: one for each pool. A filter begins with a letter of
its own and ends with NUL behind the topic, so that no topic is ever the prefix of another.
"""

# compiled: mypyc

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Final, NamedTuple

from broker.identity import USERID_UNKNOWN, Credentials
from broker.oslo.names import CHOSEN_MAX, NAME_BYTES_MAX, Reason

MAGIC: Final = b"HGO"
VERSION: Final = 1
_HEAD: Final = Struct(">3sBBBHIIII16s")
HEAD_BYTES: Final = _HEAD.size
_STAMP: Final = Struct(">II")
STAMP_AT: Final = 16
STAMP_END: Final = 24
"""In an envelope: userid and rolemask of who sent it."""
_WORD: Final = Struct(">I")
_WORD_AT: Final = 12
_FLAGS_AT: Final = 5
_TTL_AT: Final = 8
_DUE_MAX_MS: Final = 1 << 31
"""Deadlines farther away than that, 24 days, are none: half of what 32 bits tell apart."""
ID_BYTES: Final = 16
NO_ID: Final = bytes(ID_BYTES)
_FIELDS: Final = Struct(">BBHIIII16s")
_FIELDS_AT: Final = 4
_OPENING: Final = MAGIC + bytes((VERSION,))
_U32_MAX: Final = 0xFFFFFFFF
_ADDRESS_BYTES_MAX: Final = 3 * (NAME_BYTES_MAX + 1) + CHOSEN_MAX * (NAME_BYTES_MAX + 1)
# read where it is used, not folded by the compiler: tests change it
_READ_MAX: int = 4096
"""Addresses whose names are remembered: some for each listener of a node. Then all are forgotten and read again."""
_READ_BYTES_MAX: Final = 384
"""Of a remembered address; longer ones are not worth their memory."""


class Kind(IntEnum):
    """What a message is for; 16 and up are between a server's process and its node's proxy."""

    CALL = 1
    CAST = 2
    FANOUT = 3
    NOTIFY = 4
    REPLY = 5
    """The result of a call: server to client."""
    BEAT = 6
    """The call is still worked on: server to client."""
    REFUSED = 7
    """Not delivered, see ``reason``: proxy to client, or to whoever asked with a control message; of a call also server
    to client."""
    TAKEN = 8
    """A cast that asked for it (``Flag.CONFIRM``) was handed to a server."""
    OPEN = 16
    """A listener begins: the body is JSON, ``records.Opening``."""
    OPENED = 17
    """Registered: the body is JSON, ``records.Opened``; from now on messages come."""
    CLOSE = 18
    """The listener named in the address ends."""
    CLOSED = 19
    """Nothing more comes for it."""
    PULSE = 20
    """Alive; answered by PULSE."""
    CREDIT = 21
    """The listener in the address has room for ``word`` messages more."""
    REQUEUE = 22
    """NOTIFY: the listener gives back a message: body of the control message is the notification's."""
    STATUS = 23
    """What a pipeline counts: answered with a STATUS whose body is JSON."""


class Flag(IntFlag):
    """Bits of ``flags``."""

    MANDATORY = 1
    """Answer REFUSED at once when nobody listens there."""
    CONFIRM = 2
    """A cast on the CALL pipeline: answer TAKEN or REFUSED."""
    REPEATED = 4
    """Sent before, over a connection that has ended since: for the chosen listener alone, which knows by the id whether
    it has the message already."""
    DUE = 8
    """Set by a proxy: where the ttl stands is the deadline. Senders have it clear."""


class Malformed(ValueError):
    """Not a message of this protocol; ``unknown_version`` tells one of another version apart."""

    def __init__(self, text: str, *, unknown_version: bool = False) -> None:
        super().__init__(text)
        self.unknown_version = unknown_version


class Envelope(NamedTuple):
    """A decoded envelope; see the module for the bytes."""

    kind: int
    flags: int = 0
    reason: int = 0
    ttl_ms: int = 0
    word: int = 0
    userid: int = USERID_UNKNOWN
    rolemask: int = 0
    id: bytes = NO_ID
    exchange: str = ""
    topic: str = ""
    server: str = ""
    listeners: tuple[str, ...] = ()

    @property
    def listener(self) -> str:
        """The first chosen listener; "" none."""
        return self.listeners[0] if self.listeners else ""


def new_id() -> bytes:
    """16 random bytes."""
    return os.urandom(ID_BYTES)


def check_name(name: str, what: str) -> str:
    """``name`` itself, when it can be an exchange, topic, server or pool.

    Raises:
        ValueError: it has a NUL or another control character, no UTF-8, or more than 255 bytes of it; ``what`` says
            whose name it is.
    """
    if "\0" in name:
        raise ValueError(f"{what} {name[:64]!r}: saw a NUL, which separates names, expected none")
    try:
        size = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} {name[:64]!r}: saw half a character, which UTF-8 cannot say") from None
    if size > NAME_BYTES_MAX:
        raise ValueError(f"{what} {name[:64]!r}...: saw {size} bytes, expected {NAME_BYTES_MAX} at most")
    if not name.isprintable() and any(character < " " for character in name):
        raise ValueError(f"{what} {name[:64]!r}: saw a control character, expected none")
    return name


def encode(
    kind: int,
    exchange: str = "",
    topic: str = "",
    server: str = "",
    listeners: Sequence[str] = (),
    *,
    flags: int = 0,
    reason: int = 0,
    ttl_ms: int = 0,
    word: int = 0,
    userid: int = USERID_UNKNOWN,
    rolemask: int = 0,
    id: bytes = NO_ID,  # noqa: A002
) -> bytes:
    """An envelope; names have to be checked before (``check_name``).

    A ``ttl_ms`` or ``word`` beyond 32 bits (49 days) becomes the nearest that fits.
    """
    try:
        head = _HEAD.pack(MAGIC, VERSION, kind, flags, reason, ttl_ms, word, userid, rolemask, id)
    except StructError:
        ttl_ms, word = (min(max(number, 0), _U32_MAX) for number in (ttl_ms, word))
        head = _HEAD.pack(MAGIC, VERSION, kind, flags, reason, ttl_ms, word, userid, rolemask, id)
    if not (exchange or topic or server or listeners):
        return head
    return head + "\0".join((exchange, topic, server, *listeners)).encode()


def decode(frame: bytes) -> Envelope:
    """Read an envelope. A kind that nobody knows is no error here: whoever cannot use it drops it.

    Raises:
        Malformed: too short or too long, another magic or version, an address that is not UTF-8 or lacks parts.
    """
    if frame[:4] != _OPENING or len(frame) < HEAD_BYTES:
        raise _no_envelope(frame)
    raw = frame[HEAD_BYTES:]
    address = _read.get(raw)
    if address is None:
        address = _read_address(raw)
        if len(raw) <= _READ_BYTES_MAX:
            if len(_read) >= _READ_MAX:
                _read.clear()
            _read[raw] = address
    # a tuple of the right length becomes the named one as it is: a third of what calling it by its fields takes
    return _named(Envelope, _FIELDS.unpack_from(frame, _FIELDS_AT) + address)


_Address = tuple[str, str, str, tuple[str, ...]]
_read: Final[dict[bytes, _Address]] = {}
"""Addresses that were read and are in order. Only whole steps on a dict: any thread may decode."""
_named: Final = tuple.__new__


def _no_envelope(frame: bytes) -> Malformed:
    if len(frame) < HEAD_BYTES or frame[:3] != MAGIC:
        return Malformed(f"saw {frame[:16]!r} of {len(frame)} bytes, expected an envelope")
    return Malformed(f"saw version {frame[3]}, expected {VERSION}", unknown_version=True)


def _read_address(raw: bytes) -> _Address:
    """The names of an address; none when there is no address at all.

    Raises:
        Malformed: see ``decode``.
    """
    if not raw:
        return "", "", "", ()
    if len(raw) > _ADDRESS_BYTES_MAX:
        raise Malformed(f"saw an address of {len(raw)} bytes, expected {_ADDRESS_BYTES_MAX} at most")
    parts = raw.split(b"\0")
    if not 3 <= len(parts) <= 3 + CHOSEN_MAX:
        raise Malformed(f"saw an address of {len(parts)} names, expected 3 to {3 + CHOSEN_MAX}")
    if max(map(len, parts)) > NAME_BYTES_MAX:
        raise Malformed(f"saw a name longer than {NAME_BYTES_MAX} bytes")
    try:
        exchange, topic, server, *listeners = raw.decode().split("\0")
    except UnicodeDecodeError as error:
        raise Malformed(f"saw an address that is not UTF-8 at byte {error.start}") from None
    return exchange, topic, server, tuple(listeners)


def stamped(frame: bytes, who: Credentials) -> bytes:
    """``frame`` with the sender's userid and rolemask as the proxy knows them, whatever it said itself."""
    return frame[:STAMP_AT] + _STAMP.pack(*who) + frame[STAMP_END:]


def repeated(frame: bytes) -> bytes:
    """``frame`` with ``Flag.REPEATED``."""
    return frame[:_FLAGS_AT] + bytes((frame[_FLAGS_AT] | Flag.REPEATED.value,)) + frame[_FLAGS_AT + 1 :]


def not_repeated(frame: bytes) -> bytes:
    """``frame`` without ``Flag.REPEATED``: its next receiver has never seen it."""
    if not frame[_FLAGS_AT] & Flag.REPEATED.value:
        return frame
    return frame[:_FLAGS_AT] + bytes((frame[_FLAGS_AT] & ~Flag.REPEATED.value,)) + frame[_FLAGS_AT + 1 :]


def numbered(frame: bytes, number: int) -> bytes:
    """``frame`` with another ``word``: the number of a fan-out, for one topic and proxy, modulo 2**32."""
    return frame[:_WORD_AT] + _WORD.pack(number & 0xFFFFFFFF) + frame[_WORD_AT + 4 :]


def dated(frame: bytes, due_s: float, now_s: float) -> bytes:
    """``frame`` with a deadline in place of its ttl; both times are seconds of CLOCK_MONOTONIC."""
    flags = frame[_FLAGS_AT] | Flag.DUE.value
    due_ms = (int(due_s * 1000) & _U32_MAX or 1) if due_s - now_s < _DUE_MAX_MS / 1000 else 0
    middle = bytes((flags,)) + frame[_FLAGS_AT + 1 : _TTL_AT] + _WORD.pack(due_ms)
    return frame[:_FLAGS_AT] + middle + frame[_WORD_AT:]


def due_of(envelope: Envelope, now_s: float) -> float | None:
    """When the sender of what was read at ``now_s`` gives up, in seconds of CLOCK_MONOTONIC; None: never."""
    if not envelope.ttl_ms:
        return None
    if not envelope.flags & Flag.DUE.value:
        return now_s + envelope.ttl_ms / 1000
    ahead_ms = (envelope.ttl_ms - int(now_s * 1000)) & _U32_MAX
    return now_s + (ahead_ms if ahead_ms <= _DUE_MAX_MS else ahead_ms - _U32_MAX - 1) / 1000


def overdue(frame: bytes, now_s: float) -> bool:
    """Whether the deadline that ``dated`` put there has passed at ``now_s``."""
    if not frame[_FLAGS_AT] & Flag.DUE.value:
        return False
    due_ms = int.from_bytes(frame[_TTL_AT:_WORD_AT])
    return due_ms > 0 and 0 < (int(now_s * 1000) - due_ms) & _U32_MAX < _DUE_MAX_MS


def refusal(number: bytes, reason: Reason) -> bytes:
    """The envelope of a REFUSED for the message ``number``; the body may say more."""
    return encode(Kind.REFUSED, reason=reason, id=number)


# ---------------------------------------------------------------- filters of publishing sockets

FANOUT_LETTER: Final = b"F"
NOTIFY_LETTER: Final = b"N"
HANDSHAKE_LETTER: Final = b"?"
"""A subscriber that subscribes to this and a token is answered on it: what it subscribed to before is in force."""


def fanout_filter(exchange: str, topic: str) -> bytes:
    """Filter of fan-outs: exact, since a NUL ends it."""
    return b"F%s\0%s\0" % (exchange.encode(), topic.encode())


def notify_filter(exchange: str, topic: str) -> bytes:
    """Filter of notifications from clients to a node; ``topic`` has its priority at the end."""
    return b"N%s\0%s\0" % (exchange.encode(), topic.encode())


def read_filter(data: bytes) -> tuple[str, str] | None:
    """Exchange and topic of a fan-out's or notification's filter; None when it is none."""
    names = data[1:].split(b"\0")
    if data[:1] not in (FANOUT_LETTER, NOTIFY_LETTER) or len(names) != 3 or names[2]:
        return None
    if max(map(len, names)) > NAME_BYTES_MAX:
        return None
    try:
        return names[0].decode(), names[1].decode()
    except UnicodeDecodeError:
        return None
