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
one may be there or not. So it is with the workers of other gateways, where Redis carries the question to them
(``gateway.fleet``).
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.wire.payload import decode_json
from broker.wire.topic import service_of
from gateway.access import KINDS, preset_for, rule_for
from gateway.closes import ENDED
from gateway.principal import ROLE_NAMES, Denied
from gateway.sessions import listing, logins, topics
from gateway.sessions.refusals import DENIED_MAX

if TYPE_CHECKING:
    from broker.client import Handler, Request
    from gateway.hub import Hub
    from gateway.sessions.session import Session
    from gateway.trends.trends import Trends

log = logging.getLogger("headgate")

NAME: Final = "gateway"
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

    @classmethod
    def of(cls, session: Session) -> Caller:
        """The caller that a session is."""
        return cls(session.principal.name, session.roles, session)


class _Question(msgspec.Struct):
    """What one worker asks the others, on behalf of whom."""

    method: str
    name: str
    roles: int
    arguments: dict[str, Any]


class _Reply(msgspec.Struct, omit_defaults=True):
    """What it is told: one of these."""

    answer: dict[str, Any] | None = None
    refused: tuple[int, str] | None = None


OF_BROKERS: Final = {
    "calls": ("broker.calls",),
    "ranks": ("broker.stats-get", "overlay.topology", "overlay.health", "state-machine.get", "attr.get"),
}
"""Methods that tell what brokers told, and what who calls them has to be allowed to ask those."""
EVERYWHERE: Final = frozenset(("session", "sessions", "presence", "stats", "end"))
"""Methods that other worker processes are asked for, too."""
Answer: TypeAlias = "Mapping[str, Any] | Awaitable[Mapping[str, Any]]"
Method: TypeAlias = "Callable[[Hub, Caller, Mapping[str, Any]], Answer]"


def call(hub: Hub, caller: Caller, name: str, arguments: Mapping[str, Any]) -> Answer:
    """Run one method; what it returns may have to be awaited (``gateway.reload``).

    Raises:
        RpcError: ENOSYS no such method, EPERM with the roles that may, or what the method itself refuses.
        ProtocolError: EPROTO; an argument is missing or of the wrong kind.
    """
    found = METHODS.get(name)
    if found is None:
        raise RpcError(errno.ENOSYS, f"Unknown service method '{NAME}.{name[:64]}'")
    method, _mask = found
    if not _may(hub, caller.roles, name):
        needed = " or ".join(_able(hub, name)) or "of nobody"
        rule = f", or a rule: {rule_for('call', f'{NAME}.{name}')}" if name in OF_BROKERS else ""
        raise RpcError(errno.EPERM, f"{NAME}.{name} needs the role {needed}{rule}")
    if hub.ask_others is not None and name in EVERYWHERE and not _here(hub, name, arguments):
        return _everywhere(hub, caller, name, arguments)
    return method(hub, caller, arguments)


def answered(hub: Hub, question: bytes) -> bytes:
    """For the other worker processes: what this one has to say about its sessions."""
    asked = msgspec.json.decode(question, type=_Question)
    try:
        if asked.method == "sessions":
            answer: Answer = listing.sessions(hub, asked.arguments["limit"], tuple(asked.arguments["after"]))
        else:
            answer = METHODS[asked.method][0](hub, Caller(asked.name, asked.roles, None), asked.arguments)
    except (RpcError, ProtocolError) as error:
        return msgspec.json.encode(_Reply(refused=(error.errno, str(error))))
    return msgspec.json.encode({"answer": answer})


