"""Frames <-> packets, for both dialects (NFP, "NFP messages"; pure).

Frames are those a DEALER sends or receives: without the identity that a ROUTER puts in front, with the empty frame 0.
Layouts, H header, c command::

    OPEN                              H c body
    READY, KEEPALIVE                  H c service
    DISCONNECT                        H c service [body]
    client -> broker: POST GET DELETE PUT MMI      H c service target uuid body
    broker -> worker: POST GET DELETE PUT          the same
                      and MMI, with an address     H c client "" uuid body
    worker -> broker: RESPONSE EVENT STREAM        H c service uuid status body
                      or with an address           H c client "" uuid status body
    broker -> client: RESPONSE EVENT STREAM MMI    H c service uuid status body [sequence]
    broker -> worker: RESPONSE                     H c service uuid status body   (ours: "recorded")

An empty fourth frame of the broker or a worker tells the form with an address; a client's is the text's default target,
``all``. The broker's MMI without an address is an answer. ``body`` is whatever buffer came: large ones are views
of the box that was opened, so that passing them on copies nothing.

The text says "7 or more frames", and "zero or more content frames" behind a status, but describes one body. So several
body frames of a one-byte command are one body in pieces: they are joined, stored and passed on as one frame. No byte is
lost, only where the pieces ended; who means several parts writes them into the body. A status with no content frame has
the empty body. Deployed NorFab's frames are exactly those above.

``encode(decode(frames)) == frames``, but for spellings that mean the same: no target for all, names given twice in one,
commas for an array, bytes of a status text that are no UTF-8, and bodies of several frames, or of none.
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from broker.nfp.names import NAME_BYTES_MAX, STATUS_TEXT, Command, Dialect, Sender
from broker.nfp.packet import NO_UUID_STATUS, SWAPPED, Body, InvalidPacket, Packet
from broker.nfp.targets import ALL, NAMES_MAX, Target, parse, render

__all__ = [
    "Body",
    "InvalidPacket",
    "Packet",
    "answer_packet",
    "decode",
    "encode",
    "parse_status",
    "render_status",
    "status_text",
]

FRAMES_MAX: Final = 64
"""Frames of one message: bodies in pieces are rare, and a peer must not make us hold thousands of empty ones."""
TARGET_BYTES_MAX: Final = NAMES_MAX * (NAME_BYTES_MAX + 3)
"""As many names as a target may have, quoted and with a comma each."""
HEADS_BYTES_MAX: Final = TARGET_BYTES_MAX + FRAMES_MAX * NAME_BYTES_MAX
"""All frames of a message but its body."""
STATUS_BYTES_MAX: Final = 255
SHOWN_BYTES: Final = 64
"""Of a peer's bytes in a text of an error."""

NORFAB_COMMAND: Final = {
    Command.PUT: b"0x10",
    Command.MMI: b"0x11",
    **{command: b"0x%02d" % command for command in Command if command <= Command.STREAM},
}
SEED_COMMAND: Final = {command: bytes((command,)) for command in Command if command <= Command.EVENT}
_COMMANDS: Final = {
    **{frame: (Dialect.NORFAB, command) for command, frame in NORFAB_COMMAND.items()},
    **{frame: (Dialect.SEED, command) for command, frame in SEED_COMMAND.items()},
}
_REQUESTS: Final = frozenset({Command.POST, Command.GET, Command.DELETE, Command.PUT, Command.MMI})
_ANSWERS: Final = frozenset({Command.RESPONSE, Command.EVENT, Command.STREAM})
_PRESENCE: Final = frozenset({Command.OPEN, Command.KEEPALIVE, Command.DISCONNECT})
_ALLOWED: Final = {
    Sender.CLIENT: _REQUESTS | {Command.OPEN},
    Sender.WORKER: _ANSWERS | _PRESENCE | {Command.READY},
    Sender.BROKER: _REQUESTS | _ANSWERS | _PRESENCE,
}
_NORFAB: Final = Dialect.NORFAB
_BROKER: Final = Sender.BROKER
_WORKER: Final = Sender.WORKER
_RESPONSE: Final = Command.RESPONSE
_MMI: Final = Command.MMI
_HEADERS: Final = {bytes(sender): sender for sender in Sender}
_HEADER: Final = {sender: header for header, sender in _HEADERS.items()}
_HEADER_BYTES: Final = 6
_NORFAB_DISCONNECT: Final = NORFAB_COMMAND[Command.DISCONNECT]
_COMMAND_BYTES_MAX: Final = 4
_KNOWN: Final = {
    (header, frame): (sender, command, dialect, command in _ANSWERS, command in _REQUESTS)
    for header, sender in _HEADERS.items()
    for frame, (dialect, command) in _COMMANDS.items()
    if command in _ALLOWED[sender]
}
"""What may be in frames 1 and 2; a broker looks here for each message, hence one table of everything about them."""
NAMES_REMEMBERED: Final = 4096
"""Names that need not be read again: those of services, and the ids of jobs under way, come half a dozen times each."""


