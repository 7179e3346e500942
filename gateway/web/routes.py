"""Every route, once: the application is built from this table, and so are ``/openapi.json`` (OpenAPI 3.1) and the
queries of ``/asyncapi.json``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from broker import __version__
from gateway.history import reader as history_reader
from gateway.history.scope import LATEST_S
from gateway.history.traffic import BYS
from gateway.web import asyncapi, health, history, login, metrics, rpc, sse
from gateway.web.answers import BYTES, JSON, PROBLEM, TEXT, json_answer
from gateway.web.app_context import FRONT
from gateway.web.requests import FLAG, RANK_MAX, TOPIC_BYTES

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value in the path, the query or a header."""

    name: str
    place: str
    """``path``, ``query`` or ``header``."""
    text: str
    schema: Schema
    many: bool = False
    """May be given several times."""


@dataclass(frozen=True, slots=True)
class Route:
    """One operation.

    Attributes:
        answers: status -> (what it means, media types; none: no body).
        public: needs no credential.
        body: media types of the request body; empty takes none.
        wire: not in OpenAPI (a WebSocket, which is in AsyncAPI; a page).
    """

    method: str
    path: str
    handler: Handler
    text: str
    answers: dict[int, tuple[str, tuple[str, ...]]]
    parameters: tuple[Parameter, ...] = ()
    body: tuple[str, ...] = ()
    body_schema: Schema | None = None
    public: bool = False
    wire: bool = False


async def websocket(request: web.Request) -> web.StreamResponse:
    """Hand the request to the WebSocket endpoint."""
    return await request.app[FRONT].websocket(request)


async def serve_openapi(request: web.Request) -> web.Response:
    """Answer with the document."""
    found = document(ROUTES)
    if prefix := request.app[FRONT].settings.gateway.prefix:
        found["servers"] = [{"url": prefix}]
    return json_answer(found)


async def serve_asyncapi(request: web.Request) -> web.Response:
    """Answer with what goes over the WebSocket and over streams of events."""
    return json_answer(messages(request.app[FRONT].settings.gateway.prefix))


_PAYLOADS: Final = (JSON, TEXT, BYTES)
_TOPIC: Final = Parameter(
    "topic",
    "path",
    "SERVICE.METHOD",
    {"type": "string", "minLength": 1, "maxLength": TOPIC_BYTES, "pattern": r"^[^/\x00]+$"},
)
_EVENT_TOPIC: Final = Parameter("topic", "path", "topic of the event", _TOPIC.schema)
_FLAG: Final[Schema] = {"type": "string", "enum": [*FLAG], "default": FLAG[0]}

_ERRORS: Final[dict[int, str]] = {
    400: "the request is wrong, or the service says so (EINVAL, EPROTO)",
    401: "no credential, or one that is refused",
    403: "the user's roles do not allow it (EPERM), or its page may not ask",
    404: "nobody has this service or method (ENOSYS, ENOENT)",
    408: "the body came too slowly",
    413: "the body is too large",
    415: "a content type that is not understood",
    429: "too many calls or connections (EAGAIN); Retry-After says when to come back",
    502: "the service failed with another error",
    503: "the upstream is away, or the gateway leaves (EHOSTUNREACH, ECONNRESET)",
    504: "no answer in time (ETIMEDOUT)",
}
"""Problem answers; each operation names those it may give."""


def problems(*statuses: int) -> dict[int, tuple[str, tuple[str, ...]]]:
    """Answers with a problem body."""
    return {status: (_ERRORS[status], (PROBLEM,)) for status in statuses}


_HISTORY: Final = (
    Parameter(
        "since",
        "query",
        "begin, seconds since 1970; without it a day before the end",
        {"type": "number", "minimum": 0, "maximum": LATEST_S},
    ),
    Parameter(
        "until",
        "query",
        "end, seconds since 1970, not included; without it the end of the data",
        {"type": "number", "minimum": 0, "maximum": LATEST_S},
    ),
    Parameter("service", "query", "only this service", {"type": "string", "minLength": 1, "maxLength": 255}),
    Parameter("rank", "query", "only this broker", {"type": "integer", "minimum": 0, "maximum": RANK_MAX}),
)
_LIMIT: Final = Parameter(
    "limit",
    "query",
    "rows of each table",
    {"type": "integer", "minimum": 1, "maximum": history.LIMIT_MAX, "default": history_reader.LIMIT},
)
_OVERFLOW: Final = Parameter(
    "overflow",
    "query",
    "what happens when events come faster than they are read",
    {"type": "string", "enum": ["disconnect", "drop"]},
)
_BY: Final = Parameter(
    "by", "query", "what the series are", {"type": "string", "enum": list(BYS), "default": BYS[0]}
)


