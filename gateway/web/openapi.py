"""``/openapi.json``: the route table as an OpenAPI 3.1 document, so that the two cannot drift apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from broker import __version__
from gateway.web.app_context import FRONT

if TYPE_CHECKING:
    from gateway.web.routes import Parameter, Route

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "errno", "name", "text"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "errno": {"type": "integer", "description": "POSIX error number"},
        "name": {"type": "string", "description": "its name, like EPERM"},
        "text": {"type": "string"},
        "topic": {"type": "string"},
    },
}
_PAYLOAD: dict[str, dict[str, Any]] = {
    "application/json": {"type": "object"},
    "text/plain": {"type": "string"},
    "application/octet-stream": {},
}


async def serve(request: web.Request) -> web.Response:
    """Answer with the document."""
    from gateway.web.routes import ROUTES  # late: the table names this handler

    found = document(ROUTES)
    if prefix := request.app[FRONT].settings.gateway.prefix:
        found["servers"] = [{"url": prefix}]
    return web.Response(body=msgspec.json.encode(found), content_type="application/json")


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI document of ``routes``."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if not route.wire:
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headgate gateway",
            "version": __version__,
            "description": "Flux messages over HTTP. The WebSocket at /v1/ws is described in PROTOCOL.md.",
        },
        "security": [{"bearer": []}, {"cookie": []}, {"certificate": []}],
        "paths": paths,
        "components": {
            "schemas": {"Problem": _PROBLEM},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": "headgate"},
                "certificate": {"type": "mutualTLS"},
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": route.text,
        "operationId": _name(route),
        "responses": {
            str(status): _response(text, media) for status, (text, media) in sorted(route.answers.items())
        },
    }
    if route.parameters:
        described["parameters"] = [_parameter(each) for each in route.parameters]
    if route.body:
        content = {media: {"schema": route.body_schema or _PAYLOAD[media]} for media in route.body}
        described["requestBody"] = {"required": route.body_schema is not None, "content": content}
    if route.public:
        described["security"] = []
    return described


def _name(route: Route) -> str:
    words = [
        word for word in route.path.replace(".", "/").split("/") if word and word != "v1" and "{" not in word
    ]
    return "_".join([route.method.lower(), *words])


def _parameter(parameter: Parameter) -> dict[str, Any]:
    schema = (
        {"type": "array", "items": parameter.schema, "maxItems": 64} if parameter.many else parameter.schema
    )
    return {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.text,
        "required": parameter.place == "path",
        "schema": schema,
    }


def _response(text: str, media: tuple[str, ...]) -> dict[str, Any]:
    if not media:
        return {"description": text}
    return {"description": text, "content": {each: {"schema": _schema(each)} for each in media}}


def _schema(media: str) -> dict[str, Any]:
    if media == "application/problem+json":
        return {"$ref": "#/components/schemas/Problem"}
    return _PAYLOAD.get(media, {"type": "string"})
