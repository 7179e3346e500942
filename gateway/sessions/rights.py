"""What a session may, asked again whenever its principal or the rules change."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from gateway.closes import BAD_CREDENTIAL, INTERNAL, REVOKED
from gateway.principal import Denied

if TYPE_CHECKING:
    from gateway.principal import Principal
    from gateway.sessions.session import Session


GONE: Final = "the credential was revoked, or its user is gone or another one"


def judge_again(session: Session) -> None:
    """Rules, and perhaps users, are others now: give up what is not allowed any more; who is nobody any more goes."""
    identity, mine = session.hub.identity, session.principal
    now = mine if identity is None else identity.again(mine)
    if now is None:
        session.close(REVOKED, GONE)
    elif now == mine:
        session.recheck()
    else:
        session.set_principal(now)


def end_revoked(session: Session, credential: str | None) -> None:
    """End a session that came in by ``credential``; None: the identity is asked whether its credential still counts."""
    identity, mine = session.hub.identity, session.principal
    if credential is None:
        revoked = identity is not None and identity.revoked(mine)
    else:
        revoked = mine.credential == credential
    if revoked:
        session.close(REVOKED, "the credential was revoked")


async def refresh(session: Session, token: str) -> None:
    """Check a fresh token on a live connection; one that is refused ends it."""
    hub = session.hub
    try:
        if hub.identity is None:
            raise Denied("no identity", public="no token can be checked", status=503, close=INTERNAL)
        principal = await hub.identity.authenticate_token(token, address=session.address)
        if not session.ended:
            session.set_principal(principal)
            session.tell({"type": "refreshed", "expires": principal.expires, "roles": principal.role_names})
    except Denied as denied:
        if not session.ended:
            hub.deny(session, "refresh", "", str(denied))
            session.close(denied.close, denied.public)
    except Exception as error:
        hub.fault(session, error)
    finally:
        session.refreshing = False


def check_same_user(session: Session, principal: Principal) -> None:
    """Accept ``principal`` as a fresh one of the session's own user.

    Raises:
        Denied: it is another user's (close code 4500).
    """
    mine = session.principal
    if (principal.name, principal.userid) != (mine.name, mine.userid):
        raise Denied(
            f"a credential of {principal.name!r} on a connection of {mine.name!r}",
            public="the credential is of another user",
            status=403,
            close=BAD_CREDENTIAL,
        )


def misnamed(session: Session, name: str) -> bool:
    """Whether a guest wants to provide a service that does not begin with its userid and a dash (RFC 12); who is
    nobody has none.
    """
    mine = session.principal
    return not mine.owner and (mine.nobody or not name.startswith(f"{mine.userid}-"))


def give_up(session: Session) -> None:
    """Take back subscriptions and services that are not allowed any more, and say so."""
    hub = session.hub
    lost = [
        prefix for prefix in session.subscriptions if not hub.access.allows_pattern(session.roles, prefix)
    ]
    for prefix in lost:
        while hub.fanout.unsubscribe(session, prefix) == 0:
            pass
    if lost:
        names = [prefix.decode("utf-8", "replace") for prefix in lost]
        session.tell({"type": "unsubscribed", "subscriptions": names})
    for name in list(session.services):
        if misnamed(session, name) or not hub.access.allows(session.roles, "register", name):
            hub.registrations.remove(session, name, _nobody_asked)
            session.tell({"type": "service", "service": name, "registered": False, "errno": errno.EPERM})


def _nobody_asked(_errnum: int, _text: str) -> None:
    """The client did not ask for the removal, so it gets no response to it."""
