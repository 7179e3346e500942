"""The reader of a client's frames, sans I/O and strict (RFC 6455, sections 5 and 7.4).

Rules of this file: nothing is allocated on announcement: what is held of an incomplete frame grows as bytes arrive,
after its length passed the cap. Bytes may be split anywhere. Messages in front of a bad frame are still returned; the
failure stands in ``failure`` and nothing after it, or after a close frame, is looked at. A few bytes may inflate to
many, so whoever feeds may say how many at a time (``spare``).
"""

# compiled: mypyc

from __future__ import annotations

from codecs import getincrementaldecoder
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.rfc6455 import CONTROL_BYTES, INVALID_TEXT, PROTOCOL, TOO_BIG
from gateway.websocket.deflate import RSV1, TooLarge, inflate
from gateway.websocket.frames import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT

if TYPE_CHECKING:
    from codecs import IncrementalDecoder

try:
    from websockets.speedups import apply_mask
except ImportError:  # a platform without the compiled part: three times slower on small frames
    from websockets.utils import apply_mask

MAX_FRAGMENTS: Final = 16384
"""Fragments one message may come in: their bytes are capped anyway, but empty ones would never end."""

UNBOUND: Final = 1 << 62
MESSAGE_BYTES: Final = 128
"""A compressed message takes so much of ``spare`` at least, however short it is: it is more work than its bytes."""

_MEDIUM = Struct(">H")
_LARGE = Struct(">Q")
_CODE = Struct(">H")
_Utf8 = getincrementaldecoder("utf-8")
_WHOLE_TEXT: Final = 0x80 | TEXT
_WHOLE_BINARY: Final = 0x80 | BINARY
_OPCODES: Final = frozenset((CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG))
_REGISTERED: Final = frozenset((1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014))


class Failure(NamedTuple):
    """Why reading ended: the close code that says so, and words for the close frame and the log."""

    code: int
    text: str


class _Broken(Exception):
    """Carries a Failure out of the parsing."""

    def __init__(self, code: int, text: str) -> None:
        self.failure = Failure(code, text)
        super().__init__(text)


def may_be_sent(code: int) -> bool:
    """Whether a close frame may carry ``code``: RFC 6455 and IANA's registry below 3000, libraries and private above.

    >>> [code for code in (999, 1000, 1004, 1005, 1006, 1012, 1015, 2999, 3000, 4999, 5000) if may_be_sent(code)]
    [1000, 1012, 3000, 4999]
    """
    return code in _REGISTERED or 3000 <= code < 5000