# -- decoding -------------------------------------------------------------------------------------


def decode(frames: Sequence[Body]) -> Packet:
    """The packet in ``frames``, buffers of any kind.

    Raises:
        InvalidPacket: they are no NFP message.
    """
    size = len(frames)
    if size < 3 or size > FRAMES_MAX or len(frames[0]):
        raise _unframed(frames)
    header, code = frames[1], frames[2]
    if len(header) != _HEADER_BYTES or len(code) > _COMMAND_BYTES_MAX:
        return _swapped_disconnect(frames)
    known = _KNOWN.get((bytes(header), bytes(code)))
    if known is None:
        return _swapped_disconnect(frames)
    sender, command, dialect, answers, requests = known
    packet = Packet(sender, command, dialect)
    if answers or (command is _MMI and _is_mmi_answer(packet, frames)):
        _answer(packet, frames)
    elif requests:
        _request(packet, frames)
    else:
        _presence(packet, frames)
    return packet


def _unframed(frames: Sequence[Body]) -> InvalidPacket:
    size = len(frames)
    if size < 3:
        return InvalidPacket("short", f"{size} frames, expected at least 3")
    if len(frames[0]):
        return InvalidPacket("frame0", f"frame 0 has {len(frames[0])} bytes, expected the empty delimiter")
    _sender(frames[1])
    return InvalidPacket("arity", f"{size} frames, expected at most {FRAMES_MAX}")


def _sender(header: Body) -> Sender:
    sender = _HEADERS.get(bytes(header)) if len(header) == _HEADER_BYTES else None
    if sender is None:
        raise InvalidPacket("header", f"header {_shown(header)}, expected NFPC01, NFPW01 or NFPB01")
    return sender


def _is_mmi_answer(packet: Packet, frames: Sequence[Body]) -> bool:
    """The broker's MMI to a worker has an address, so that this needs no guess at what the frames mean."""
    return packet.sender is _BROKER and len(frames) > 4 and len(frames[4]) > 0


def _presence(packet: Packet, frames: Sequence[Body]) -> None:
    size = len(frames)
    if size != 4 and not (size == 5 and packet.command is Command.DISCONNECT):
        raise _arity(packet, size, "4 or 5" if packet.command is Command.DISCONNECT else "4")
    if packet.command is Command.OPEN:
        packet.body = frames[3]
        return
    packet.service = _name(frames[3], "service")
    if size == 5:
        packet.body = frames[4]


def _request(packet: Packet, frames: Sequence[Body]) -> None:
    if len(frames) < 7:
        raise _arity(packet, len(frames), "7")
    if packet.sender is _BROKER and not len(frames[4]):
        packet.client = _address(frames[3])
    else:
        packet.service = _name(frames[3], "service")
        packet.target = _target(frames[4])
    packet.uuid = _name(frames[5], "uuid")
    packet.body = _body(packet, frames, 6)


def _answer(packet: Packet, frames: Sequence[Body]) -> None:
    size = len(frames)
    sender = packet.sender
    if size == 5 and sender is _BROKER and packet.command is _RESPONSE:
        if packet.dialect is not _NORFAB:
            raise _arity(packet, 5, "7")
        packet.service, packet.body, packet.quirk = _name(frames[3], "service"), frames[4], NO_UUID_STATUS
        return
    addressed = sender is _WORKER and size > 4 and not len(frames[4])
    if size < 7 + addressed:
        if size < 6 + addressed or packet.dialect is not Dialect.SEED:
            raise _arity(packet, size, "8 with an address" if addressed else "7")
        frames, size = (*frames, b""), size + 1
    if addressed:
        packet.client = _address(frames[3])
        at = 5
    else:
        packet.service = _name(frames[3], "service")
        at = 4
    packet.uuid = _name(frames[at], "uuid")
    packet.status, packet.status_text = parse_status(frames[at + 1])
    if size == at + 3:
        packet.body = frames[at + 2]
    elif size == 8 and sender is _BROKER:
        packet.body = frames[6]
        packet.sequence = _sequence(frames[7])
    else:
        packet.body = _body(packet, frames, at + 2)


