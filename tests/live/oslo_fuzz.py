"""Raw peers of the oslo wing that say damaged things, and what they say: frames, and ZMTP by hand.

::

    damaged(seeds, dice)     one message of ``seeds`` with none to three damages
    CORPUS                   seeds by socket, as a peer of that socket would send them
    Wire                     a TCP or UNIX connection that speaks ZMTP 3.0 with NULL, whatever type it says it is
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from random import Random
from typing import Final

from broker.oslo.directory import wire
from broker.oslo.directory.wire import Hello
from broker.oslo.frames import (
    Flag,
    Kind,
    encode,
    fanout_filter,
    new_id,
    notify_filter,
    refusal,
)
from broker.oslo.names import Reason
from broker.oslo.records import Beat, Opened, Opening, Record, State, to_json

ID: Final = bytes(range(16))
LISTENER: Final = "f" * 24
"""Of hostile servers; nobody else's."""
BODY: Final = b'{"ctxt": {}, "message": {"method": "m", "args": {}}}'
PATIENCE_S: Final = 40.0

_OPENING = Opening(LISTENER, (Record("x", "t", "s", LISTENER),), None, 1000)
_NOTICES = Opening(LISTENER, (Record("x", "t.info", "", LISTENER, "p"),), "p", 5)
_STATE = State("elsewhere", "call", 5, 7, "tcp://127.0.0.1:9501", "", (Record("x", "t", "s", LISTENER),))
_CONTROL: Final = [
    [encode(Kind.OPEN, id=ID), to_json(_OPENING)],
    [encode(Kind.OPEN, id=ID), to_json(_NOTICES)],
    [encode(Kind.CLOSE, listeners=(LISTENER,), id=ID), b""],
    [encode(Kind.PULSE), b""],
    [encode(Kind.STATUS, id=ID), b""],
]

CORPUS: Final[dict[str, list[list[bytes]]]] = {
    "call": [
        [encode(Kind.CALL, "x", "t", id=ID, ttl_ms=500), BODY],
        [
            encode(Kind.CALL, "x", "t", "s", (LISTENER,), id=ID, flags=Flag.MANDATORY, word=2000, ttl_ms=500),
            BODY,
        ],
        [encode(Kind.CALL, "x", "nobody", id=ID, ttl_ms=500), b""],
        [encode(Kind.CAST, "x", "t", id=ID, flags=Flag.CONFIRM, ttl_ms=500), BODY],
        [encode(Kind.CAST, "x", "t", "s", id=ID, ttl_ms=500), BODY],
    ],
    "cast": [
        [encode(Kind.CAST, "x", "t", id=ID), BODY],
        [encode(Kind.CAST, "x", "t", "s", (LISTENER,), id=ID, ttl_ms=100), BODY],
        [encode(Kind.CAST, "x", "nobody", "s", id=ID), b""],
    ],
    "fanout": [
        [fanout_filter("x", "t"), encode(Kind.FANOUT, "x", "t", id=ID), BODY],
        [fanout_filter("x", "nobody"), encode(Kind.FANOUT, "x", "nobody", id=ID), BODY],
    ],
    "notify": [
        [notify_filter("x", "t.info"), encode(Kind.NOTIFY, "x", "t.info", "", (LISTENER,), id=ID), BODY],
        [
            notify_filter("x", "t.info"),
            encode(Kind.NOTIFY, "x", "t.info", "", (LISTENER, "e" * 24), id=ID),
            b"",
        ],
        [notify_filter("x", "nobody.info"), encode(Kind.NOTIFY, "x", "nobody.info", id=ID), b""],
    ],
    "call.ctl": [
        *_CONTROL,
        [encode(Kind.REPLY, id=ID), b"\0\0\0\0\0\1", b'{"result": 1}'],
        [encode(Kind.BEAT, id=ID), b"\1\0\0\0\0\1", b""],
    ],
    "cast.ctl": [*_CONTROL, [encode(Kind.CREDIT, listeners=(LISTENER,), word=3), b""]],
    "fanout.ctl": _CONTROL,
    "notify.ctl": [
        *_CONTROL,
        [encode(Kind.CREDIT, listeners=(LISTENER,), word=3), b""],
        [
            encode(Kind.REQUEUE, listeners=(LISTENER,)),
            encode(Kind.NOTIFY, "x", "t.info", "", (LISTENER,), id=ID),
            BODY,
        ],
    ],
    "fanout.pub": [
        [b"\1" + fanout_filter("x", "t")],
        [b"\1" + fanout_filter("x", "other")],
        [b"\0" + fanout_filter("x", "t")],
        [b"\1?" + ID],
        [b"\1"],
    ],
    "directory": [
        list(wire.encode(wire.DirectoryKind.HELLO, Hello(True))),
        list(wire.encode(wire.DirectoryKind.HELLO, Hello())),
        list(wire.encode(wire.DirectoryKind.ANNOUNCE, _STATE)),
        list(wire.encode(wire.DirectoryKind.BEAT, (Beat("elsewhere", "call", 5, 7),))),
        list(wire.encode(wire.DirectoryKind.LEAVE, Beat("elsewhere", "call", 5, 8))),
        [encode(Kind.STATUS, id=ID), b""],
    ],
}
"""What a right peer of each socket says; ``pub`` ones take subscriptions."""