class Reader:
    """Turns what arrives from one client into whole messages and control frames.

    Args:
        max_bytes: cap on a message's payload, all fragments together, in bytes; there is no off value.
        inflates: whether messages may come compressed (``deflate``); the cap is that of the message itself, too.

    Attributes:
        max_bytes: may be changed at any moment; it holds for every frame whose header is read after that.
        setting: what says so, for whoever sends more.
        failure: None, or why reading ended.
        closed: True once a close frame was read.
        spare: bytes that may be inflated yet; see ``feed``.
        rest: what ``feed`` was given and has not looked at.
        deaf: nobody wants messages any more: compressed ones are empty from now on and cost nothing.
    """

    __slots__ = (
        "_deflated",
        "_head",
        "_inflates",
        "_mask",
        "_message",
        "_need",
        "_opcode",
        "_partial",
        "_pieces",
        "_text",
        "_utf8",
        "closed",
        "deaf",
        "failure",
        "max_bytes",
        "rest",
        "setting",
        "spare",
    )

    def __init__(self, max_bytes: int, *, inflates: bool = False) -> None:
        self.max_bytes = max_bytes
        self.setting = "limits.message_bytes"
        self.failure: Failure | None = None
        self.closed = False
        self._head = b""  # the beginning of a frame whose header is incomplete
        self._partial: bytearray | None = None  # the masked payload of a frame that is incomplete, with
        self._opcode = 0  # its first byte
        self._mask = b""
        self._need = 0
        self._message: bytearray | None = None  # a fragmented message, unmasked
        self._pieces = 0
        self._text = self._deflated = False  # whether that message is text, and compressed
        self._utf8: IncrementalDecoder | None = None  # set while that message is text that can be looked at
        self._inflates = inflates
        self.spare = UNBOUND
        self.rest = b""
        self.deaf = False

    @property
    def pending_bytes(self) -> int:
        """Bytes held of frames and messages that are not complete, or wait."""
        return len(self._head) + len(self._partial or b"") + len(self._message or b"") + len(self.rest)

    @property
    def missing_bytes(self) -> int:
        """Bytes of the present frame that have not come; 0 between frames, and while its length is not known."""
        return 0 if self._partial is None else self._need - len(self._partial)

    def feed(self, data: bytes, spare: int = UNBOUND) -> list[tuple[int, bytes]]:
        """Return what ``data`` completes, in order, as (opcode, payload): TEXT and BINARY are whole messages.

        Never raises: see ``failure``. Payloads of TEXT are valid UTF-8, those of CLOSE are empty or a valid code and
        reason.

        Args:
            data: what came, wherever it was cut.
            spare: so many bytes may be inflated, the last message whole; ``rest`` is for the next time. With none,
                nothing is looked at; who is deaf needs none.
        """
        out: list[tuple[int, bytes]] = []
        self.spare = UNBOUND if self.deaf else spare
        if self.failure is not None or self.closed:
            return out
        if self.rest:
            data, self.rest = self.rest + data, b""
        if self.spare <= 0:
            self.rest = data
            return out
        try:
            pos = 0
            if self._partial is not None:
                pos = self._fill(data, out)
                if self.spare <= 0:
                    self.rest, pos = data[pos:], len(data)
            elif self._head:
                data, self._head = self._head + data, b""
            if pos < len(data) and not self.closed:
                self._split(data, pos, out)
        except _Broken as broken:
            self.failure = broken.failure
        if self.failure is not None or self.closed:
            self.forget()
        return out

    def forget(self) -> None:
        """Let go of what is not complete, or waits: nothing follows."""
        self._head, self._partial, self._message, self._utf8 = b"", None, None, None
        self.rest = b""

    def _split(self, data: bytes, pos: int, out: list[tuple[int, bytes]]) -> None:
        end = len(data)
        while True:
            if self._message is None:
                pos = self._cut_common(data, pos, out)
            if pos == end:
                return
            body, size = self._header(data, pos)
            if body == 0:
                self._head = data[pos:]
                return
            first, mask = data[pos], data[body - 4 : body]
            pos = body + size
            if pos > end:
                self._opcode, self._mask, self._need = first, mask, size
                self._partial = bytearray(memoryview(data)[body:])
                return
            self._frame(first, apply_mask(data[body:pos], mask), out)
            if self.spare <= 0:
                self.rest = data[pos:]
            if self.closed or self.rest:
                return

    def _cut_common(self, data: bytes, pos: int, out: list[tuple[int, bytes]]) -> int:
        """Cut whole unfragmented messages below 64 KiB; return where anything else begins."""
        end, limit = len(data), self.max_bytes
        while end - pos >= 6:
            size, body = data[pos + 1] - 128, pos + 6
            if size == 126:
                size, body = data[pos + 2] << 8 | data[pos + 3], pos + 8
                if size < 126:
                    return pos
            elif not 0 <= size < 126:
                return pos
            stop = body + size
            if stop > end or size > limit:
                return pos
            first = data[pos]
            if first == _WHOLE_BINARY:
                out.append((BINARY, apply_mask(data[body:stop], data[body - 4 : body])))
            elif first == _WHOLE_TEXT:
                out.append((TEXT, _checked(apply_mask(data[body:stop], data[body - 4 : body]))))
            else:
                return pos
            pos = stop
        return pos

    def _header(self, data: bytes, pos: int) -> tuple[int, int]:
        """Where the payload of the frame at ``pos`` begins, and its size; (0, 0) while the header is incomplete."""
        have = len(data) - pos
        if have < 2:
            self._check_first(data[pos])
            return 0, 0
        first, second = data[pos], data[pos + 1]
        self._check_first(first)
        # RFC 6455, section 5.1: a server must end the connection then; masks keep caches on the way from being poisoned
        if second < 128:
            raise _Broken(PROTOCOL, "a frame from a client must be masked")
        size = second - 128
        # section 5.5: so that one can be handled at once, without a bound of its own
        if first & 8 and size > CONTROL_BYTES:
            raise _Broken(PROTOCOL, "a control frame may carry 125 bytes at most")
        body = pos + 6
        if size == 126:
            body = pos + 8
            if have < 4:
                return 0, 0
            size = _long(_MEDIUM.unpack_from(data, pos + 2)[0], 126)
        elif size == 127:
            body = pos + 14
            if have < 10:
                return 0, 0
            size = _long(_LARGE.unpack_from(data, pos + 2)[0], 65536)
        self._check_size(first, size)
        return (body, size) if body <= len(data) else (0, 0)

    def _check_first(self, first: int) -> None:
        """Hold a frame's first byte against the rules and against where we are in a message."""
        opcode = first & 0x0F
        # section 5.2; RSV1 says "compressed" on the first frame of a message only (RFC 7692, section 6)
        if first & 0x70 and not (self._inflates and first & 0x70 == RSV1 and opcode in (TEXT, BINARY)):
            raise _Broken(PROTOCOL, "a reserved bit is set that no extension was agreed on for")
        if opcode not in _OPCODES:
            raise _Broken(PROTOCOL, f"opcode {opcode} is reserved")
        if opcode & 8:
            if first < 128:
                # section 5.4: they may come between the fragments of a message, and so cannot be some themselves
                raise _Broken(PROTOCOL, "a control frame must not be fragmented")
        elif opcode == CONTINUATION:
            if self._message is None:
                raise _Broken(PROTOCOL, "a continuation of no message")
        # section 5.4: fragments of two messages never mix, where no extension says so
        elif self._message is not None:
            raise _Broken(PROTOCOL, "a new message began inside a fragmented one")

    def _check_size(self, first: int, size: int) -> None:
        if first & 8:
            return
        # asked before a byte of the payload is kept: a length alone must cost nothing (section 10.4)
        total = size + len(self._message or b"")
        if total > self.max_bytes:
            text = f"a message of {total} bytes or more, the limit is {self.max_bytes} ({self.setting})"
            raise _Broken(TOO_BIG, text)

    def _fill(self, data: bytes, out: list[tuple[int, bytes]]) -> int:
        """Extend the incomplete frame; return how much of ``data`` it took."""
        partial = self._partial
        assert partial is not None
        take = min(self._need - len(partial), len(data))
        partial += memoryview(data)[:take]
        if len(partial) == self._need:
            self._partial = None
            self._frame(self._opcode, apply_mask(partial, self._mask), out)
        return take

    def _frame(self, first: int, payload: bytes, out: list[tuple[int, bytes]]) -> None:
        """Take a whole frame with a valid header."""
        opcode = first & 0x0F
        if opcode & 8:
            if opcode == CLOSE:
                _check_close(payload)
                self.closed = True
            out.append((opcode, payload))
        elif first < 128 or opcode == CONTINUATION:
            self._fragment(first, payload, out)
        else:
            payload = self._inflated(payload) if first & RSV1 else payload
            out.append((opcode, payload if opcode == BINARY else _checked(payload)))

    def _inflated(self, payload: bytes) -> bytes:
        if self.deaf:
            return b""
        try:
            whole = inflate(payload, self.max_bytes)
        except TooLarge:
            raise _Broken(
                TOO_BIG, f"a message above the limit of {self.max_bytes} bytes ({self.setting}), compressed"
            ) from None
        except ValueError as error:
            raise _Broken(PROTOCOL, str(error)) from None
        self.spare -= max(len(whole), MESSAGE_BYTES)
        return whole

    def _fragment(self, first: int, payload: bytes, out: list[tuple[int, bytes]]) -> None:
        message, final = self._message, first >= 128
        if message is None:
            message, self._pieces = bytearray(), 0
            self._message = message
            self._text, self._deflated = first & 0x0F == TEXT, bool(first & RSV1)
            self._utf8 = _Utf8() if self._text and not self._deflated else None
        self._pieces += 1
        if self._pieces > MAX_FRAGMENTS:
            raise _Broken(TOO_BIG, f"a message in more than {MAX_FRAGMENTS} fragments")
        utf8 = self._utf8
        if utf8 is not None:
            try:
                # section 8.1; piece by piece, so that a message that is none is refused at its first bad fragment
                utf8.decode(payload, final)
            except UnicodeDecodeError:
                raise _Broken(INVALID_TEXT, "a text message is not UTF-8") from None
        message += payload
        if final:
            self._message = self._utf8 = None
            whole = bytes(message)
            if self._deflated:
                whole = self._inflated(whole)
                whole = _checked(whole) if self._text else whole
            out.append((TEXT if self._text else BINARY, whole))


def _long(size: int, least: int) -> int:
    """Check a length in its long form: the shortest form is the only valid one (section 5.2)."""
    # a second way to write a length would let two readers see two frames
    if size < least:
        raise _Broken(PROTOCOL, f"a length of {size} in a form for lengths from {least}")
    if size >> 63:
        raise _Broken(PROTOCOL, "the top bit of a 64-bit length is set")
    return size


def _checked(payload: bytes) -> bytes:
    """Pass on a text message that is UTF-8; most are ASCII, which is told in a fraction of the time."""
    if not payload.isascii():
        try:
            payload.decode()
        except UnicodeDecodeError:
            raise _Broken(INVALID_TEXT, "a text message is not UTF-8") from None
    return payload


def _check_close(payload: bytes) -> None:
    if not payload:
        return
    # section 5.5.1: a body begins with the two bytes of a code
    if len(payload) == 1:
        raise _Broken(PROTOCOL, "a close frame with half a code")
    code = _CODE.unpack_from(payload)[0]
    if not may_be_sent(code):
        raise _Broken(PROTOCOL, f"close code {code} must not be sent")
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        raise _Broken(INVALID_TEXT, "the reason of a close frame is not UTF-8") from None
