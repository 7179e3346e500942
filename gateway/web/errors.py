"""Errors as HTTP answers: a problem body (RFC 9457) that carries what a Flux client would know, errno and text.

::

    {"type": "about:blank", "title": "Forbidden", "status": 403,
     "errno": 1, "name": "EPERM", "text": "calling job-manager.* needs the role user", "topic": "job-manager.submit"}
"""

from __future__ import annotations

import errno
import math
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from broker.wire.message import Message
from broker.wire.payload import any_text
from gateway.principal import Denied

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

RETRY_S: Final = 1
"""What ``Retry-After`` says when the error brings no hint of its own."""
MEDIA_TYPE: Final = "application/problem+json"


class Refusal(Exception):
    """A request that ends with an error; ``answer`` makes the HTTP response of it."""

    def __init__(
        self,
        status: int,
        text: str,
        errnum: int = errno.EINVAL,
        *,
        topic: str = "",
        retry_s: float | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.errnum = errnum
        self.text = text
        self.topic = topic
        self.retry_s = retry_s

    def answer(self) -> web.Response:
        """The HTTP response."""
        return problem(self.status, self.text, self.errnum, topic=self.topic, retry_s=self.retry_s)


def problem(
    status: int, text: str, errnum: int = errno.EINVAL, *, topic: str = "", retry_s: float | None = None
) -> web.Response:
    """An error answer; 401 names the ways to come in, 429 and 503 say when to try again."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        **described(errnum, text),
    }
    if topic:
        body["topic"] = topic
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="headgate"'
    if status in (429, 503):
        headers["Retry-After"] = str(max(1, math.ceil(retry_s if retry_s is not None else RETRY_S)))
    return web.Response(
        status=status, body=msgspec.json.encode(body), content_type=MEDIA_TYPE, headers=headers
    )


def of_http(error: web.HTTPException) -> web.Response:
    """An error that aiohttp raises itself (404, 405, 417) as a problem body."""
    answer = problem(error.status, error.reason, errno.ENOENT if error.status == 404 else errno.EINVAL)
    if "Allow" in error.headers:
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


def of_denied(denied: Denied) -> Refusal:
    """The refusal that a denied credential or act means: only what the client may know."""
    return Refusal(denied.status, denied.public, denied.errno)