def _here(hub: Hub, name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a method is about one session, and that is of this process."""
    wanted = arguments.get("session")
    return name != "sessions" and isinstance(wanted, str) and wanted in hub.sessions


async def _everywhere(hub: Hub, caller: Caller, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ask the other workers, too: for a session that is not here, or for all of them."""
    if name == "sessions":
        return await _all_sessions(hub, caller, arguments)
    if name == "stats":
        replies, _silent = await _ask(hub, caller, name, {})
        return listing.all_stats(hub, [each.answer for each in replies if each.answer is not None])
    if name == "presence":
        here = topics.presence(hub, caller, arguments)
        replies, silent = await _ask(hub, caller, name, arguments)
        return topics.joined([here, *(each.answer for each in replies if each.answer)]) | {"silent": silent}
    if "session" in arguments and caller.roles & _ADMIN:
        replies, silent = await _ask(hub, caller, name, arguments)
        for reply in replies:
            if reply.answer is not None:
                return reply.answer
            if reply.refused is not None and reply.refused[0] != errno.ENOENT:
                raise RpcError(*reply.refused)
        if silent:
            text = f"{silent} of the worker processes did not answer, and the session may be there: ask again"
            raise RpcError(errno.ETIMEDOUT, text)
    return await _settled(METHODS[name][0](hub, caller, arguments))


async def _all_sessions(hub: Hub, caller: Caller, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """A page of all: each worker gives its share of it, so that it costs all of them together what it costs one."""
    limit, after = _asked_page(arguments)
    others = hub.fleet.others if hub.fleet is not None else 0
    share = -(-limit // (hub.settings.gateway.workers + others))
    replies, silent = await _ask(hub, caller, "sessions", {"limit": share, "after": after})
    pages = [each.answer for each in replies if each.answer is not None]
    return listing.joined([listing.sessions(hub, share, after), *pages]) | {"silent": silent}


async def _ask(hub: Hub, caller: Caller, name: str, arguments: Mapping[str, Any]) -> tuple[list[_Reply], int]:
    """What the other workers reply, and how many do not."""
    assert hub.ask_others is not None
    said = await hub.ask_others(
        msgspec.json.encode(_Question(name, caller.name, caller.roles, dict(arguments)))
    )
    return [msgspec.json.decode(each, type=_Reply) for each in said if each], said.count(b"")


async def _settled(answer: Answer) -> Mapping[str, Any]:
    return answer if isinstance(answer, Mapping) else await answer


def handlers(hub: Hub) -> dict[str, tuple[Handler, int]]:
    """The same methods for ``broker.client.service``: OWNER only, for whoever stamps there is not ours to judge."""

    def bound(name: str) -> Handler:
        async def handle(request: Request) -> Mapping[str, Any]:
            arguments = decode_json(request.payload) if request.payload else {}
            answer = call(hub, Caller(f"userid {request.userid}", _OWNER, None), name, arguments)
            return answer if isinstance(answer, Mapping) else await answer

        return handle

    return {name: (bound(name), _OWNER) for name in METHODS}


def _names(mask: int) -> list[str]:
    return [name for name, bit in ROLE_NAMES.items() if mask & bit]


def _may(hub: Hub, roles: int, name: str) -> bool:
    """Whether somebody with these roles may call a method of ours; one that is not there everybody may."""
    _method, mask = METHODS.get(name, (None, _ANYONE))
    rules = OF_BROKERS.get(name, ())
    return bool(roles & mask) and all(hub.access.allows(roles, "call", topic) for topic in rules)


def _able(hub: Hub, name: str) -> list[str]:
    """The roles that may call it."""
    return [role for role, bit in ROLE_NAMES.items() if _may(hub, bit, name)]


def _session(hub: Hub, caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    wanted = arguments.get("session")
    if wanted is None and caller.session is not None:
        return caller.session.info()
    if not caller.roles & _ADMIN and (caller.session is None or wanted != caller.session.id):
        raise RpcError(errno.EPERM, f"other sessions are shown to the role {' or '.join(_names(_ADMIN))}")
    return _find(hub, wanted).info()


def _sessions(hub: Hub, _caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    return listing.joined([listing.sessions(hub, *_asked_page(arguments))])


def _asked_page(arguments: Mapping[str, Any]) -> tuple[int, listing.Place]:
    after = arguments.get("after", "0:")
    try:
        place = listing.place_of(after)
    except (AttributeError, ValueError):
        raise ProtocolError("after: expected what next of the page before says") from None
    return min(_count(arguments, "limit", SESSIONS_MAX), SESSIONS_MAX), place


def _stats(hub: Hub, _caller: Caller, _arguments: Mapping[str, Any]) -> Answer:
    return listing.stats(hub)


def _series(hub: Hub, _caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    range_s, figures = arguments.get("range_s", 300), arguments.get("figures", [])
    if isinstance(range_s, bool) or not isinstance(range_s, int) or not 10 <= range_s <= RANGE_MAX_S:
        raise ProtocolError(f"range_s: expected seconds from 10 to {RANGE_MAX_S}")
    if not isinstance(figures, list) or not all(isinstance(figure, str) for figure in figures):
        raise ProtocolError("figures: expected an array of names")
    return _trends(hub).series(range_s, figures)


async def _calls(hub: Hub, caller: Caller, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    rank = None if arguments.get("rank") is None else _count(arguments, "rank", 0)
    return await _trends(hub).calls(rank, trusted=bool(caller.roles & _ADMIN))


async def _ranks(hub: Hub, caller: Caller, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    after, clients = _count(arguments, "after", 0), arguments.get("clients", False)
    if not isinstance(clients, bool):
        raise ProtocolError("clients: expected true or false")
    return await _trends(hub).ranks(after, clients=clients, owner=bool(caller.roles & _OWNER))


def _trends(hub: Hub) -> Trends:
    if hub.trends is None:
        raise RpcError(errno.ENOSYS, "nothing is known of the brokers here")
    return hub.trends


def _denied(hub: Hub, _caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    rows = hub.refusals.newest(_count(arguments, "limit", DENIED_MAX))
    return {"denied": rows, "total": hub.counters.denied}


def _rules(hub: Hub, caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    kind, topic = arguments.get("kind", "call"), arguments.get("topic")
    if kind not in KINDS or not isinstance(topic, str):
        raise ProtocolError(f"expected a topic, and a kind of {', '.join(KINDS)}")
    if kind == "call" and service_of(topic) == NAME:
        name = topic.removeprefix(f"{NAME}.")
        return {"allowed": _may(hub, caller.roles, name), "roles": _able(hub, name), **_preset(kind, topic)}
    if kind == "call" and topic in LINK_TOPICS:
        return {"allowed": True, "roles": _names(_ANYONE)}
    return {
        "allowed": hub.access.allows(caller.roles, kind, topic),
        "roles": hub.access.roles_for(kind, topic),
        **_preset(kind, topic),
    }


def _preset(kind: str, topic: str) -> dict[str, str]:
    found = preset_for(kind, topic)
    return {"preset": found} if found else {}


def _end(hub: Hub, caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    session, revoke = _find(hub, arguments.get("session")), arguments.get("revoke", False)
    if not isinstance(revoke, bool):
        raise ProtocolError("revoke: expected true or false")
    if revoke:
        _revoke(hub, caller, session)
    else:
        session.close(ENDED, f"ended by {caller.name}")
    return {}


def _revoke(hub: Hub, caller: Caller, session: Session) -> None:
    """Revoke the credential of ``session``; other worker processes end its sessions within a second or so.

    Nobody revokes what is above its own role: an admin could lock the owner out.
    """
    if session.principal.owner and not caller.roles & _OWNER:
        raise RpcError(errno.EPERM, "a credential of the role owner is revoked by the role owner")
    if hub.identity is None:
        raise RpcError(errno.ENOSYS, "no credential can be revoked here")
    try:
        hub.identity.revoke(session.principal)
    except Denied as denied:
        raise RpcError(denied.errno, denied.public) from denied
    log.warning("%s of %s revoked by %s", session.principal.credential, session.principal.name, caller.name)
    hub.revoked(session.principal.credential)


def _reload(hub: Hub, _caller: Caller, _arguments: Mapping[str, Any]) -> Answer:
    if hub.reload is None:
        raise RpcError(errno.ENOSYS, "nothing here can be read again")
    return hub.reload()


def _drain(hub: Hub, caller: Caller, arguments: Mapping[str, Any]) -> Answer:
    reason = arguments.get("reason")
    if not isinstance(reason, str) or not 0 < len(reason) <= REASON_MAX:
        raise ProtocolError(f"reason: expected a text of 1 to {REASON_MAX} characters, for the log")
    if hub.leave is None:
        raise RpcError(errno.ENOSYS, "this gateway is ended by the program that runs it")
    if hub.accepting:
        said = f"drained by {caller.name}: {reason!r}"
        log.info("%s", said)
        hub.leave(said)
    return {}


def _find(hub: Hub, wanted: object) -> Session:
    session = hub.sessions.get(wanted) if isinstance(wanted, str) else None
    if session is None:
        raise RpcError(errno.ENOENT, "no such session in this process")
    return session


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
