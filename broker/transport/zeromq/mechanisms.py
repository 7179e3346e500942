"""The handshakes of NULL (ZeroMQ RFC 37) and CURVE (RFC 26), either side; sans I/O.

::

    client                      server                          CURVE: what is proved
    greeting  <-------------->  greeting
    HELLO     --------------->                                  C' is the client's key for this connection
              <---------------  WELCOME                         the server has S; S' is its key for this connection
    INITIATE  --------------->                                  the client has C, and meant C' and S (vouch)
              <---------------  READY or ERROR                  the server lets C in

NULL has READY alone, which the client sends at once and the server when it has judged the client's.

Each nonce is used once: it begins with what it is for and ends with a number that rises with each box of one side; a
box whose number is not above that of the one before is refused, so that nothing can be played again. What a server
keeps between WELCOME and INITIATE it keeps with the connection, so its cookie is but a number that has to come back.
"""

# compiled: mypyc

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from typing import Final, Protocol

from broker.errors import DecodeError, ProtocolError
from broker.transport.batching import Part
from broker.transport.zeromq.boxes import (
    MAC_BYTES,
    KeyPair,
    new_pair,
    open_behind,
    open_box,
    seal,
    seal_in_place,
    shared,
)
from broker.transport.zeromq.frames import (
    COPIED_BYTES,
    error,
    head_of,
    pack_metadata,
    reason_of,
    split_command,
    unpack_metadata,
)

HELLO_BYTES: Final = 200
"""The whole command, its name included; longer than the answer, so that nobody is flooded in another's name."""
WELCOME_BYTES: Final = 168
_COOKIE_BYTES: Final = 96
_VOUCH_BYTES: Final = 96
_INITIATE_MIN: Final = 9 + _COOKIE_BYTES + 8 + 16 + 32 + _VOUCH_BYTES
_MESSAGE: Final = b"\x07MESSAGE"
MESSAGE_OVERHEAD: Final = len(_MESSAGE) + 8 + MAC_BYTES + 1
"""Bytes that a box of CURVE adds to a part: name, number, authenticator, flags."""


