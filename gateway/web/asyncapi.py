"""``/asyncapi.json`` (AsyncAPI 3.0): what goes over ``/v1/ws`` as ``flux.v1.json``, and over ``/v1/events``.

The messages are those that the codecs read and the sessions say: their types are where the schemas come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec

from broker import __version__
from gateway.codecs import control, jsonview
from gateway.notices import Notice

_FLUX: Final = (jsonview.Request, jsonview.Response, jsonview.Event)
_SAID: Final = {kind.__struct_config__.tag: kind for kind in (*_FLUX, *get_args(control.ClientControl))}
_TOLD: Final = {kind.__name__.lower(): kind for kind in get_args(Notice)}
_ONLY_SESSIONS: Final = ("refreshed", "denied", "service", "pong")
"""Answers to what the reader of a stream cannot say."""
FROM_CLIENTS: Final = tuple(_SAID)
TO_SESSIONS: Final = ("request", "response", "event", *_TOLD)
TO_STREAMS: Final = ("event", *(name for name in _TOLD if name not in _ONLY_SESSIONS))
_SCHEMES: Final = ("bearer", "cookie", "certificate")


def document(sockets: Mapping[str, Any], streams: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The document.

    Args:
        sockets: JSON schema of the query of ``/v1/ws``.
        streams: the same of ``/v1/events``.
        prefix: of all paths (``gateway.prefix``).
    """
    types: dict[str, Any] = _SAID | _TOLD
    kinds, schemas = msgspec.json.schema_components(
        types.values(), ref_template="#/components/schemas/{name}"
    )
    for flux in _FLUX:
        schemas[flux.__name__]["properties"]["payload"] = {"type": "object"}
    security = [{"$ref": f"#/components/securitySchemes/{name}"} for name in _SCHEMES]
    messages = {name: _message(name, kind) for name, kind in zip(types, kinds, strict=True)}
    position = {"type": "string", "description": "EPOCH:SEQUENCE: what Last-Event-ID brings back"}
    for name in TO_STREAMS:
        field = {"type": "string", "const": "message" if name == "event" else name}
        messages[f"{name}-line"] = messages[name] | {
            "headers": {
                "type": "object",
                "required": ["event"],
                "properties": {"event": field, "id": position},
            }
        }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Headgate gateway",
            "version": __version__,
            "description": "Flux messages over a WebSocket and as server-sent events. gateway/PROTOCOL.md says"
            " what follows what, and has the binary subprotocols; /openapi.json has the calls over HTTP.",
        },
        "defaultContentType": "application/json",
        "channels": {
            "session": {
                "address": f"{prefix}/v1/ws",
                "description": "Subprotocol flux.v1.json: each WebSocket message is one object, or an array of"
                " them. With flux.v1 the objects beside messages are the same.",
                "messages": _in_components(dict.fromkeys((*FROM_CLIENTS, *TO_SESSIONS))),
                "bindings": {"ws": {"method": "GET", "query": sockets, "bindingVersion": "0.1.0"}},
            },
            "events": {
                "address": f"{prefix}/v1/events",
                "description": "Server-sent events: a message's headers are the fields before its data.",
                "messages": _in_components({name: f"{name}-line" for name in TO_STREAMS}),
            },
        },
        "operations": {
            "hear": _operation("receive", "session", FROM_CLIENTS, security, "What clients say."),
            "tell": _operation("send", "session", TO_SESSIONS, security, "What they are told."),
            "stream": {
                **_operation("send", "events", TO_STREAMS, security, "Events, until either side ends."),
                "bindings": {"http": {"method": "GET", "query": streams, "bindingVersion": "0.3.0"}},
            },
        },
        "components": {
            "messages": messages,
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "httpApiKey", "in": "cookie", "name": "headgate"},
                "certificate": {"type": "X509"},
            },
        },
    }


def _message(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "contentType": "application/json", "payload": schema}


def _in_components(messages: Mapping[str, str | None]) -> dict[str, Any]:
    """Name in the channel -> where it is described: under the same name unless another one is given."""
    return {name: {"$ref": f"#/components/messages/{there or name}"} for name, there in messages.items()}


def _operation(
    action: str, channel: str, names: tuple[str, ...], security: list[dict[str, str]], summary: str
) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
        "security": security,
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in names],
    }
