"""Many messages in one ZeroMQ message, or one in many.

A batch is a ZeroMQ message with one part (behind the identity that ROUTER adds) that holds a piece of a stream of
framed messages: whole ones back to back, or, of a large one, as much as is sealed at a time; then the rest comes next.
It cannot be mistaken: a framed message begins with its magic, and the only other message of one part is a bare PROTO of
20 bytes, which begins with 0x8E. CURVE boxes each part by itself, so a batch is an order
of magnitude cheaper than plain multi-part. Only Headgate peers that agreed on it ("batch": 2 in hello) get batches.

Messages wait in an outbox in the *form* in which they are sent: ``bytes`` is a framed message for a batch, a list is
the parts of a plain one.
"""

# compiled: mypyc

from __future__ import annotations

from typing import Final

from broker.wire.message import MAGIC_DEPLOYED, MAGIC_TEXT, Message
from broker.wire.parts import part_data

ALONE_BYTES: Final = 64 << 10
"""A payload beyond it is not copied where its message travels in parts; a request beyond it is a large one."""

Part = bytes | memoryview
Form = bytes | list[Part]


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


def is_framed(part: Part) -> bool:
    """Whether the only part of a received message begins a framed one, and is a batch."""
    return part[:4] in (MAGIC_DEPLOYED, MAGIC_TEXT)
