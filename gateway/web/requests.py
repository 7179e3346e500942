"""What an HTTP request says: the topic in its path, the parameters in its query, the payload in its body.

::

    application/json           one JSON object   -> a JSON payload (RFC 3, with its NUL)
    text/plain                 UTF-8 text        -> a string payload (with its NUL)
    application/octet-stream   any bytes         -> the payload as it is
    (no body)                                    -> no payload
"""

from __future__ import annotations

import asyncio
import errno
import math
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web

from broker.errors import ProtocolError
from broker.wire.payload import encode_text, is_json_object
from gateway.web.answers import BYTES, JSON, TEXT, Refusal

BODY_S: Final = 30.0
"""How long a whole request body may take."""
TOPIC_BYTES: Final = 255
"""Longest topic: what deployed brokers have room for."""
RANK_MAX: Final = 2**32 - 3
FLAG: Final = ("0", "1")
"""The words of a parameter that is off or on; without it, it is off."""
WHOLE_CHARS: Final = 10
"""Longest number that is read: a rank has no more digits."""


def topic_of(request: web.Request) -> str:
    """The topic in the path.

    Raises:
        Refusal: 400, it is none.
    """
    topic = request.match_info["topic"]
    if not topic or "\0" in topic or len(topic.encode("utf-8", "surrogatepass")) > TOPIC_BYTES:
        raise Refusal(400, f"expected a topic of 1 to {TOPIC_BYTES} bytes without NUL", errno.EPROTO)
    return topic


# ---------------------------------------------------------------- the query


def choice(request: web.Request, name: str, allowed: Sequence[str]) -> str | None:
    """A parameter that is one of several words; None where the request does not have it.

    Raises:
        Refusal: 400, it is something else.
    """
    text = request.query.get(name)
    if text is not None and text not in allowed:
        raise _unexpected(name, text, " or ".join(allowed))
    return text


def overflow_of(request: web.Request) -> str | None:
    """What is to happen to events that come faster than the client reads; None: as the settings say.

    Raises:
        Refusal: 400, something that nobody does.
    """
    return choice(request, "overflow", ("disconnect", "drop"))


def whole(request: web.Request, name: str, low: int, high: int) -> int | None:
    """A parameter that is a whole number; None where the request does not have it.

    Raises:
        Refusal: 400, it is none from ``low`` to ``high``.
    """
    text = request.query.get(name)
    if text is None:
        return None
    # isdigit alone lets digits of other alphabets pass, and int() reads them
    if not (text.isascii() and text.isdigit() and len(text) <= WHOLE_CHARS and low <= int(text) <= high):
        raise _unexpected(name, text, f"a whole number from {low} to {high}")
    return int(text)


def seconds(
    request: web.Request, name: str, is_allowed: Callable[[float], bool], expected: str
) -> float | None:
    """A parameter that is a number of seconds; None where the request does not have it.

    Raises:
        Refusal: 400, it is no number, or one that is not allowed, and so was not ``expected``.
    """
    text = request.query.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan  # which no comparison allows
    if not is_allowed(value):
        raise _unexpected(name, text, expected)
    return value


def _unexpected(name: str, text: str, expected: str) -> Refusal:
    return Refusal(400, f"{name}: saw {text[:32]!r}, expected {expected}")


# ---------------------------------------------------------------- the body


async def payload_of(
    request: web.Request, max_bytes: int, setting: str = "limits.message_bytes"
) -> bytes | None:
    """The payload that the body of ``request`` stands for; ``setting`` says how many bytes it may have.

    Raises:
        Refusal: 400 not what its content type says, 408 too slow, 413 larger than ``max_bytes``, 415 another type.
    """
    body = await _read(request, max_bytes, setting)
    if not body:
        return None
    kind = request.content_type
    if kind == BYTES:
        return body
    try:
        if kind == TEXT:
            return encode_text(body.decode())
        if kind == JSON:
            text = body.strip()
            if not is_json_object(text + b"\0"):
                raise ProtocolError("expected one JSON object in UTF-8 without NUL")
            return text + b"\0"
    except (UnicodeDecodeError, ProtocolError) as error:
        raise Refusal(400, f"the body is no {kind}: {error}", errno.EPROTO) from None
    raise Refusal(415, f"saw content type {kind!r}, expected {JSON}, {TEXT} or {BYTES}", errno.EPROTO)


async def _read(request: web.Request, max_bytes: int, setting: str) -> bytes:
    too_large = f"the body is larger than {max_bytes} bytes ({setting})"
    if (request.content_length or 0) > max_bytes:
        raise Refusal(413, too_large)
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.content.iter_any():
                found += chunk
                if len(found) > max_bytes:  # chunked bodies do not say their length before
                    raise Refusal(413, too_large)
    except TimeoutError:
        raise Refusal(408, f"the body took longer than {BODY_S:g} s") from None
    except (web.RequestPayloadError, ValueError) as error:
        raise Refusal(400, f"the body cannot be read: {error}", errno.EPROTO) from None
    return bytes(found)