class Refused(ProtocolError):
    """The peer does not let us in; ``reason`` as it said, with libzmq a status code of ZAP.

    Attributes:
        reason: at most 255 characters.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"refused: {reason}")
        self.reason = reason


class Seals(Protocol):
    """Seals and opens each frame once the handshake is over."""

    def seal(self, flags: int, pieces: Sequence[Part], out: list[Part | bytearray]) -> None:
        """Append the frame of ``pieces``, which are its data one behind the other, to ``out``."""

    def open(self, flags: int, body: Part) -> tuple[int, Part]:
        """Flags and data of a frame that came.

        Raises:
            DecodeError: it was not sealed by the peer of this connection, or comes again.
        """


class Mechanism(Protocol):
    """One side of one handshake.

    Attributes:
        name: as in the greeting.
        as_server: whether it judges.
        metadata: the peer's, once it has said it: of a server that is when it has to judge; of a client the end.
        key: the key that the peer has proved; b"" of none.
        is_promising: a server's: whether the peer has shown that it knows our key.
        seals: what to do with frames after the handshake; None: nothing.
    """

    name: bytes
    as_server: bool
    metadata: dict[bytes, bytes] | None
    key: bytes
    is_promising: bool
    seals: Seals | None

    def begin(self) -> bytes:
        """The first command; b"" where the peer begins."""

    def take(self, body: bytes) -> bytes:
        """The answer to a command of the peer; b"" for none.

        Raises:
            Refused: the peer said so. DecodeError: it breaks the handshake.
        """

    def grant(self) -> bytes:
        """The command that lets a client in, once ``metadata`` is there."""


class Null:
    """No keys: an eavesdropper can read everything, and pretend to be anybody."""

    name = b"NULL"

    def __init__(self, properties: dict[bytes, bytes], *, as_server: bool) -> None:
        self.as_server = as_server
        self.metadata: dict[bytes, bytes] | None = None
        self.key = b""
        self.is_promising = False
        self.seals: Seals | None = None
        self._ready = b"\x05READY" + pack_metadata(properties)

    def begin(self) -> bytes:
        """See ``Mechanism``."""
        return b"" if self.as_server else self._ready

    def take(self, body: bytes) -> bytes:
        """See ``Mechanism``."""
        name, data = split_command(body)
        if name == b"ERROR" and not self.as_server:
            raise Refused(reason_of(data))
        if name != b"READY":
            raise DecodeError(f"command {name[:16]!r}, expected READY")
        self.metadata = unpack_metadata(data)
        return b""

    def grant(self) -> bytes:
        """See ``Mechanism``."""
        return self._ready


class Boxes:
    """Seals and opens the frames of a connection with CURVE (RFC 26, MESSAGE).

    Args:
        key: of ``boxes.shared`` of both keys for this connection. number: of our last box so far.
        theirs: of the peer's last box so far.
    """

    __slots__ = ("_key", "_nonce", "_number", "_their_nonce", "_theirs")

    def __init__(self, key: bytes, number: int, theirs: int, *, as_server: bool) -> None:
        self._key = key
        self._number = number
        self._theirs = theirs
        self._nonce = b"CurveZMQMESSAGE" + (b"S" if as_server else b"C")
        self._their_nonce = b"CurveZMQMESSAGE" + (b"C" if as_server else b"S")

    def seal(self, flags: int, pieces: Sequence[Part], out: list[Part | bytearray]) -> None:
        """See ``Seals``. libzmq marks more parts by 1 and commands by 2 in the box."""
        self._number += 1
        number = self._number.to_bytes(8, "big")  # OverflowError after 2**64 boxes: never again the same
        head = head_of(sum(map(len, pieces)) + MESSAGE_OVERHEAD) + _MESSAGE + number
        frame = bytearray().join((head, _MAC_AND_FLAGS[flags], *pieces))
        seal_in_place(frame, len(head), self._nonce + number, self._key)
        out.append(frame)

    def open(self, flags: int, body: Part) -> tuple[int, Part]:
        """See ``Seals``. Flags of the frame itself are nobody's, and not looked at: only the box is proved."""
        if body[:8] != _MESSAGE or len(body) < MESSAGE_OVERHEAD:
            raise DecodeError("a frame that is no box, behind a handshake of CURVE")
        number = bytes(body[8:16])
        counted = int.from_bytes(number, "big")
        if counted <= self._theirs:
            raise DecodeError(f"box {counted} after box {self._theirs}")
        plain = open_behind(body, 16, self._their_nonce + number, self._key)
        self._theirs = counted
        found = _OUTER.get(plain[0])
        if found is None:
            raise DecodeError(f"a box with flags {plain[0]:#04x}")
        part = memoryview(plain)[1:]
        return found, bytes(part) if len(part) < COPIED_BYTES else part


_OUTER: Final = {0: 0, 1: 1, 2: 4}
"""Flags in a box (libzmq: 1 more, 2 command) -> those of frames."""
_MAC_AND_FLAGS: Final = {flags: bytes(MAC_BYTES) + bytes((inner,)) for inner, flags in _OUTER.items()}
"""Flags of frames -> room for the box's MAC and the flags in it."""


