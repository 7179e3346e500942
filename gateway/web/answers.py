"""HTTP answers: what stands on every one, payloads, JSON, and errors as problem bodies.

::

    JSON payload (RFC 3, with its NUL)   -> application/json
    string payload (with its NUL)        -> text/plain
    any other payload                    -> application/octet-stream
    no payload                           -> 204, no body

A line of a stream says the same in JSON: exactly one of ``payload``, ``text``, ``data`` (base64). A problem body (RFC
9457) carries what a Flux client would know, errno and text::

    {"type": "about:blank", "title": "Forbidden", "status": 403,
     "errno": 1, "name": "EPERM", "text": "calling job-manager.* needs the role user", "topic": "job-manager.submit"}
"""

from __future__ import annotations

import base64
import errno
import math
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from broker.errors import HeadgateError
from broker.wire.message import Message
from broker.wire.payload import any_text, is_json_object
from gateway.principal import Denied
from gateway.sessions.session import SERVER

JSON: Final = "application/json"
TEXT: Final = "text/plain"
BYTES: Final = "application/octet-stream"
PROBLEM: Final = "application/problem+json"

SECURITY: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; connect-src 'self'; img-src 'self' data:; object-src 'none'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""On every answer; the dashboard has no inline script and asks no other site for anything."""

STREAMED: Final = {"X-Accel-Buffering": "no"}
"""On every answer that has no end yet: nginx, too, passes on what there is at once."""

ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
"""Payloads are passed on as they came, and JSON may have line ends between its tokens, where a space means the same."""

STATUS: Final[dict[int, int]] = {
    errno.EPERM: 403,
    errno.EACCES: 403,
    errno.ENOSYS: 404,
    errno.ENOENT: 404,
    errno.EINVAL: 400,
    errno.EPROTO: 400,
    errno.EMSGSIZE: 413,
    errno.EAGAIN: 429,
    errno.EBUSY: 429,
    errno.EHOSTUNREACH: 503,
    errno.ECONNRESET: 503,
    errno.ESHUTDOWN: 503,
    errno.ETIMEDOUT: 504,
}
"""Error number of a response -> status; every other one is 502: the service behind us failed."""

ERRNUM: Final[dict[int, int]] = {
    401: errno.EPERM,
    403: errno.EPERM,
    408: errno.ETIMEDOUT,
    413: errno.EMSGSIZE,
    429: errno.EAGAIN,
    503: errno.EAGAIN,
    504: errno.ETIMEDOUT,
}
"""Status -> error number of an answer that names none; for every other one EINVAL."""

WEBSOCKET_VERSION: Final = "13"
"""The one version of WebSockets (RFC 6455, section 4.1)."""
RETRY_S: Final = 1
"""What ``Retry-After`` says when the error brings no hint of its own."""


def secure(response: web.StreamResponse) -> None:
    """Add our name, and what browsers, and caches on the way, must not do with the answer."""
    response.headers["Server"] = SERVER
    # RFC 9111, section 5.2.2.5: it is one user's; files of the dashboard, which are everybody's, say otherwise
    response.headers.setdefault("Cache-Control", "no-store")
    for name, value in SECURITY.items():
        response.headers.setdefault(name, value)


# ---------------------------------------------------------------- what was asked for


def json_answer(obj: object, status: int = 200) -> web.Response:
    """An object as JSON."""
    return web.Response(status=status, body=msgspec.json.encode(obj), content_type=JSON)


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


def of_payload(payload: bytes | None) -> web.Response:
    """The payload as a response: 200 with the content type it has, or 204."""
    form = form_of(payload)
    if not form:
        return web.Response(status=204)
    if "payload" in form:
        return web.Response(body=bytes(form["payload"]), content_type=JSON)
    if "text" in form:
        return web.Response(text=form["text"], content_type=TEXT)
    return web.Response(body=payload, content_type=BYTES)


# ---------------------------------------------------------------- errors


class Refusal(Exception):
    """A request that ends with an error; ``answer`` makes the HTTP response of it.

    Args:
        status: of the answer.
        text: why, for the client.
        errnum: for clients that know Flux; None: as `ERRNUM` says.
        topic: what was asked for; "" where that is not known.
        retry_s: seconds after which the client may come again; None: as `RETRY_S` says, where it may at all.
    """

    def __init__(
        self,
        status: int,
        text: str,
        errnum: int | None = None,
        *,
        topic: str = "",
        retry_s: float | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.errnum = ERRNUM.get(status, errno.EINVAL) if errnum is None else errnum
        self.text = text
        self.topic = topic
        self.retry_s = retry_s

    def answer(self) -> web.Response:
        """The HTTP response."""
        return problem(self.status, self.text, self.errnum, topic=self.topic, retry_s=self.retry_s)


def problem(
    status: int, text: str, errnum: int = errno.EINVAL, *, topic: str = "", retry_s: float | None = None
) -> web.Response:
    """An error answer; 401 names the ways to come in, 426 what is spoken, 429 and 503 say when to try again."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        **described(errnum, text),
    }
    if topic:
        body["topic"] = topic
    headers = {}
    if status == 401:  # a 401 must say how to authenticate (RFC 9110, section 15.5.2)
        headers["WWW-Authenticate"] = 'Bearer realm="headgate"'
    # a 426 must say to what (RFC 9110, section 15.5.22), and to which version of it (RFC 6455, section 4.2.2)
    if status == 426:
        headers |= {"Upgrade": "websocket", "Sec-WebSocket-Version": WEBSOCKET_VERSION}
    if status in (429, 503):  # in whole seconds (RFC 9110, section 10.2.3); 0 would have clients come at once
        headers["Retry-After"] = str(max(1, math.ceil(retry_s if retry_s is not None else RETRY_S)))
    return web.Response(status=status, body=msgspec.json.encode(body), content_type=PROBLEM, headers=headers)


def of_http(error: web.HTTPException) -> web.Response:
    """An error that aiohttp raises itself (404, 405, 417) as a problem body."""
    answer = problem(error.status, error.reason, errno.ENOENT if error.status == 404 else errno.EINVAL)
    if "Allow" in error.headers:  # a 405 must have it (RFC 9110, section 15.5.6)
        answer.headers["Allow"] = error.headers["Allow"]
    return answer


def described(errnum: int, text: str) -> dict[str, Any]:
    """Error number, its name and the text, as problem bodies and the last line of a stream carry them."""
    return {"errno": errnum, "name": errno.errorcode.get(errnum, str(errnum)), "text": text}


def of_response(message: Message, topic: str) -> Refusal:
    """The refusal that a response with an error number means."""
    errnum = message.errnum
    text = any_text(message.payload) or errno.errorcode.get(errnum, "") or f"error {errnum}"
    return Refusal(STATUS.get(errnum, 502), text, errnum, topic=topic)


def of_error(error: HeadgateError) -> Refusal:
    """The refusal that an error of ours means, whose text is for whoever asked."""
    return Refusal(STATUS.get(error.errno, 502), str(error), error.errno)


def of_denied(denied: Denied) -> Refusal:
    """The refusal that a denied credential or act means: only what the client may know."""
    return Refusal(denied.status, denied.public, denied.errno)
