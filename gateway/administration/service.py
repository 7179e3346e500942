"""The methods of the service ``gateway``: for web clients, and for the owner through the upstream.

::

    gateway.session   {["session"]}            -> the row of a session: the caller's own when none is named
    gateway.sessions  {["limit"], ["after"]}   -> {"sessions": [row], "total", ["next"]}: a page, the oldest first; next
                                                  is the after of the next one, where more follow
    gateway.stats     {}                       -> counters and states of this process; where there are others,
                                                  "gateways", a row of each, "all", their sum, and "silent", the names
                                                  of those of which a process did not answer
    gateway.series    {["range_s"], ["figures"]} -> {"begin", "step", "count", "series", "marks"}: figures over time, as
                                                  ``trends.rings.Rings.read`` has them
    gateway.calls     {["rank"]}               -> {"at", "rows": [{"kind", "name", "rank", "calls", "errors", "open",
                                                  "p50_ms", "p99_ms", "errnos", "last_error", "recent"}], "more",
                                                  "silent", "longest_ms", "total", "why"}: how calls fare, by method,
                                                  at one broker or at all (``trends.calls``); to owner and admin with
                                                  the newest errors, and with events, nfp and oslo
    gateway.ranks     {["after"], ["clients"]} -> {"at", "size", "version", "headgate", "state", "ranks": [row], "next",
                                                  "total", "why"}: the brokers, those that changed since the answer with
                                                  that next (``trends.ranks``); clients, true: to the owner who is
                                                  attached to them, too; after 0: with "hostlist"
    gateway.latest    {"topic"}                -> {"epoch", "sequence", "events": [event], "more"}: the newest event of
                                                  each topic below that prefix, of topics that are kept
    gateway.presence  {["topic"]}              -> {"users": [{"user", "userid", "sessions"}], "more"}: who listens to a
                                                  topic; without one who is connected, to owner and admin
    gateway.denied    {["limit"]}              -> {"denied": [record], "total"}: the newest refusals, oldest first
    gateway.rules     {"kind", "topic"}        -> {"allowed", "roles"}: may the caller, and which roles may
    gateway.end       {"session"["revoke"]}    -> {}: the session is closed and may begin anew; with revoke true its
                                                  credential counts no more, and all its sessions end;
                                                  an owner's only an owner revokes
    gateway.logins    {}                       -> {"logins": [{"login", "user", "from", "since", "expires", "own",
                                                  "current"}], "more"}: where the caller is logged in with a browser,
                                                  to the owner everybody's
    gateway.logout    {"login"} | {"everywhere"} | {"user"} -> {"ended"}: one login, all of the caller's own (true), or,
                                                  for the owner, all of a user
    gateway.reload    {}                       -> what was read again, and what was not
    gateway.drain     {"reason"}               -> {}, then the gateway leaves as at SIGTERM: clients are told, and
                                                  closed one after the other; a service manager starts it anew

``gateway.calls`` and ``gateway.ranks`` are for whoever may ask the brokers all of that.

With several worker processes each answers for itself; statistics are added up, sessions are shown and ended wherever
they are, and a reload reaches all of them: the answer has the problems of one, the others follow a moment later. A
worker that does not answer is told of: ``"silent"`` is how many did not show their sessions, and ETIMEDOUT says that
one may be there or not. So it is with the workers of other gateways that share a Redis server (``gateway.fleet``).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from broker.errors import ProtocolError, RpcError
from broker.identity import USERID_UNKNOWN, Role
from broker.wire.payload import decode_json
from broker.wire.topic import service_of
from gateway.access import KINDS, preset_for, rule_for
from gateway.administration import listing, logins, topics
from gateway.administration.denials import DENIED_MAX, Denials
from gateway.closes import ENDED
from gateway.principal import ROLE_NAMES, Denied
from gateway.sessions.requests import NAME, Answer

if TYPE_CHECKING:
    from broker.client import Handler, Request
    from gateway.access import Access
    from gateway.sessions.delivery import Delivery
    from gateway.sessions.session import Session
    from gateway.sessions.sessions import Place, Sessions
    from gateway.trends.trends import Trends

log = logging.getLogger("headgate")

SESSIONS_MAX: Final = 1000
"""Rows of one answer: some 300 bytes each."""
RANGE_MAX_S: Final = 86_400
REASON_MAX: Final = 200
COUNT_MAX: Final = 1 << 32
"""Of a limit: more than there are rows, and an index still."""
LINK_TOPICS: Final = frozenset(
    ("event.subscribe", "event.unsubscribe", "event.publish", "service.add", "service.remove")
)
"""Requests that anybody may make: the right that counts is that to the topic or name inside."""
_ANYONE: Final = int(Role.OWNER | Role.ADMIN | Role.USER)
_ADMIN: Final = int(Role.OWNER | Role.ADMIN)
_OWNER: Final = int(Role.OWNER)


class Caller(NamedTuple):
    """Who calls: a web session, or somebody behind the upstream."""

    name: str
    roles: int
    session: Session | None


class _Question(msgspec.Struct):
    """A call that one process hands to the others, and the name and roles of its caller."""

    method: str
    name: str
    roles: int
    arguments: dict[str, Any]


class _Reply(msgspec.Struct, omit_defaults=True):
    """The reply of one process: an answer, or a refusal (errno, text)."""

    answer: dict[str, Any] | None = None
    refused: tuple[int, str] | None = None


SUPERSEDE: Final = "supersede"
"""What processes ask each other beside methods: that a former session ends."""
OF_BROKERS: Final = {
    "calls": ("broker.calls",),
    "ranks": ("broker.stats-get", "overlay.topology", "overlay.health", "state-machine.get", "attr.get"),
}
"""Methods that tell what brokers told, and what who calls them has to be allowed to ask those."""
EVERYWHERE: Final = frozenset(("session", "sessions", "presence", "stats", "end"))
"""Methods that other processes are asked for, too."""
Method: TypeAlias = "Callable[[Administration, Caller, Mapping[str, Any]], Answer]"


class Administration:
    """What one process answers as ``gateway``, and what that is made of (``sessions.requests.GatewayService``).

    Args:
        sessions, delivery: who is connected, and what is carried. trends: what is known of the brokers.
        reload: reads certificates, tokens and keys again; returns what was read again and what was not.
        leave: what ``gateway.drain`` does, of all worker processes; gets a reason. None: the program that runs this
            gateway ends it.

    Attributes:
        denials: who tried what without the right.
    """

    def __init__(
        self,
        sessions: Sessions,
        delivery: Delivery,
        trends: Trends,
        *,
        reload: Callable[[], Answer],
        leave: Callable[[str], None] | None = None,
    ) -> None:
        self.sessions = sessions
        self.delivery = delivery
        self.trends = trends
        self.reload = reload
        self.leave = leave
        self.denials = Denials(sessions, delivery.upstream)

    def set_access(self, access: Access) -> None:
        """Other rules from now on, and perhaps other users: every session gives up what is not allowed any more."""
        self.sessions.access = access
        self.delivery.fanout.invalidate()
        self.sessions.each(lambda session: session.recheck_principal())

    def deny(
        self, session: Session, kind: str, topic: str, reason: str, *, claimed: int = USERID_UNKNOWN
    ) -> None:
        """See ``GatewayService``."""
        self.denials.add(session, kind, topic, reason, claimed)

    def supersede(self, session: Session, former: str) -> None:
        """See ``GatewayService``."""

        async def elsewhere() -> None:
            await self.sessions.peers.ask(msgspec.json.encode(question))

        user = session.principal.name
        if former != session.id and not self.sessions.supersede(former, user) and self.sessions.peers.shared:
            question = _Question(SUPERSEDE, user, 0, {"session": former})
            self.sessions.tasks.spawn("end a former connection", elsewhere())

    # -- who calls -----------------------------------------------------------------------------

    def call(self, session: Session, method: str, arguments: Mapping[str, Any]) -> Answer:
        """See ``GatewayService``: ENOSYS no such method, EPERM with the roles that may."""
        return self._call(Caller(session.principal.name, session.roles, session), method, arguments)

    def handlers(self) -> dict[str, tuple[Handler, int]]:
        """The same methods for ``broker.client.service``: OWNER only, for whoever stamps there is not ours to judge."""

        def bound(name: str) -> Handler:
            async def handle(request: Request) -> Mapping[str, Any]:
                arguments = decode_json(request.payload) if request.payload else {}
                return await _settled(
                    self._call(Caller(f"userid {request.userid}", _OWNER, None), name, arguments)
                )

            return handle

        return {name: (bound(name), _OWNER) for name in METHODS}

    def answered(self, question: bytes) -> bytes:
        """For the other processes: what this one has to say about its sessions."""
        asked = msgspec.json.decode(question, type=_Question)
        try:
            answer: Answer = {}
            if asked.method == SUPERSEDE:
                self.sessions.supersede(str(asked.arguments["session"]), asked.name)
            elif asked.method == "sessions":  # of which each gives its share, and not a page of its own
                answer = listing.sessions(
                    self.sessions, asked.arguments["limit"], tuple(asked.arguments["after"])
                )
            else:
                answer = METHODS[asked.method][0](
                    self, Caller(asked.name, asked.roles, None), asked.arguments
                )
        except (RpcError, ProtocolError) as error:
            return msgspec.json.encode(_Reply(refused=(error.errno, str(error))))
        return msgspec.json.encode({"answer": answer})

    def _call(self, caller: Caller, name: str, arguments: Mapping[str, Any]) -> Answer:
        found = METHODS.get(name)
        if found is None:
            raise RpcError(errno.ENOSYS, f"Unknown service method '{NAME}.{name[:64]}'")
        if not self.may(caller.roles, name):
            needed = " or ".join(self.able(name)) or "of nobody"
            rule = f", or a rule: {rule_for('call', f'{NAME}.{name}')}" if name in OF_BROKERS else ""
            raise RpcError(errno.EPERM, f"{NAME}.{name} needs the role {needed}{rule}")
        if self.sessions.peers.shared and name in EVERYWHERE and not self._is_here(name, arguments):
            return self._everywhere(caller, name, arguments)
        return found[0](self, caller, arguments)

    def may(self, roles: int, name: str) -> bool:
        """Whether somebody with these roles may call a method of ours; one that is not there everybody may."""
        _method, mask = METHODS.get(name, (None, _ANYONE))
        rules = OF_BROKERS.get(name, ())
        return bool(roles & mask) and all(
            self.sessions.access.allows(roles, "call", topic) for topic in rules
        )

    def able(self, name: str) -> list[str]:
        """The roles that may call it."""
        return [role for role, bit in ROLE_NAMES.items() if self.may(bit, name)]

    def find(self, wanted: object) -> Session:
        """The session with this id.

        Raises:
            RpcError: ENOENT.
        """
        session = self.sessions.by_id.get(wanted) if isinstance(wanted, str) else None
        if session is None:
            raise RpcError(errno.ENOENT, "no such session in this process")
        return session

    # -- the other processes -------------------------------------------------------------------

    def _is_here(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a method is about one session, and that is of this process."""
        wanted = arguments.get("session")
        return name != "sessions" and isinstance(wanted, str) and wanted in self.sessions.by_id

    async def _everywhere(self, caller: Caller, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the other processes, too: for a session that is not here, or for all of them."""
        if name == "sessions":
            return await self._all_sessions(caller, arguments)
        if name == "stats":
            replies, _silent = await self._ask(caller, name, {})
            return listing.all_stats(self, [each.answer for each in replies if each.answer is not None])
        if name == "presence":
            here = topics.presence(self, caller, arguments)
            replies, silent = await self._ask(caller, name, arguments)
            answers = [here, *(each.answer for each in replies if each.answer)]
            return topics.joined(answers) | {"silent": silent}
        if "session" in arguments and caller.roles & _ADMIN:
            replies, silent = await self._ask(caller, name, arguments)
            for reply in replies:
                if reply.answer is not None:
                    return reply.answer
                if reply.refused is not None and reply.refused[0] != errno.ENOENT:
                    raise RpcError(*reply.refused)
            if silent:
                text = f"{silent} of the worker processes did not answer, and the session may be there: ask again"
                raise RpcError(errno.ETIMEDOUT, text)
        return await _settled(METHODS[name][0](self, caller, arguments))

    async def _all_sessions(self, caller: Caller, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """A page of all: each process gives its share, so that it costs all of them together what it costs one."""
        limit, after = _asked_page(arguments)
        share = -(-limit // (1 + len(self.sessions.peers)))
        replies, silent = await self._ask(caller, "sessions", {"limit": share, "after": after})
        pages = [each.answer for each in replies if each.answer is not None]
        return listing.joined([listing.sessions(self.sessions, share, after), *pages]) | {"silent": silent}

    async def _ask(self, caller: Caller, name: str, arguments: Mapping[str, Any]) -> tuple[list[_Reply], int]:
        """What the other processes reply, and how many do not."""
        question = msgspec.json.encode(_Question(name, caller.name, caller.roles, dict(arguments)))
        said = [*(await self.sessions.peers.ask(question)).values()]
        return [msgspec.json.decode(each, type=_Reply) for each in said if each], said.count(b"")


async def _settled(answer: Answer) -> Mapping[str, Any]:
    return answer if isinstance(answer, Mapping) else await answer


def _names(mask: int) -> list[str]:
    return [name for name, bit in ROLE_NAMES.items() if mask & bit]


def _session(service: Administration, caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    wanted = arguments.get("session")
    if wanted is None and caller.session is not None:
        return listing.row(caller.session)
    if not caller.roles & _ADMIN and (caller.session is None or wanted != caller.session.id):
        raise RpcError(errno.EPERM, f"other sessions are shown to the role {' or '.join(_names(_ADMIN))}")
    return listing.row(service.find(wanted))


def _sessions(service: Administration, _caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    return listing.joined([listing.sessions(service.sessions, *_asked_page(arguments))])


def _asked_page(arguments: Mapping[str, Any]) -> tuple[int, Place]:
    after = arguments.get("after", "0:")
    try:
        place = listing.place_of(after)
    except (AttributeError, ValueError):
        raise ProtocolError("after: expected what next of the page before says") from None
    return min(_count(arguments, "limit", SESSIONS_MAX), SESSIONS_MAX), place


def _stats(service: Administration, _caller: Caller, _arguments: Mapping[str, Any]) -> Answer:
    return listing.stats(service)


def _series(service: Administration, _caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    range_s, figures = arguments.get("range_s", 300), arguments.get("figures", [])
    if isinstance(range_s, bool) or not isinstance(range_s, int) or not 10 <= range_s <= RANGE_MAX_S:
        raise ProtocolError(f"range_s: expected seconds from 10 to {RANGE_MAX_S}")
    if not isinstance(figures, list) or not all(isinstance(figure, str) for figure in figures):
        raise ProtocolError("figures: expected an array of names")
    return service.trends.series(range_s, figures)


async def _calls(service: Administration, caller: Caller, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    rank = None if arguments.get("rank") is None else _count(arguments, "rank", 0)
    return await service.trends.calls(rank, trusted=bool(caller.roles & _ADMIN))


async def _ranks(service: Administration, caller: Caller, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    after, clients = _count(arguments, "after", 0), arguments.get("clients", False)
    if not isinstance(clients, bool):
        raise ProtocolError("clients: expected true or false")
    return await service.trends.ranks(after, clients=clients, owner=bool(caller.roles & _OWNER))


def _denied(service: Administration, _caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    rows = service.denials.newest(_count(arguments, "limit", DENIED_MAX))
    return {"denied": rows, "total": service.sessions.counters.denied}


def _rules(service: Administration, caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    kind, topic = arguments.get("kind", "call"), arguments.get("topic")
    if kind not in KINDS or not isinstance(topic, str):
        raise ProtocolError(f"expected a topic, and a kind of {', '.join(KINDS)}")
    if kind == "call" and service_of(topic) == NAME:
        name = topic.removeprefix(f"{NAME}.")
        return {
            "allowed": service.may(caller.roles, name),
            "roles": service.able(name),
            **_preset(kind, topic),
        }
    if kind == "call" and topic in LINK_TOPICS:
        return {"allowed": True, "roles": _names(_ANYONE)}
    return {
        "allowed": service.sessions.access.allows(caller.roles, kind, topic),
        "roles": service.sessions.access.roles_for(kind, topic),
        **_preset(kind, topic),
    }


def _preset(kind: str, topic: str) -> dict[str, str]:
    found = preset_for(kind, topic)
    return {"preset": found} if found else {}


def _end(service: Administration, caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    session, revoke = service.find(arguments.get("session")), arguments.get("revoke", False)
    if not isinstance(revoke, bool):
        raise ProtocolError("revoke: expected true or false")
    mine = session.principal
    if not revoke:
        session.close(ENDED, f"ended by {caller.name}")
        return {}
    if mine.owner and not caller.roles & _OWNER:  # an admin could lock the owner out
        raise RpcError(errno.EPERM, "a credential of the role owner is revoked by the role owner")
    try:
        service.sessions.identity.revoke(mine)
    except Denied as denied:
        raise RpcError(denied.errno, denied.public) from denied
    log.warning("%s of %s revoked by %s", mine.credential, mine.name, caller.name)
    service.sessions.revoked(mine.credential)  # other processes end theirs within a second or so
    return {}


def _reload(service: Administration, _caller: Caller, _arguments: Mapping[str, Any]) -> Answer:
    return service.reload()


def _drain(service: Administration, caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    reason = arguments.get("reason")
    if not isinstance(reason, str) or not 0 < len(reason) <= REASON_MAX:
        raise ProtocolError(f"reason: expected a text of 1 to {REASON_MAX} characters, for the log")
    if service.leave is None:
        raise RpcError(errno.ENOSYS, "this gateway is ended by the program that runs it")
    if service.sessions.accepting:
        said = f"drained by {caller.name}: {reason!r}"
        log.info("%s", said)
        service.leave(said)
    return {}


def _count(arguments: Mapping[str, Any], field: str, default: int) -> int:
    value = arguments.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= COUNT_MAX:
        raise ProtocolError(f"{field}: expected a count up to {COUNT_MAX}")
    return value


METHODS: Final[dict[str, tuple[Method, int]]] = {
    "session": (_session, _ANYONE),
    "sessions": (_sessions, _ADMIN),
    "stats": (_stats, _ADMIN),
    "series": (_series, _ADMIN),
    "calls": (_calls, _ANYONE),
    "ranks": (_ranks, _ANYONE),
    "latest": (topics.latest, _ANYONE),
    "presence": (topics.presence, _ANYONE),
    "denied": (_denied, _ADMIN),
    "rules": (_rules, _ANYONE),
    "end": (_end, _ADMIN),
    "logins": (logins.listed, _ANYONE),
    "logout": (logins.ended, _ANYONE),
    "reload": (_reload, _OWNER),
    "drain": (_drain, _OWNER),
}
"""Name -> method and the roles that may call it."""
