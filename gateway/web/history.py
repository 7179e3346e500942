"""``GET /v1/history/...``: what the pipeline made of the journal, for roles that ``history.roles`` names.

``GET /v1/history`` alone answers every user: whether there is a history and whether it is for this user, so that a page
need not be refused to find out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from gateway.history.files import Absent
from gateway.history.reader import LIMIT, Busy, Question, TooWide
from gateway.history.traffic import BYS
from gateway.web.answers import JSON, Refusal, json_answer, of_error
from gateway.web.app_context import CALLER, FRONT
from gateway.web.requests import RANK_MAX, choice, seconds, whole
from gateway.web.rpc import take_rate

LIMIT_MAX: Final = 500
"""Rows of a table that one answer holds."""


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
            raise of_error(busy) from None
        said |= {"there": not why, "text": why}
    return json_answer(said)


def asked(name: str, *more: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    """What answers the question ``name``; ``more`` are parameters that only some questions have."""

    async def handle(request: web.Request) -> web.Response:
        front = request.app[FRONT]
        take_rate(request)
        if not _allowed(request):
            roles = " or ".join(front.settings.history.roles)
            raise Refusal(403, f"reading the history needs the role {roles}")
        question = Question(
            name,
            _moment(request, "since"),
            _moment(request, "until"),
            request.query.get("service"),
            whole(request, "rank", 0, RANK_MAX),
            tuple((each, _MORE[each](request)) for each in more),
        )
        try:
            found = await front.history.ask(question)
        except (Absent, TooWide, Busy) as error:
            raise of_error(error) from None
        return web.Response(body=found, content_type=JSON)

    return handle


def _allowed(request: web.Request) -> bool:
    return bool(set(request[CALLER].principal.role_names) & set(request.app[FRONT].settings.history.roles))


# ---------------------------------------------------------------- parameters


def _moment(request: web.Request, name: str) -> float | None:
    """A time in seconds since 1970; whether it makes sense is told by the history."""
    return seconds(request, name, lambda value: 0 <= value < 1e12, "seconds since 1970")


_MORE: Final[dict[str, Callable[[web.Request], Any]]] = {
    "by": lambda request: choice(request, "by", BYS) or BYS[0],
    "limit": lambda request: whole(request, "limit", 1, LIMIT_MAX) or LIMIT,
}
