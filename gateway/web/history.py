"""``GET /v1/history/...``: what the pipeline made of the journal, for roles that ``history.roles`` names.

``GET /v1/history`` alone answers every user: whether there is a history and whether it is for this user, so that a page
need not be refused to find out.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

from gateway.history.files import Absent
from gateway.history.reader import LIMIT, Busy, Question, TooWide
from gateway.history.traffic import BYS
from gateway.web import bodies
from gateway.web.app_context import FRONT, PRINCIPAL
from gateway.web.errors import Refusal
from gateway.web.rpc import take_rate

LIMIT_MAX: Final = 500
"""Rows of a table that one answer holds."""
RANK_MAX: Final = 2**32 - 3


async def about(request: web.Request) -> web.Response:
    """Whether there is a history, for whom, and what to do where there is none."""
    front = request.app[FRONT]
    take_rate(request)
    section = front.settings.history
    allowed = _allowed(request)
    said: dict[str, Any] = {"allowed": allowed, "roles": section.roles, "max_days": section.max_days}
    if allowed:
        try:
            why = await front.history.missing()
        except Busy as busy:
            raise Refusal(429, str(busy), busy.errno) from None
        said |= {"there": not why, "text": why}
    return web.Response(body=msgspec.json.encode(said), content_type=bodies.JSON)


def asked(name: str, *more: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    """What answers the question ``name``; ``more`` are parameters that only some questions have."""

    async def handle(request: web.Request) -> web.Response:
        front = request.app[FRONT]
        take_rate(request)
        if not _allowed(request):
            roles = " or ".join(front.settings.history.roles)
            raise Refusal(403, f"reading the history needs the role {roles}", errno.EPERM)
        question = Question(
            name,
            _number(request, "since"),
            _number(request, "until"),
            request.query.get("service"),
            _whole(request, "rank", 0, RANK_MAX),
            tuple((each, _MORE[each](request)) for each in more),
        )
        try:
            found = await front.history.ask(question)
        except Absent as absent:
            status = 503 if absent.errno == errno.ESHUTDOWN else 404
            raise Refusal(status, str(absent), absent.errno) from None
        except TooWide as wide:
            raise Refusal(400, str(wide), wide.errno) from None
        except Busy as busy:
            raise Refusal(429, str(busy), busy.errno) from None
        return web.Response(body=found, content_type=bodies.JSON)

    return handle


def _allowed(request: web.Request) -> bool:
    return bool(set(request[PRINCIPAL].role_names) & set(request.app[FRONT].settings.history.roles))


# ---------------------------------------------------------------- parameters


def _number(request: web.Request, name: str) -> float | None:
    """A time in seconds since 1970; whether it makes sense is told by the history."""
    text = request.query.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < 1e12:
        raise Refusal(400, f"{name}: saw {text[:32]!r}, expected seconds since 1970")
    return value


def _whole(request: web.Request, name: str, low: int, high: int, default: int | None = None) -> int | None:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and low <= int(text) <= high):
        raise Refusal(400, f"{name}: saw {text[:32]!r}, expected a whole number from {low} to {high}")
    return int(text)


def _by(request: web.Request) -> str:
    value = request.query.get("by", BYS[0])
    if value not in BYS:
        raise Refusal(400, f"by: saw {value[:32]!r}, expected one of {', '.join(BYS)}")
    return value


def _limit(request: web.Request) -> int | None:
    return _whole(request, "limit", 1, LIMIT_MAX, LIMIT)


_MORE: Final[dict[str, Callable[[web.Request], Any]]] = {"by": _by, "limit": _limit}