class CurveClient:
    """The side that dials.

    Args:
        keys: our own, for good. server: the key that the listener must have.
    """

    name = b"CURVE"
    as_server = False

    def __init__(self, properties: dict[bytes, bytes], keys: KeyPair, server: bytes) -> None:
        self.metadata: dict[bytes, bytes] | None = None
        self.key = server
        self.is_promising = False
        self.seals: Seals | None = None
        self._properties = pack_metadata(properties)
        self._keys = keys
        self._short = new_pair()
        self._number = 0
        self._shared = b""

    def begin(self) -> bytes:
        """HELLO: our key for this connection, and that we know the server's."""
        number = self._next()
        box = seal(bytes(64), b"CurveZMQHELLO---" + number, shared(self.key, self._short.secret))
        return b"\x05HELLO\x01\x00" + bytes(72) + self._short.public + number + box

    def take(self, body: bytes) -> bytes:
        """See ``Mechanism``: WELCOME, then READY."""
        name, data = split_command(body)
        if name == b"ERROR":
            raise Refused(reason_of(data))
        if not self._shared:
            return self._initiate(name, body, data)
        if name != b"READY" or len(data) < 8 + 16:
            raise DecodeError(f"command {name[:16]!r} of {len(body)} bytes, expected READY")
        number = data[:8]
        self.metadata = unpack_metadata(open_box(data[8:], b"CurveZMQREADY---" + number, self._shared))
        self.seals = Boxes(self._shared, self._number, int.from_bytes(number, "big"), as_server=False)
        return b""

    def _initiate(self, name: bytes, body: bytes, data: bytes) -> bytes:
        if name != b"WELCOME" or len(body) != WELCOME_BYTES:
            raise DecodeError(f"command {name[:16]!r} of {len(body)} bytes, expected WELCOME")
        key = shared(self.key, self._short.secret)
        opened = open_box(data[16:], b"WELCOME-" + data[:16], key)
        theirs, cookie = opened[:32], opened[32:]
        self._shared = shared(theirs, self._short.secret)
        nonce = os.urandom(16)
        vouch = seal(self._short.public + self.key, b"VOUCH---" + nonce, shared(theirs, self._keys.secret))
        number = self._next()
        box = seal(
            self._keys.public + nonce + vouch + self._properties,
            b"CurveZMQINITIATE" + number,
            self._shared,
        )
        return b"\x08INITIATE" + cookie + number + box

    def grant(self) -> bytes:
        """See ``Mechanism``: a client has nothing to grant."""
        return b""

    def _next(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(8, "big")


class CurveServer:
    """The side that listens.

    Args:
        keys: our own, for good.
    """

    name = b"CURVE"
    as_server = True

    def __init__(self, properties: dict[bytes, bytes], keys: KeyPair) -> None:
        self.metadata: dict[bytes, bytes] | None = None
        self.key = b""
        self.is_promising = False
        self.seals: Seals | None = None
        self._properties = pack_metadata(properties)
        self._keys = keys
        self._short: KeyPair | None = None
        self._their_short = b""
        self._their_number = 0
        self._cookie = b""
        self._shared = b""

    def begin(self) -> bytes:
        """See ``Mechanism``: the client begins."""
        return b""

    def take(self, body: bytes) -> bytes:
        """See ``Mechanism``: HELLO, then INITIATE."""
        name, data = split_command(body)
        if self._short is None:
            return self._welcome(name, body, data)
        self._read_initiate(name, body, data, self._short)
        return b""

    def _welcome(self, name: bytes, body: bytes, data: bytes) -> bytes:
        if name != b"HELLO" or len(body) != HELLO_BYTES:
            raise DecodeError(f"command {name[:16]!r} of {len(body)} bytes, expected HELLO")
        if data[:2] != b"\x01\x00":
            raise DecodeError(f"CURVE {data[0]}.{data[1]}, expected 1.0")
        self._their_short = data[74:106]
        number, box = data[106:114], data[114:]
        key = shared(self._their_short, self._keys.secret)
        if open_box(box, b"CurveZMQHELLO---" + number, key) != bytes(64):
            raise DecodeError("a HELLO whose box is not of zeros")
        self._their_number = int.from_bytes(number, "big")
        self._short = new_pair()
        self.is_promising = True
        self._cookie = os.urandom(_COOKIE_BYTES)
        nonce = os.urandom(16)
        return b"\x07WELCOME" + nonce + seal(self._short.public + self._cookie, b"WELCOME-" + nonce, key)

    def _read_initiate(self, name: bytes, body: bytes, data: bytes, short: KeyPair) -> None:
        if name != b"INITIATE" or len(body) < _INITIATE_MIN:
            raise DecodeError(f"command {name[:16]!r} of {len(body)} bytes, expected INITIATE")
        cookie, number, box = data[:96], data[96:104], data[104:]
        if not hmac.compare_digest(cookie, self._cookie):
            raise DecodeError("the cookie of another connection")
        counted = int.from_bytes(number, "big")
        if counted <= self._their_number:
            raise DecodeError(f"box {counted} after box {self._their_number}")
        self._shared = shared(self._their_short, short.secret)
        opened = open_box(box, b"CurveZMQINITIATE" + number, self._shared)
        key, nonce, vouch = opened[:32], opened[32:48], opened[48:128]
        said = open_box(vouch, b"VOUCH---" + nonce, shared(key, short.secret))
        if not hmac.compare_digest(said, self._their_short + self._keys.public):
            raise DecodeError("a voucher for another connection or another server")
        self._their_number = counted
        self.key = key
        self.metadata = unpack_metadata(opened[128:])

    def grant(self) -> bytes:
        """READY: our first box with the keys of this connection."""
        number = (1).to_bytes(8, "big")
        self.seals = Boxes(self._shared, 1, self._their_number, as_server=True)
        return b"\x05READY" + number + seal(self._properties, b"CurveZMQREADY---" + number, self._shared)


def refusal(status: bytes = b"400") -> bytes:
    """The command that ends the handshake of somebody who does not get in; "400" as ZAP has it (RFC 27)."""
    return error(status)
