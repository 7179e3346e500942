"""The authorisation hook: a program of the operator's that is asked, beside the rules, who may do what.

One question is one ``POST`` of JSON, ``{"user", "userid", "roles", "kind", "topic"}`` with a kind of ``access.KINDS``;
the answer is 200 with ``{"allow": true}`` or ``{"allow": false, "text": WHY}``. The hook can only take rights away:
what the rules deny is not asked for. Answers are remembered for ``access.hook_cache_s``.

Any other answer, and none within ``access.hook_s``, counts as a no for ``AWAY_S``. Where the hook answers nobody, this
no is for everybody, so that nobody waits for a hook that is away. Where it answered others meanwhile, or answered this
question with something else, the no is for this question alone. The slots of the hook go to users in turns; the time
that a question waits for its slot is not the hook's silence.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from broker.holdings import Holdings
from gateway.identity.fetching import FAULTS, fetch, reason_of
from gateway.principal import Principal
from gateway.settings.schema import AccessSection

REMEMBERED: Final = 16384
"""Answers that are kept; of more the oldest are forgotten."""
ASKED: Final = 64
"""Questions under way at a time, in one process."""
ASKED_EACH: Final = 16
"""Those of one user."""
AWAY_S: Final = 1.0
"""How long a hook that failed is not asked again."""
TOPIC_BYTES: Final = 1024
"""Longest topic that is asked for; a longer one is a no."""
TEXT_CHARS: Final = 200
AWAY: Final = "the authorisation hook does not answer: retry in 1 s"

log = logging.getLogger("headgate")


class Verdict(NamedTuple):
    """What becomes of one thing that somebody wants to do."""

    allowed: bool
    text: str = ""
    """Why not, for who asked."""
    errnum: int = errno.EPERM


class _Said(msgspec.Struct):
    """The hook's answer."""

    allow: bool
    text: str = ""


_Key = tuple[str, int, int, str, bytes]


class Slots:
    """Places that users share: who waits for one gets it in turns, user by user.

    Args:
        total: places. each: those that one user may have at a time.
    """

    def __init__(self, total: int, each: int) -> None:
        self._total = total
        self._each = each
        self._held: Holdings[str] = Holdings()
        self._rows: dict[str, deque[asyncio.Future[None]]] = {}  # who is first has the next turn

    async def take(self, user: str) -> None:
        """Wait for a place; give it back with `give`."""
        place = asyncio.get_running_loop().create_future()
        self._rows.setdefault(user, deque()).append(place)
        self._turn()
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self.give(user)
            raise

    def give(self, user: str) -> None:
        """A place is free again."""
        self._held.add(user, -1)
        self._turn()

    def _turn(self) -> None:
        rows, self._rows = self._rows, {}
        behind: dict[str, deque[asyncio.Future[None]]] = {}
        for user, row in rows.items():
            while row and row[0].done():  # who waited for it is gone
                row.popleft()
            left = self._rows
            if row and self._held.total < self._total and self._held.of(user) < self._each:
                self._held.add(user)
                row.popleft().set_result(None)
                left = behind
            if row:
                left[user] = row
        self._rows |= behind