def _body(packet: Packet, frames: Sequence[Body], at: int) -> Body:
    """The body at ``at``: the last frame, or in the text's dialect the first of several that are joined."""
    if len(frames) == at + 1:
        return frames[at]
    sequenced = packet.sender is _BROKER and packet.command in _ANSWERS
    if packet.dialect is not Dialect.SEED or sequenced:
        raise _arity(packet, len(frames), str(at + 1))
    return b"".join(bytes(frame) for frame in frames[at:])


def _arity(packet: Packet, size: int, expected: str) -> InvalidPacket:
    return InvalidPacket("arity", f"{packet.command.name} with {size} frames, expected {expected}")


def parse_status(frame: Body) -> tuple[int, str]:
    """The three digits and the text behind them, which means nothing to anybody.

    Raises:
        InvalidPacket: not three digits from 100, or something else than a space follows.

    >>> parse_status(b"202 ACCEPTED"), parse_status(b"200")
    ((202, 'ACCEPTED'), (200, ''))
    """
    if not 3 <= len(frame) <= STATUS_BYTES_MAX:
        raise InvalidPacket("status", f"status of {len(frame)} bytes, expected 3 to {STATUS_BYTES_MAX}")
    return _status(bytes(frame))


@lru_cache(maxsize=256)
def _status(data: bytes) -> tuple[int, str]:
    digits, text = data[:3], data[3:]
    if not digits.isdigit() or digits < b"100" or (text and text[:1] != b" "):
        raise InvalidPacket("status", f"status {_shown(data)}, expected three digits and a text")
    return int(digits), text[1:].decode("utf-8", "ignore") if text else ""


def _sequence(frame: Body) -> int:
    digits = bytes(frame) if len(frame) <= 19 else b""
    if not digits.isdigit() or digits != b"%d" % int(digits):
        raise InvalidPacket("arity", f"sequence {_shown(frame)}, expected at most 19 digits")
    return int(digits)


def _swapped_disconnect(frames: Sequence[Body]) -> Packet:
    """Frames 1 and 2 are none that this sender sends, unless they are those of NorFab's swapped DISCONNECT."""
    sender = _sender(frames[1])
    known = _COMMANDS.get(bytes(frames[2])) if len(frames[2]) <= _COMMAND_BYTES_MAX else None
    if known is not None:
        raise InvalidPacket("role", f"a {sender.name.lower()} does not send {known[1].name}")
    swapped = len(frames) == 4 and len(frames[3]) == 4 and bytes(frames[3]) == _NORFAB_DISCONNECT
    if swapped and sender is _BROKER:
        return Packet(sender, Command.DISCONNECT, service=_name(frames[2], "service"), quirk=SWAPPED)
    raise InvalidPacket("command", f"command {_shown(frames[2])}, expected one of the twelve")


def _name(frame: Body, what: str) -> str:
    if not 0 < len(frame) <= NAME_BYTES_MAX:
        raise InvalidPacket(what, f"{what} of {len(frame)} bytes, expected 1 to {NAME_BYTES_MAX}")
    return _printable(bytes(frame), what)


@lru_cache(maxsize=NAMES_REMEMBERED)
def _printable(data: bytes, what: str) -> str:
    text = _text(data, what)
    if not text.isprintable():
        raise InvalidPacket("encoding", f"{what} {_shown(data)} is not printable")
    return text


def _target(frame: Body) -> Target:
    if len(frame) > TARGET_BYTES_MAX:
        raise InvalidPacket("target", f"target of {len(frame)} bytes, expected at most {TARGET_BYTES_MAX}")
    target = parse(_text(frame, "target")) if len(frame) else ALL
    if target is None:
        raise InvalidPacket("target", f"target {_shown(frame)}, expected all, any or names of workers")
    return target


