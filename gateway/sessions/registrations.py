"""Which session serves which name, in step with the upstream (deployed ``service.add`` and ``service.remove``).

The gateway's own link registers the names, so that requests for them arrive there; each registration carries the
stamp of its session, so that the upstream applies its own rule for guests' names once more. Answers come back in
order with the requests they make possible: a provider hears that it is registered before its first request.
"""

from __future__ import annotations

import errno
import logging
import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from broker.wire.message import DELIMITER, Message, request
from broker.wire.parts import encode_part, part_data
from broker.wire.payload import any_text, encode_json
from broker.wire.topic import NOTICE_MAX_BYTES, service_of
from gateway.upstream.upstream import UNREACHABLE

if TYPE_CHECKING:
    from gateway.sessions.pressure import Pressure
    from gateway.sessions.session import Session
    from gateway.sessions.sessions import Sessions
    from gateway.upstream.upstream import Upstream

log = logging.getLogger("headgate")

TOPICS_MAX: Final = 1024
"""Topics whose provider is remembered; beyond it all are forgotten and found again as needed."""
Done: TypeAlias = Callable[[int, str], None]
"""Gets the errno of a registration, 0 when it was made, and the upstream's text."""


def _nobody_waits(_errnum: int, _text: str) -> None:
    """Whoever had the name did not ask for its removal, or is gone."""


class Registration:
    """A name of one session; ``live`` once the upstream has confirmed it."""

    __slots__ = ("live", "name", "session")

    def __init__(self, name: str, session: Session) -> None:
        self.name = name
        self.session = session
        self.live = False


class Registrations:
    """The names of all sessions.

    Args:
        sessions: whose they are. upstream: knows them, too. pressure: holds no provider.

    Attributes:
        front: route stack of its own requests: answers to it come here.
    """

    def __init__(self, sessions: Sessions, upstream: Upstream, pressure: Pressure) -> None:
        self._sessions = sessions
        self._upstream = upstream
        self._pressure = pressure
        self._names: dict[bytes, Registration] = {}
        self._by_session: dict[Session, dict[bytes, Registration]] = {}
        self._topics: dict[bytes, Registration] = {}  # whose a topic is, found before; dropped with any name
        self._asked: dict[bytes, tuple[Session, Done]] = {}
        self._tag = 0
        self.front: bytes = encode_part(secrets.token_hex(16).encode()) + DELIMITER

    def names(self) -> dict[str, Session]:
        """Name -> session, of those that are confirmed."""
        return {one.name: one.session for one in self._names.values() if one.live}

    # -- from the upstream ---------------------------------------------------------------------

    def requested(self, message: Message) -> bool:
        """Deliver a request to the session that serves it; False when none does."""
        found = self._topics.get(message.topic_part) or self._find(message.topic_part)
        if found is None:
            return False
        found.session.provider.requested(found.session, message)
        return True

    def _find(self, topic_part: bytes) -> Registration | None:
        found = self._names.get(service_of(bytes(part_data(topic_part) or b"")))
        if found is not None and len(topic_part) <= NOTICE_MAX_BYTES:
            # longer ones would make the memory unbounded
            if len(self._topics) >= TOPICS_MAX:
                self._topics = {}
            self._topics[topic_part] = found
        return found

    def answered(self, message: Message) -> None:
        """The upstream answered a registration."""
        asked = self._asked.pop(message.tag, None)
        if asked is None:
            self._sessions.counters.late += 1
        else:
            session, done = asked
            session.attempt(done, message.errnum, any_text(message.payload))

    def lost(self, reason: str) -> None:
        """The upstream is gone: nothing that was asked will be answered."""
        asked, self._asked = self._asked, {}
        for session, done in asked.values():
            session.attempt(done, errno.EHOSTUNREACH, reason)

    def restore(self) -> None:
        """A fresh link: register every name again; who lost its name to somebody else meanwhile is told."""
        for one in list(self._names.values()):
            if one.live:
                one.live = False
                self._ask(one, "service.add", partial(self._restored, one))

    # -- from sessions -------------------------------------------------------------------------

    def add(self, session: Session, name: str, done: Done) -> None:
        """Register ``name`` for ``session``; ``done`` hears the outcome, now or later."""
        key = name.encode()
        if key in self._names:
            done(errno.EEXIST, "")
            return
        one = self._names[key] = Registration(name, session)
        self._by_session.setdefault(session, {})[key] = one
        self._ask(one, "service.add", partial(self._added, one, done))

    def remove(self, session: Session, name: str, done: Done = _nobody_waits) -> None:
        """Take back ``name``, which was confirmed once; calls that its provider still owes stay open."""
        key = name.encode("utf-8", "surrogateescape")
        one = self._names.get(key)
        if one is None or one.session is not session or name not in session.provider.names:
            done(errno.ENOENT, "")
            return
        self._forget(one)
        self._ask(one, "service.remove", done)

    def remove_session(self, session: Session) -> None:
        """``session`` is gone: remove its names, confirmed or not. Nobody waits for the answer, but it is asked for: a
        deployed connector that owes none forgets to free the name, and refuses it until its link ends.
        """
        for one in list(self._by_session.get(session, {}).values()):
            self._forget(one)
            self._ask(one, "service.remove", _nobody_waits)

    # -- inside --------------------------------------------------------------------------------

    def _added(self, one: Registration, done: Done, errnum: int, text: str) -> None:
        if self._names.get(one.name.encode()) is not one:
            return  # its session is gone, and the name was removed right behind
        if errnum:
            self._forget(one)
        else:
            self._confirm(one)
        done(errnum, text)

    def _restored(self, one: Registration, errnum: int, text: str) -> None:
        if self._names.get(one.name.encode()) is not one:
            return  # taken back meanwhile
        if not errnum:
            self._confirm(one)
        elif errnum == errno.EHOSTUNREACH:
            one.live = True  # lost once more: the next fresh link tries again
        else:
            self._forget(one)
            log.warning(
                "service %s of %s is lost: errno %d %s", one.name, one.session.principal.name, errnum, text
            )
            one.session.tell({"type": "service", "service": one.name, "registered": False, "errno": errnum})

    def _confirm(self, one: Registration) -> None:
        one.live = True
        one.session.provider.names.add(one.name)
        self._pressure.release(one.session)  # a provider is never held: others wait for its answers

    def _forget(self, one: Registration) -> None:
        key = one.name.encode()
        self._names.pop(key, None)
        names = self._by_session.get(one.session, {})
        names.pop(key, None)
        if not names:
            self._by_session.pop(one.session, None)
        self._topics = {}
        one.session.provider.names.discard(one.name)

    def _ask(self, one: Registration, topic: str, done: Done) -> None:
        self._tag = self._tag % 0xFFFFFFFF + 1
        tag = self._tag.to_bytes(4, "big")
        self._asked[tag] = (one.session, done)
        message = request(topic, encode_json({"service": one.name}))
        message.front = self.front
        message.head = message.head[:5] + one.session.stamp + message.head[13:]
        message.tag = tag
        if not self._upstream.send(message):
            del self._asked[tag]
            done(errno.EHOSTUNREACH, UNREACHABLE)
