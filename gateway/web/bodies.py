"""Payloads as HTTP bodies and back.

::

    application/json           one JSON object          <-> a JSON payload (RFC 3, with its NUL)
    text/plain                 UTF-8 text               <-> a string payload (with its NUL)
    application/octet-stream   any bytes                <-> the payload as it is
    (no body)                                           <-> no payload

A line of a stream says the same in JSON: exactly one of ``payload``, ``text``, ``data`` (base64).
"""

from __future__ import annotations

import asyncio
import base64
import errno
from typing import Any, Final

import msgspec
from aiohttp import web

from broker.errors import ProtocolError
from broker.wire.payload import encode_text, is_json_object
from gateway.web.errors import Refusal

JSON: Final = "application/json"
TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"
BODY_S: Final = 30.0
"""How long a whole request body may take."""


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
            return _json(body)
    except (UnicodeDecodeError, ProtocolError) as error:
        raise Refusal(400, f"the body is no {kind}: {error}", errno.EPROTO) from None
    raise Refusal(415, f"saw content type {kind!r}, expected {JSON}, {TEXT} or {BYTES}", errno.EPROTO)


async def _read(request: web.Request, max_bytes: int, setting: str) -> bytes:
    if (request.content_length or 0) > max_bytes:
        raise _too_large(max_bytes, setting)
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.content.iter_any():
                found += chunk
                if len(found) > max_bytes:
                    raise _too_large(max_bytes, setting)
    except TimeoutError:
        raise Refusal(408, f"the body took longer than {BODY_S:g} s", errno.ETIMEDOUT) from None
    except (web.RequestPayloadError, ValueError) as error:
        raise Refusal(400, f"the body cannot be read: {error}", errno.EPROTO) from None
    return bytes(found)


def _too_large(max_bytes: int, setting: str) -> Refusal:
    return Refusal(413, f"the body is larger than {max_bytes} bytes ({setting})", errno.EMSGSIZE)


def _json(body: bytes) -> bytes:
    text = body.strip()
    if not is_json_object(text + b"\0"):
        raise ProtocolError("expected one JSON object in UTF-8 without NUL")
    return text + b"\0"


def form_of(payload: bytes | None) -> dict[str, Any]:
    """The payload as fields of a JSON object: ``payload``, ``text``, ``data``, or none of them.

    JSON is passed on as it is, not built and written again.
    """
    if payload is None:
        return {}
    if is_json_object(payload):
        return {"payload": msgspec.Raw(payload[:-1])}
    if payload.endswith(b"\0") and payload.find(b"\0") == len(payload) - 1:
        try:
            return {"text": payload[:-1].decode()}
        except UnicodeDecodeError:
            pass  # no text after all: bytes
    return {"data": base64.b64encode(payload).decode()}


def answer(payload: bytes | None) -> web.Response:
    """The payload as a response: 200 with the content type it has, or 204."""
    form = form_of(payload)
    if not form:
        return web.Response(status=204)
    if "payload" in form:
        return web.Response(body=bytes(form["payload"]), content_type=JSON)
    if "text" in form:
        return web.Response(text=form["text"], content_type=TEXT)
    return web.Response(body=payload, content_type=BYTES)