def _address(frame: Body) -> bytes:
    if not 0 < len(frame) <= NAME_BYTES_MAX:
        raise InvalidPacket("client", f"client of {len(frame)} bytes, expected 1 to {NAME_BYTES_MAX}")
    return bytes(frame)


def _text(frame: Body, what: str) -> str:
    try:
        return bytes(frame).decode()
    except UnicodeDecodeError as error:
        raise InvalidPacket("encoding", f"{what} {_shown(frame)} is not UTF-8") from error


def _shown(frame: Body) -> str:
    return repr(bytes(memoryview(frame)[:SHOWN_BYTES]))


# -- encoding -------------------------------------------------------------------------------------


def encode(packet: Packet) -> list[Body]:
    """The frames of ``packet``, the inverse of ``decode``. A body that is needed and None is written empty.

    Raises:
        ValueError: a frame that is needed is missing, or the dialect has no such command.
    """
    command = packet.command
    code = (NORFAB_COMMAND if packet.dialect is _NORFAB else SEED_COMMAND).get(command)
    if code is None:
        raise ValueError(f"the one-byte dialect has no {command.name}")
    frames: list[Body] = [b"", _HEADER[packet.sender], code]
    if packet.quirk:
        _encode_quirk(packet, frames)
    elif packet.status or command in _ANSWERS:
        _encode_answer(packet, frames)
    elif command in _REQUESTS:
        _encode_request(packet, frames)
    elif command is Command.OPEN:
        frames.append(b"" if packet.body is None else packet.body)
    else:
        frames.append(_written(packet, packet.service, "service"))
        if command is Command.DISCONNECT and packet.body is not None:
            frames.append(packet.body)
    return frames


def _encode_request(packet: Packet, frames: list[Body]) -> None:
    if packet.client is not None:
        frames += (packet.client, b"")
    elif packet.target is None:
        raise ValueError(f"{packet!r} has neither target nor address")
    elif packet.command is _MMI and packet.sender is _BROKER:
        raise ValueError(f"{packet!r} has no address: a worker would read an answer")
    else:
        frames.append(_written(packet, packet.service, "service"))
        frames.append(render(packet.target, array=packet.dialect is _NORFAB).encode())
    frames.append(_written(packet, packet.uuid, "uuid"))
    frames.append(b"" if packet.body is None else packet.body)


def _encode_answer(packet: Packet, frames: list[Body]) -> None:
    status, uuid, body = packet.status, packet.uuid, packet.body
    if not status or not uuid:
        raise ValueError(f"{packet!r} has no {'uuid' if status else 'status'}")
    if packet.client is not None:
        frames += (packet.client, b"")
    else:
        frames.append(_written(packet, packet.service, "service"))
    frames += (uuid.encode(), render_status(status, packet.status_text), b"" if body is None else body)
    if packet.sequence is not None:
        frames.append(b"%d" % packet.sequence)


def _encode_quirk(packet: Packet, frames: list[Body]) -> None:
    service = _written(packet, packet.service, "service")
    if packet.quirk == SWAPPED:
        frames[2:] = (service, frames[2])
    else:
        frames += (service, b"" if packet.body is None else packet.body)


def _written(packet: Packet, text: str, what: str) -> bytes:
    if not text:
        raise ValueError(f"{packet!r} has no {what}")
    return text.encode()


@lru_cache(maxsize=256)
def render_status(code: int, text: str) -> bytes:
    """The status frame.

    >>> render_status(200, "OK"), render_status(202, "")
    (b'200 OK', b'202')
    """
    return f"{code:03d} {text}".encode() if text else b"%03d" % code


def status_text(code: int, dialect: Dialect) -> str:
    """What is written behind ``code``: words in the text's dialect, nothing for deployed NorFab."""
    return "" if dialect is _NORFAB else STATUS_TEXT.get(code, "")


def answer_packet(
    command: Command, dialect: Dialect, service: str, uuid: str, status: int, body: Body
) -> Packet:
    """RESPONSE, EVENT, STREAM or MMI of the broker, with the status as ``dialect`` writes it."""
    return Packet(
        _BROKER,
        command,
        dialect=dialect,
        service=service,
        uuid=uuid,
        status=status,
        status_text=status_text(status, dialect),
        body=body,
    )