FROM_PROXY: Final[dict[str, list[list[bytes]]]] = {
    "ctl": [
        [encode(Kind.OPENED, id=ID), to_json(Opened("node", 5))],
        [encode(Kind.REFUSED, id=ID, reason=Reason.BUSY), b"busy"],
        [encode(Kind.REFUSED, reason=Reason.NO_ROUTE), b"register again"],
        [encode(Kind.CLOSED, id=ID), b""],
        [encode(Kind.PULSE), b""],
        [encode(Kind.STATUS, id=ID), b"{}"],
        [encode(Kind.CALL, "x", "t", "s", (LISTENER,), id=ID), b"\0rid", BODY],
        [encode(Kind.CAST, "x", "t", "s", (LISTENER,), id=ID), b"\0rid", BODY],
        [encode(Kind.CAST, "x", "t", "s", (LISTENER,), id=ID), BODY],
        [encode(Kind.NOTIFY, "x", "t.info", "", (LISTENER,), id=ID), LISTENER.encode(), BODY],
        [encode(Kind.REPLY, id=ID), b"body"],
        [refusal(ID, Reason.NO_ROUTE), b"nobody"],
        [encode(Kind.TAKEN, id=ID), b""],
    ],
    "pub": [
        [fanout_filter("x", "t"), encode(Kind.FANOUT, "x", "t", id=ID, word=1), BODY],
        [fanout_filter("x", "t"), encode(Kind.FANOUT, "x", "t", id=ID, word=9), BODY],
    ],
    "directory": [
        list(wire.encode(wire.DirectoryKind.WELCOME, wire.Welcome("node", 5, 5.0))),
        list(wire.encode(wire.DirectoryKind.STATES, wire.States((_STATE,), complete=True))),
        list(wire.encode(wire.DirectoryKind.STATES, wire.States((), complete=True))),
        list(wire.encode(wire.DirectoryKind.GONE, (wire.Gone("elsewhere", "call", 5, "left"),))),
        list(wire.encode(wire.DirectoryKind.GREET, wire.Empty())),
        list(wire.encode(wire.DirectoryKind.ALIVE, wire.Empty())),
        list(wire.encode(wire.DirectoryKind.REFUSED, wire.DirectoryRefused("no"))),
    ],
}
"""What a right proxy says at its ``.ctl``, ``.pub`` and ``directory.ctl``."""

ODD: Final = (
    b"",
    b"\0",
    b"\1",
    b"\xff\xfe",
    b"HGO",
    b"HGO\x01",
    b"HGD\x02\x02",
    b"HGO\x02" + bytes(36),
    b"HGO\x01" + b"\xff" * 36,
    b"null",
    b"[[[[[[",
    b"{" * 2000,
    b'{"listener": 1}',
    b'{"listener":"\xff"}',
    b"[" * 100_000,
    b"9" * 400,
    b"x" * 300,
    b"x" * 20_000,
    b"\1" + b"F" * 700,
    b"Fx\0t\0",
    b"L" + LISTENER.encode() + b"\0",
)
_DAMAGES: Final = 9


