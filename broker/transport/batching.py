"""Many messages in one ZeroMQ message, or one in many.

A batch is a ZeroMQ message with one part (behind the identity that ROUTER adds) that holds a piece of a stream of
framed messages: whole ones back to back, or, of a large one, as much as is sealed at a time; then the rest comes next.
It cannot be mistaken: a framed message begins with its magic, and the only other message of one part is a bare PROTO of
20 bytes, which begins with 0x8E. CURVE boxes each part and libzmq handles each part by itself, so a batch is an order
of magnitude cheaper than plain multi-part. Only Headgate peers that agreed on it ("batch": 2 in hello) get batches.
Those that libzmq sends have whole messages, at most ``BATCH_BYTES`` and ``BATCH_MSGS``.

Messages wait in an outbox in the *form* in which they are sent: ``bytes`` is a framed message for a batch, a list is
the parts of a plain one.
"""

# compiled: mypyc

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from broker.wire.message import MAGIC_DEPLOYED, MAGIC_TEXT, Message
from broker.wire.parts import part_data

if TYPE_CHECKING:
    import zmq

BATCH_BYTES: Final = 256 << 10
"""A batch ends before this size; one larger message would delay the others behind it."""
BATCH_MSGS: Final = 1024
"""A batch ends at this number."""
ALONE_BYTES: Final = 64 << 10
"""A message with more payload travels alone, as plain multi-part, so that the payload is not copied into a batch."""

Part = bytes | memoryview
Form = bytes | list[Part]
_FRAMED: Final = {bytes}


def form_of(message: Message) -> Form:
    """The form for a peer that takes batches."""
    return message.framed() if len(message.payload_part) <= ALONE_BYTES else plain(message)


def plain(message: Message) -> list[bytes | memoryview]:
    """The parts of ``message``; a large payload is not copied."""
    if len(message.payload_part) <= ALONE_BYTES:
        return list(message.parts())
    head = Message(message.front, message.topic_part, b"", message.head, message.tag)
    parts: list[bytes | memoryview] = list(head.parts())
    payload = part_data(memoryview(message.payload_part))
    assert payload is not None
    parts.insert(-1, payload)
    return parts


def form_size(form: Form | memoryview) -> int:
    """Bytes the outbox counts for ``form``, or for a piece of a framed one."""
    return sum(map(len, form)) if isinstance(form, list) else len(form)


def form_type(form: Form) -> int:
    """The message type of a plain or framed message: the third byte of its PROTO."""
    return form[-18] if isinstance(form, bytes) else form[-1][2]


def group_end(forms: Sequence[Form], start: int) -> int:
    """One past the forms that travel in one ZeroMQ message together with ``forms[start]``."""
    rest = forms[start : start + BATCH_MSGS]
    if set(map(type, rest)) == _FRAMED and sum(map(len, rest)) <= BATCH_BYTES:  # as nearly always
        return start + len(rest)
    if not isinstance(forms[start], bytes):
        return start + 1
    stop, size = start, 0
    for form in rest:
        size += len(form)
        if not isinstance(form, bytes) or (size > BATCH_BYTES and stop > start):
            break
        stop += 1
    return stop


def data_of(frames: Sequence[zmq.Frame]) -> list[Part]:
    """The parts of a received message; a large payload, which stands before the last one, is not copied."""
    at = len(frames) - 2
    if at < 0 or len(frames[at]) <= ALONE_BYTES:
        return [frame.bytes for frame in frames]
    return [*(frame.bytes for frame in frames[:at]), frames[at].buffer, frames[-1].bytes]


def is_framed(part: Part) -> bool:
    """Whether the only part of a received message begins a framed one, and is a batch."""
    return part[:4] in (MAGIC_DEPLOYED, MAGIC_TEXT)