class AuthorizationHook:
    """The hook of ``access.hook_url``.

    Args:
        access: ``hook_url``, ``hook_s`` and ``hook_cache_s`` count.
        clock: seconds, never going back.

    Attributes:
        outcomes: ``allowed``, ``denied`` and ``failed`` -> questions that ended so.
    """

    def __init__(self, access: AccessSection, clock: Callable[[], float]) -> None:
        assert access.hook_url is not None
        self._url = access.hook_url
        self._limit_s = access.hook_s
        self._cache_s = access.hook_cache_s
        self._clock = clock
        self._slots = Slots(ASKED, ASKED_EACH)
        self._answered_at = -math.inf
        self._known: OrderedDict[_Key, tuple[Verdict, float]] = OrderedDict()
        self._asking: dict[_Key, asyncio.Task[Verdict]] = {}
        self._away_until = 0.0
        self.outcomes: Counter[str] = Counter(allowed=0, denied=0, failed=0)

    def known(self, mine: Principal, kind: str, topic: bytes) -> Verdict | None:
        """What is known without asking; None: `ask`."""
        if len(topic) > TOPIC_BYTES or not _is_text(topic):
            return Verdict(False, f"expected a topic in UTF-8 of at most {TOPIC_BYTES} bytes")
        found = self._known.get(_key(mine, kind, topic))
        if found is not None and found[1] > self._clock():
            return found[0]
        return Verdict(False, AWAY, errno.EHOSTUNREACH) if self._clock() < self._away_until else None

    async def ask(self, mine: Principal, kind: str, topic: bytes) -> Verdict:
        """Whether somebody may; of many who ask the same at a time one does. Raises nothing: a failure is a no."""
        found = self.known(mine, kind, topic)
        if found is not None:
            return found
        key = _key(mine, kind, topic)
        task = self._asking.get(key)
        if task is None:
            loop = asyncio.get_running_loop()
            task = self._asking[key] = loop.create_task(self._ask(key, mine), name="authorisation hook")
            task.add_done_callback(lambda _task: self._asking.pop(key, None))
        return await asyncio.shield(task)  # another may wait for it, too

    def close(self) -> None:
        """Wait for no answer any more."""
        for task in list(self._asking.values()):
            task.cancel()

    async def _ask(self, key: _Key, mine: Principal) -> Verdict:
        await self._slots.take(mine.name)
        began = self._clock()
        try:
            said = await self._post(key, mine)
        except FAULTS as error:
            self.outcomes["failed"] += 1
            log.warning(
                "authorisation hook %s: %s; it counts as a no",
                self._url,
                self._url.masked_in(reason_of(error)),
            )
            verdict = Verdict(False, AWAY, errno.EHOSTUNREACH)
            answers = isinstance(error, ValueError) and not isinstance(error, OSError)
            if answers or (isinstance(error, TimeoutError) and self._answered_at > began):
                # The hook is there: who sends a question that it cannot answer must not shut others out. A bad
                # certificate is a ValueError and an OSError; it concerns everybody.
                return self._remember(key, verdict, AWAY_S)
            self._away_until = self._clock() + AWAY_S
            return verdict
        finally:
            self._slots.give(mine.name)
        self._answered_at = self._clock()
        self.outcomes["allowed" if said.allow else "denied"] += 1
        verdict = Verdict(said.allow, said.text[:TEXT_CHARS] or "the authorisation hook does not allow it")
        return self._remember(key, verdict, self._cache_s)

    def _remember(self, key: _Key, verdict: Verdict, seconds: float) -> Verdict:
        self._known.pop(key, None)
        self._known[key] = verdict, self._clock() + seconds
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return verdict

    async def _post(self, key: _Key, mine: Principal) -> _Said:
        """Ask.

        Raises:
            OSError, ValueError, TimeoutError, aiohttp.ClientError: as `FAULTS` says.
        """
        _name, _userid, _roles, kind, topic = key
        question = {
            "user": mine.name,
            "userid": mine.userid,
            "roles": mine.role_names,
            "kind": kind,
            "topic": topic.decode(),
        }
        body = msgspec.json.encode(question)
        async with asyncio.timeout(self._limit_s):
            reply = await fetch(self._url.reveal(), body=body, headers={"Content-Type": "application/json"})
        try:
            return msgspec.convert(reply.ok().object(), _Said)
        except msgspec.ValidationError as error:
            raise ValueError(f'expected {{"allow": true or false}}: {error}') from error


def _key(mine: Principal, kind: str, topic: bytes) -> _Key:
    return mine.name, mine.userid, int(mine.roles), kind, topic


def _is_text(topic: bytes) -> bool:
    try:
        topic.decode()
    except UnicodeDecodeError:
        return False
    return True