def _damage(frames: list[bytes], seeds: list[list[bytes]], dice: Random) -> None:
    at = dice.randrange(len(frames)) if frames else 0
    what = dice.randrange(_DAMAGES)
    if what == 1 or not frames:
        frames.insert(at, dice.choice(ODD))
    elif what == 0:
        del frames[at]
    elif what == 2:
        frames[at] = dice.choice(ODD)
    elif what == 3:
        frames[at] = dice.choice(dice.choice(seeds))
    elif what == 4 and frames[at]:
        flipped = bytearray(frames[at])
        for _ in range(dice.randint(1, 3)):
            flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
        frames[at] = bytes(flipped)
    elif what == 5:
        frames[at] = frames[at][: dice.randrange(len(frames[at]) + 1)]
    elif what == 6:
        dice.shuffle(frames)
    elif what == 7:
        where = dice.randrange(len(frames[at]) + 1)
        frames[at] = frames[at][:where] + dice.choice(ODD)[:300] + frames[at][where:]
    elif len(frames) < 20:
        frames += [dice.randbytes(dice.randrange(40))] * dice.randint(1, 200)


def damaged(seeds: list[list[bytes]], dice: Random) -> list[bytes]:
    """One of the messages, with none to three damages; each time with an id of its own where it has one."""
    frames = [frame.replace(ID, new_id()) for frame in dice.choice(seeds)]
    for _ in range(dice.randint(0, 3)):
        _damage(frames, seeds, dice)
    return frames or [b""]


# ---------------------------------------------------------------- ZMTP by hand (ZeroMQ RFC 23)

_MORE: Final = 1
_LONG: Final = 2
_COMMAND: Final = 4


class Wire:
    """A connection that says it is a socket of ``kind``, such as ``PUB``; it reads and forgets what comes.

    Raises:
        OSError: nobody listens there, or the other side wants nothing to do with us.
    """

    def __init__(self, endpoint: str, kind: str) -> None:
        scheme, _, where = endpoint.partition("://")
        self.said = 0
        self.sock = socket.socket(socket.AF_UNIX if scheme == "ipc" else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(PATIENCE_S)
            host, _, port = where.rpartition(":")
            self.sock.connect(where if scheme == "ipc" else (host, int(port)))
            self.sock.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
            self._exactly(64)
            name, value = b"Socket-Type", kind.encode()
            ready = b"\x05READY" + bytes((len(name),)) + name + struct.pack(">I", len(value)) + value
            self.sock.sendall(bytes((_COMMAND, len(ready))) + ready)
            flags, size = self._exactly(2)
            if flags != _COMMAND:
                raise OSError(f"saw a frame of flags {flags} and {size} bytes, expected READY")
            self._exactly(size)
        except BaseException:
            self.sock.close()
            raise

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.sock.recv(size - len(data)) or self._ended()
        return data

    def _ended(self) -> bytes:
        raise ConnectionResetError("the other side closed the connection")

    def raw(self, data: bytes) -> None:
        """Send bytes as they are; what comes meanwhile is read, so that neither side waits for the other."""
        view = memoryview(data)
        while view:
            readable, writable, _ = select.select([self.sock], [self.sock], [], PATIENCE_S)
            if readable and not self.sock.recv(1 << 16):
                self._ended()
            if writable:
                view = view[self.sock.send(view) :]
            elif not readable:
                raise TimeoutError("the other side reads nothing")

    def say(self, frames: list[bytes]) -> None:
        """Send one message."""
        self.raw(b"".join(framed(frame, more=at < len(frames) - 1) for at, frame in enumerate(frames)))
        self.said += 1

    def leave(self) -> None:
        """End the connection in order: all that was said arrives."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            while self.sock.recv(1 << 16):
                pass
        self.sock.close()

    def cut(self) -> None:
        """End it at once."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def framed(frame: bytes, *, more: bool = False, command: bool = False) -> bytes:
    """A frame of ZMTP."""
    flags = _MORE * more | _COMMAND * command
    if len(frame) < 256:
        return bytes((flags, len(frame))) + frame
    return bytes((flags | _LONG,)) + struct.pack(">Q", len(frame)) + frame


def broken_bytes(dice: Random) -> bytes:
    """What ends a connection of ZMTP, or should."""
    return dice.choice((
        framed(b"x" * 100, more=True)[: dice.randrange(102)],
        b"\x02" + struct.pack(">Q", 1 << 62),
        b"\x02" + struct.pack(">Q", (1 << 20) + 1) + b"x" * 5000,
        bytes((0x80 | dice.randrange(128), 3)) + b"abc",
        framed(dice.choice((b"\x04PING", b"\x05ERROR\xff", b"\x09SUBSCRIBE" + b"x" * 9, b"\xff", b"")), command=True),
        framed(b"\x04PING\x00\x10" + dice.randbytes(20), command=True),
        dice.randbytes(dice.randrange(1, 200)),
    ))  # fmt: skip
