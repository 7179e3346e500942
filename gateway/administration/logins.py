"""``gateway.logins`` and ``gateway.logout``: where somebody is logged in, and the end of that, in all processes."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from gateway.principal import Denied

if TYPE_CHECKING:
    from gateway.administration.service import Administration, Caller
    from gateway.identity.login import Login, Logins

log = logging.getLogger("headgate")

ROWS: Final = 100
"""Logins of one answer; a user has fewer, of everybody's the newest are shown."""


def listed(service: Administration, caller: Caller, _arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The caller's own logins, to the owner everybody's, the newest first."""
    logins = service.sessions.identity.logins
    mine = None if caller.session is None else caller.session.principal.credential
    with _for_clients():
        seen, own = _seen(logins, caller)
        rows = [
            each.described() | {"own": each.id in own, "current": each.credential == mine}
            for each in seen[:ROWS]
            if logins.counts(each)
        ]
    return {"logins": rows, "more": max(0, len(seen) - ROWS)}


def ended(service: Administration, caller: Caller, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """End one login, all of the caller's, or all of another user's; their sessions end within a second or so."""
    logins = service.sessions.identity.logins
    with _for_clients():
        seen, own = _seen(logins, caller)
    match dict(arguments):
        case {"login": str(wanted), **rest} if not rest:
            chosen = [each for each in seen if each.id == wanted]
            if not chosen:
                raise RpcError(errno.ENOENT, "no such login, or it is another user's")
        case {"everywhere": True, **rest} if not rest:
            chosen = [each for each in seen if each.id in own]
        case {"user": str(name), **rest} if not rest:
            if not caller.roles & Role.OWNER:
                raise RpcError(errno.EPERM, "logins of other users are ended by the role owner")
            chosen = [each for each in seen if each.user == name]
        case _:
            raise ProtocolError("expected login, everywhere: true, or user, one of them")
    with _for_clients():
        logins.end_all(chosen)
    log.info("%d logins ended by %s", len(chosen), caller.name)
    return {"ended": len(chosen)}


def _seen(logins: Logins, caller: Caller) -> tuple[Sequence[Login], set[str]]:
    """The logins that a caller may know of, and the ids of its own."""
    own = [] if caller.session is None else logins.of(caller.session.principal)
    seen = logins.of(None) if caller.roles & Role.OWNER else own
    return seen, {each.id for each in own}


@contextlib.contextmanager
def _for_clients() -> Iterator[None]:
    """What the store refuses in the block, in the words that are for clients."""
    try:
        yield
    except Denied as denied:
        raise RpcError(denied.errno, denied.public) from denied
