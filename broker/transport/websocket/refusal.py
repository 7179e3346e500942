"""HTTP answers and close codes of a gateway, as errors of ours."""

from __future__ import annotations

import errno
from typing import Final

from broker.errors import LinkError, LinkRefused
from broker.nesting import read_json
from broker.rfc6455 import reconnects

BY_STATUS: Final = {
    400: errno.EPROTO,
    401: errno.EACCES,
    403: errno.EPERM,
    404: errno.ENOENT,
    426: errno.EPROTONOSUPPORT,
    429: errno.EAGAIN,
    503: errno.EAGAIN,
}
"""Status of a refused upgrade -> errno, where the body names none; every other one is ECONNREFUSED."""

BY_CODE: Final = {
    1002: errno.EPROTO,
    1003: errno.EPROTO,
    1007: errno.EPROTO,
    1009: errno.EMSGSIZE,
    4000: errno.ESHUTDOWN,
    4002: errno.ENOBUFS,
    4003: errno.ETIMEDOUT,
    4004: errno.EKEYEXPIRED,
    4005: errno.EAGAIN,
    4500: errno.EACCES,
    4501: errno.EPERM,
    4502: errno.ETIMEDOUT,
    4503: errno.EPROTO,
    4504: errno.EUSERS,
    4506: errno.EKEYREVOKED,
    4507: errno.EAGAIN,
}
"""Close code (gateway/PROTOCOL.md) -> errno; every other one is ECONNRESET."""

LATER: Final = frozenset({408, 425, 429})
"""Statuses from 400 to 499 after which another attempt may end otherwise."""
_TEXT_CHARS: Final = 500


def of_status(address: str, status: int, body: bytes, phrase: str = "") -> LinkRefused:
    """The error that a refused upgrade means: the errno and text of its problem body, its plain text, or ``phrase``."""
    errnum, text = _problem(body)
    known = BY_STATUS.get(status, errno.ECONNREFUSED)
    error = LinkRefused(f"{address} refused the connection: {status} {text or phrase}", errnum or known)
    error.final = 400 <= status < 500 and status not in LATER
    return error


def _problem(body: bytes) -> tuple[int, str]:
    try:
        said = read_json(body)
    except ValueError:
        return 0, body.decode("utf-8", "replace").strip()[:_TEXT_CHARS]
    if not isinstance(said, dict):
        return 0, ""
    errnum, text = said.get("errno"), said.get("text") or said.get("error")
    return (errnum if isinstance(errnum, int) else 0), (text[:_TEXT_CHARS] if isinstance(text, str) else "")


def of_close(kind: type[LinkError], address: str, code: int, reason: str) -> LinkError:
    """The end that a close frame means; ``reason`` is for people, what the gateway said before or that of the frame."""
    text = f"{address} closed the connection: {reason or 'no reason given'} (close code {code})"
    error = kind(text, BY_CODE.get(code, errno.ECONNRESET))
    error.final = not reconnects(code)
    return error