def _history(name: str, text: str, *parameters: Parameter) -> Route:
    """A question about the history."""
    return Route(
        "GET",
        f"/v1/history/{name}",
        history.asked(name, *(each.name for each in parameters)),
        text,
        {200: ("the answer", (JSON,)), **problems(400, 401, 403, 404, 429, 502, 503)},
        (*_HISTORY, *parameters),
    )


def _both(path: str, handler: Handler, text: str, answers: dict[int, str]) -> tuple[Route, Route]:
    """A public page for GET, and for HEAD, which is what some load balancers ask with."""

    def route(method: str, *media: str) -> Route:
        described = {status: (meaning, media) for status, meaning in answers.items()}
        return Route(method, path, handler, text, described, public=True)

    return route("GET", JSON), route("HEAD")


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST",
        "/v1/rpc/{topic}",
        rpc.call,
        "Call a method of a service. The body is the payload; the answer's body is that of the response.",
        {
            200: ("the response's payload; with stream=1 one JSON object a line", (*_PAYLOADS, rpc.NDJSON)),
            202: ("SERVICE.cancel or SERVICE.disconnect was sent; neither has a response", ()),
            204: ("a response without payload", ()),
            **problems(*_ERRORS),
        },
        (
            _TOPIC,
            Parameter(
                "nodeid",
                "query",
                "rank of the broker; without it the nearest towards rank 0",
                {"type": "integer", "minimum": 0, "maximum": RANK_MAX},
            ),
            Parameter(
                "timeout_s",
                "query",
                "seconds to wait for the first answer; with stream=1 for each next one, too",
                {"type": "number", "exclusiveMinimum": 0, "maximum": 86400},
            ),
            Parameter("stream", "query", "1: many responses, as NDJSON", _FLAG),
        ),
        body=_PAYLOADS,
    ),
    Route(
        "POST",
        "/v1/events/{topic}",
        rpc.publish,
        "Publish an event. The body is its payload.",
        {200: ("its number and the epoch of the numbers", (JSON,)), **problems(*_ERRORS)},
        (
            _EVENT_TOPIC,
            Parameter("private", "query", "1: for the same userid and the owner only", _FLAG),
        ),
        body=_PAYLOADS,
    ),
    Route(
        "GET",
        "/v1/events",
        sse.events,
        "Events as server-sent events, until either side ends.",
        {200: ("a stream without end", (sse.MEDIA_TYPE,)), **problems(400, 401, 403, 429, 502, 503)},
        (
            Parameter(
                "prefix",
                "query",
                "topics that begin so; without it all",
                {"type": "string", "maxLength": 255},
                many=True,
            ),
            _OVERFLOW,
            Parameter(
                "Last-Event-ID",
                "header",
                "EPOCH:SEQUENCE of the last event that was seen",
                {"type": "string"},
            ),
        ),
    ),
    Route(
        "GET",
        "/v1/session",
        login.session,
        "Who am I.",
        {200: ("the user", (JSON,)), **problems(401, 403, 429)},
    ),
    Route(
        "GET",
        "/v1/login",
        login.list_providers,
        "Identity providers that people can log in at.",
        {200: ("their names and titles", (JSON,))},
        public=True,
    ),
    Route(
        "POST",
        "/v1/login",
        login.login,
        "Exchange the secret of a one-time link, or a token, for a cookie.",
        {
            200: ("the user; Set-Cookie holds the login", (JSON,)),
            **problems(400, 401, 403, 408, 413, 415, 429, 503),
        },
        body=(JSON,),
        body_schema={
            "oneOf": [
                {
                    "type": "object",
                    "properties": {name: {"type": "string"}},
                    "required": [name],
                    "additionalProperties": False,
                }
                for name in ("once", "token")
            ]
        },
        public=True,
    ),
    Route(
        "GET",
        "/v1/login/oidc/{name}",
        login.begin,
        "Send the browser to an identity provider.",
        {},
        public=True,
        wire=True,
    ),
    Route(
        "GET",
        "/v1/login/oidc/{name}/callback",
        login.callback,
        "Take the provider's answer, and log in.",
        {},
        public=True,
        wire=True,
    ),
    Route(
        "POST",
        "/v1/logout",
        login.logout,
        "End the login of the cookie, and take the cookie away.",
        {204: ("it has ended", ()), **problems(400, 401, 403, 429, 503)},
        public=True,
    ),
    Route(
        "GET",
        "/v1/history",
        history.about,
        "Whether there is a history, and whether it is for this user.",
        {200: ("so it is", (JSON,)), **problems(401, 403, 429, 503)},
    ),
    _history("summary", "Tables, runs, sums and freshness of the history."),
    _history("traffic", "Messages and bytes over time.", _BY),
    _history("latency", "Percentiles of the time calls took, over time and by topic.", _LIMIT),
    _history("tree", "Where in the tree the time of calls goes.", _LIMIT),
    _history("talkers", "Users, topics and services with most messages.", _LIMIT),
    _history("errors", "What failed, by errno over time, and by topic.", _LIMIT),
    _history("denied", "Messages and links that were refused for want of rights.", _LIMIT),
    _history("order", "Order of deliveries between endpoints, and gaps in the numbers of events.", _LIMIT),
    _history("slow", "What slow readers lost.", _LIMIT),
    _history("jobs", "Jobs of NFP.", _LIMIT),
    _history("notifications", "Notifications of oslo.messaging.", _LIMIT),
    *_both(
        "/livez", health.livez, "Whether this process lives; the upstream does not matter.", {200: "it does"}
    ),
    *_both("/healthz", health.livez, "The same as /livez.", {200: "it does"}),
    *_both(
        "/readyz",
        health.readyz,
        "Whether clients are welcome: the upstream is joined and the gateway stays.",
        {200: "they are", 503: "they are not; owners and admins find the reason in the body"},
    ),
    Route(
        "GET",
        "/metrics",
        metrics.metrics,
        "Counts of all worker processes for Prometheus.",
        {200: ("Prometheus text", (TEXT,)), **problems(401, 403, 429)},
    ),
    Route(
        "GET",
        "/openapi.json",
        serve_openapi,
        "This document.",
        {200: ("OpenAPI 3.1", (JSON,))},
        public=True,
    ),
    Route(
        "GET",
        "/asyncapi.json",
        serve_asyncapi,
        "The messages of /v1/ws and of /v1/events.",
        {200: ("AsyncAPI 3.0", (JSON,))},
        public=True,
    ),
    Route(
        "GET",
        "/v1/ws",
        websocket,
        "Flux messages over a WebSocket (PROTOCOL.md).",
        {},
        (
            _OVERFLOW,
            Parameter(
                "auth",
                "query",
                "message: only an object `auth` counts as credential",
                {"type": "string", "const": "message"},
            ),
        ),
        public=True,
        wire=True,
    ),
)


# ---------------------------------------------------------------- OpenAPI

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
_PAYLOAD: dict[str, dict[str, Any]] = {JSON: {"type": "object"}, TEXT: {"type": "string"}, BYTES: {}}


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
            "description": "Flux messages over HTTP. /asyncapi.json has the messages of /v1/ws and of /v1/events.",
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


def messages(prefix: str = "") -> dict[str, Any]:
    """The AsyncAPI document; ``prefix`` stands before all paths."""
    return asyncapi.document(_query("/v1/ws"), _query("/v1/events"), prefix)


def _query(path: str) -> Schema:
    (route,) = (each for each in ROUTES if (each.method, each.path) == ("GET", path))
    described = {
        each.name: _parameter(each)["schema"] | {"description": each.text}
        for each in route.parameters
        if each.place == "query"
    }
    return {"type": "object", "properties": described}


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
    if media == PROBLEM:
        return {"$ref": "#/components/schemas/Problem"}
    return _PAYLOAD.get(media, {"type": "string"})
