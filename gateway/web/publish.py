"""``POST /v1/events/{topic}``: publish one event; its body is the payload.

Answers with the number rank 0 gave it, once the event is delivered: what is asked next comes after it.
"""

from __future__ import annotations

import base64
import errno

import msgspec
from aiohttp import web

from broker.errors import ProtocolError
from broker.wire import message as wire
from broker.wire.payload import decode_json, encode_json
from gateway.web import bodies
from gateway.web.app_context import FRONT
from gateway.web.errors import Refusal
from gateway.web.rpc import ask, flag, take_rate, topic_of


async def publish(request: web.Request) -> web.StreamResponse:
    """Handle one event."""
    front = request.app[FRONT]
    topic = topic_of(request)
    take_rate(request, topic)
    content: dict[str, object] = {"topic": topic, "flags": wire.PRIVATE if flag(request, "private") else 0}
    payload = await bodies.payload_of(request, front.settings.limits.message_bytes)
    if payload is not None:
        content["payload"] = base64.b64encode(payload).decode()
    message = wire.request("event.publish", encode_json(content), nodeid=0)
    answer = await ask(request, message, front.settings.limits.call_s or None)
    try:
        number = int(decode_json(answer.payload)["seq"])
    except (ProtocolError, KeyError, TypeError, ValueError):
        raise Refusal(502, "event.publish answered without a number", errno.EPROTO, topic=topic) from None
    said = {"sequence": number, "epoch": front.upstream.epoch}
    return web.Response(body=msgspec.json.encode(said), content_type=bodies.JSON)
