"""The corridor of one web client: what it sends, checked, stamped and forwarded; what it is sent.

A request from a browser to a service behind the upstream, function by function::

    WebSocketLink       one read -> messages (codec)
    Session.received    a batch: so many as the rate allows
    Session._request    a request like an earlier one has its Decision in the cache; else
    decisions.of_request  handled here? allowed? -> the stamped header
    Session.forward     OpenCalls.add, routes replaced by this connection's hop, Upstream.way
    Delivery.take       the next of what a read from the upstream brought for sessions
    Delivery.answered   the response's stack names the session
    Session.answered    OpenCalls.take proves that it was asked for; the hop is taken off; link.send

Rules of this file. The client's stamp and routes are never used: each message leaves with the stamp of its user and
the hop of the connection (RFC 12). Nothing here awaits. Every request that wants an answer gets one.
"""

# compiled: mypyc

from __future__ import annotations

import errno
import logging
import secrets
from typing import TYPE_CHECKING, Any, Final

from broker import __version__
from broker.rates import Bucket
from broker.wire.message import DELIMITER, EVENT, REQUEST, RESPONSE, Message
from broker.wire.parts import encode_part, part_data
from gateway.closes import BAD_CREDENTIAL, BAD_MESSAGE, FLOOD, INTERNAL, MEANINGS, REVOKED
from gateway.events.run import sender
from gateway.principal import Denied
from gateway.sessions import answers, decisions
from gateway.sessions.authorization import AuthorizationFilter, DeliveryFilter
from gateway.sessions.calls import NO_TAG, OpenCalls
from gateway.sessions.provider import Provider
from gateway.sessions.resume import Resumption, session_of, token_for
from gateway.upstream.upstream import UNREACHABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.errors import LinkError
    from broker.transport.link import Link
    from gateway.events.run import Run, SendRun
    from gateway.notices import Notice, Welcome
    from gateway.principal import Principal
    from gateway.sessions.decisions import Decision
    from gateway.sessions.delivery import Delivery
    from gateway.sessions.requests import GatewayService
    from gateway.sessions.sessions import Sessions

log = logging.getLogger("headgate")

CALLING: Final = ("http", "ndjson")
"""Kinds of sessions that make calls over HTTP, one at a time. ``http``: of a connection, with one answer each;
``ndjson``: one call, of which any number come."""
SERVER: Final = f"headgate/{__version__}"
"""How the gateway names itself."""
GONE: Final = "the credential was revoked, or its user is gone or another one"


def _to_nobody(_run: Run) -> None:
    """Where events of a session go that has ended."""


class Session:
    """One connection of a web client.

    Made by ``Sessions.open``; whoever opened it starts the link with its ``receiver``.

    Attributes:
        sessions: those of its process; their ``counters``. delivery: where it sends.
        administration: what answers it as ``gateway``.
        id: public name, 8 hexadecimal digits. front: the route stack of its requests: its secret hop and a delimiter.
        principal: who it is at present; see ``set_principal``. roles, stamp: made from it.
        link, kind, address, opened_at: its connection, what it speaks, from where, since when (wall clock).
        subscriptions: prefix -> how often; the fan-out's.
        send_run: takes its events: ``delivery_filter`` where there is one, else its link.
        calls: its open calls. provider: its services.
        busy: its client reads slowly. ended: nothing is sent to it any more.
        resumption: its way back to live, while it is on it. resumed: it came back, or is coming back.
        refreshing: a fresh credential is checked.
        adding: services whose registration is under way.
        received_msgs, answered_msgs, denied_msgs, dropped: counts of its messages.
    """

    __slots__ = (
        "_bucket",
        "_decisions",
        "_last",
        "_last_head",
        "_last_topic",
        "_pauses",
        "adding",
        "address",
        "administration",
        "answered_msgs",
        "busy",
        "calls",
        "counters",
        "delivery",
        "delivery_filter",
        "denied_msgs",
        "dropped",
        "ended",
        "front",
        "id",
        "kind",
        "link",
        "opened_at",
        "principal",
        "provider",
        "received_msgs",
        "refreshing",
        "resumed",
        "resumption",
        "roles",
        "send_run",
        "sessions",
        "stamp",
        "subscriptions",
    )

    def __init__(
        self,
        sessions: Sessions,
        delivery: Delivery,
        administration: GatewayService,
        principal: Principal,
        link: Link,
        kind: str,
        address: str,
    ) -> None:
        self.sessions: Sessions = sessions
        self.counters = sessions.counters
        self.delivery: Delivery = delivery
        self.administration: GatewayService = administration
        self.link: Link = link
        self.kind: str = kind
        self.address: str = address
        self.id = secrets.token_hex(4)
        self.front = encode_part(secrets.token_hex(16).encode()) + DELIMITER
        self.opened_at = sessions.wall()
        self.subscriptions: dict[bytes, int] = {}
        self.calls = OpenCalls(sessions.settings.limits.in_flight)
        self.delivery_filter = None if sessions.hook is None else DeliveryFilter(self, sessions.hook)
        self.send_run: SendRun = sender(link) if self.delivery_filter is None else self.delivery_filter.send
        self.provider = Provider()
        self.resumption: Resumption | None = None
        self.busy = False
        self.ended = False
        self.refreshing = False
        self.resumed = False
        self.adding = 0
        self.received_msgs = 0
        self.answered_msgs = 0
        self.denied_msgs = 0
        self.dropped = 0
        self.forget_decisions()
        self._pauses = 0
        self._bucket: Bucket | None = None
        self._apply_principal(principal)

    def _apply_principal(self, principal: Principal) -> None:
        self.stamp = decisions.stamp_of(principal)
        self.principal = principal
        self.roles = int.from_bytes(self.stamp[4:], "big")
        self.forget_decisions()
        self.provider.forget_headers()
        limits = self.sessions.settings.limits
        if principal.owner or not limits.msgs_per_s:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = Bucket(limits.msgs_per_s, limits.msgs_burst, self.sessions.clock())

    def forget_decisions(self) -> None:
        """Rights, roles or notices changed: each kind of message is decided anew."""
        self._decisions: dict[bytes, Decision] = {}
        self._last: Decision | None = None
        self._last_head: bytes = b""
        self._last_topic: bytes = b""

    @property
    def hop(self) -> bytes:
        """Its encoded route part; a secret, and of this connection alone."""
        return self.front[:-1]

    @property
    def ready(self) -> bool:
        """Whether a subscription made now is live at once."""
        return self.delivery.upstream.joined and self.resumption is None

    @property
    def receiver(self) -> Session | AuthorizationFilter:
        """What its link hands messages to; not kept here, where the two would be a cycle."""
        hook = self.sessions.hook
        return self if hook is None else AuthorizationFilter(self, hook)

    # -- from the link -------------------------------------------------------------------------

    def received(self, link: Link, messages: list[Message]) -> None:
        """What one read produced, in order; what it makes anybody send leaves in one flush (``Receiver``)."""
        flusher = self.sessions.options.flusher
        outer, flusher.batch = flusher.batch, True
        try:
            self.received_msgs += len(messages)
            left = self._granted(messages)
            if self.delivery.upstream.choked:
                self.delivery.pressure.hold(self)
            for message in messages:
                if self.ended:  # by one of them: a flood, a credential that is revoked
                    break
                kind = message.head[3]
                if kind == RESPONSE:  # somebody waits for it: no rate applies
                    self.provider.responded(self, message)
                elif not left:
                    self._limited(message)
                else:
                    left -= 1
                    if kind == REQUEST:
                        self._request(message)
                    elif kind == EVENT:
                        self._event(message)
                    else:
                        self.drop("control message of a client")
        except Exception as error:
            self.fault(error)
        finally:
            flusher.batch = outer
            if not outer:
                flusher.flush()

    def forgive(self, seconds: float) -> None:
        """This process was stopped for so long: what the client sent meanwhile comes at once."""
        if self._bucket is not None:
            self._bucket.forgive(self.sessions.clock(), seconds)

    def refused(self, message: Message, text: str) -> None:
        """A request that is none: it is answered, and counts as any other."""
        if not self.ended and self.charge(message):
            answers.refuse(self, message, errno.EPROTO, text)

    def charge(self, message: Message) -> bool:
        """Count a message that is refused in front of the session; False: it was above the rate, which was said."""
        self.received_msgs += 1
        if self._granted([message]):
            return True
        self._limited(message)
        return False

    def _granted(self, messages: list[Message]) -> int:
        """How many of ``messages``, responses apart, the rate allows."""
        if self._bucket is None:
            return len(messages)
        wanted = len(messages)
        if self.provider.count or self.provider.names:
            wanted = sum(1 for message in messages if message.head[3] != RESPONSE)
        return self._bucket.grant(self.sessions.clock(), wanted)

    def link_ended(self, link: Link, error: LinkError) -> None:
        """The connection is gone (``Receiver``); with a code of its own, as for a slow reader, or by the client."""
        code: int = getattr(link, "code", 0)
        if code and not self.ended:
            self.counters.ended[code] += 1
        self.detach(str(error))

    def link_choked(self, link: Link, choked: bool) -> None:
        """The client reads slowly, or does again: requests for its services are answered EAGAIN (``Receiver``)."""
        self.busy = choked

    # -- requests ------------------------------------------------------------------------------

    def _request(self, message: Message) -> None:
        head = message.head
        # frames alike that follow each other share these objects (see ``wire.framing``): no table is asked
        if head is self._last_head and message.topic_part is self._last_topic:
            decision = self._last
        else:
            decision = self._decisions.get(message.topic_part + head)
            if decision is not None:
                self._last_head, self._last_topic, self._last = head, message.topic_part, decision
        if decision is None:
            decision = decisions.of_request(self, message)
            if decision is None:
                return
        act = decision.act
        if act is None:
            self.forward(message, decision)
        else:
            act(self, message, decision)

    def forward(self, message: Message, decision: Decision) -> None:
        """Send a request upstream as ``decision`` says, or answer that it cannot be."""
        delivery = self.delivery
        if delivery.upstream.choked and self.provider.names:
            # it is not held, for whoever waits for its answers would wait, too: so what it asks cannot wait, either
            answers.refuse(self, message, errno.EAGAIN, "the upstream does not keep up; retry in 0.1 s")
            return
        tag = message.tag
        if decision.track and not self.calls.add(tag, decision):
            answers.refuse(
                self, message, errno.EAGAIN, f"{self.calls.count} calls wait already: retry in 1 s"
            )
            return
        message.front = self.front
        message.head = decision.head
        if decision.anywhere and delivery.any_rank_retry is not None:
            delivery.any_rank_retry.keep(self, message, decision)
        way = delivery.upstream.way
        if way is not None:
            way(message)
            self.counters.requests += 1
            if decision.notice_pending and self.kind not in CALLING:  # these owe notices for open calls only
                decision.notice_pending = False
                self.calls.owe_notice(bytes(part_data(decision.topic_part) or b""), decision.head, tag)
            return
        if decision.track:
            self.calls.withdraw(tag, decision)
        answers.refuse(self, message, errno.EHOSTUNREACH, UNREACHABLE)

    def answered(self, message: Message) -> None:
        """A response whose route stack is this session's."""
        if not self.calls.take(message):
            self.counters.late += 1
            return
        self.answered_msgs += 1
        self.counters.responses += 1
        message.front = DELIMITER
        self.link.send(message)

    def remember_decision(self, message: Message, decision: Decision) -> None:
        """Keep ``decision`` for messages like this one."""
        if len(self._decisions) >= decisions.CACHE_MAX:
            self.forget_decisions()
        self._decisions[message.topic_part + message.head] = decision

    # -- events --------------------------------------------------------------------------------

    def _event(self, message: Message) -> None:
        decision = self._decisions.get(message.topic_part + message.head) or decisions.of_event(self, message)
        if decision is None:
            return
        delivery = self.delivery
        if delivery.upstream.choked and self.provider.names:  # as in `forward`
            answers.refuse(self, message, errno.EAGAIN, "the upstream does not keep up; retry in 0.1 s")
            return
        size = len(message.payload_part)
        most = self.sessions.settings.limits.event_bytes
        if size > most and not self.principal.owner:
            text = f"an event of {size} bytes (limits.event_bytes are {most})"
            answers.refuse(self, message, errno.EMSGSIZE, text)
            return
        message.front = DELIMITER
        message.head = decision.head
        message.tag = NO_TAG
        way = delivery.upstream.way
        if way is not None:
            way(message)
            self.counters.published += 1
            if delivery.pressure.shut:
                delivery.pressure.published(self, message)
        else:
            answers.refuse(self, message, errno.EHOSTUNREACH, UNREACHABLE)

    def sees_topic(self, topic: bytes) -> bool:
        """Whether the access rules let it see events of exactly this topic."""
        return self.sessions.access.allows(self.roles, "subscribe", topic)

    def set_paused(self, on: bool) -> None:
        """Do not read the client, or read it again once as often as it was held: it has published too much, or the
        upstream takes no more.
        """
        self._pauses += 1 if on else -1
        if on and self._pauses == 1:
            self.link.pause()
        elif not self._pauses and not self.ended:
            self.link.resume()

    def drop(self, reason: str) -> None:
        """Count a message that goes nowhere."""
        self.dropped += 1
        self.counters.dropped[reason] += 1

    def _limited(self, message: Message) -> None:
        """A message above the rate: say when to come back; a client that never listens is closed."""
        assert self._bucket is not None
        wait_s = self._bucket.refuse()
        self.counters.limited += 1
        text = f"more than {self.sessions.settings.limits.msgs_per_s:g} messages a second: retry in {wait_s:.2f} s"
        if self._bucket.flooding:
            self.close(FLOOD, text)
        elif message.head[3] in (REQUEST, EVENT):
            answers.refuse(self, message, errno.EAGAIN, text)
        else:
            self.drop("message above the rate")

    # -- control objects -----------------------------------------------------------------------

    def control(self, obj: dict[str, Any]) -> None:
        """A control object of the client, as ``codecs.control`` checked it: ``ping``, ``refresh`` or ``resume``. Any
        other type ends the session.
        """
        if not self.ended:
            self.attempt(self._control, obj)

    def _control(self, obj: dict[str, Any]) -> None:
        # it costs as a message does: a refresh is a signature to check, a resume a replay
        if self._bucket is not None and self._bucket.take(self.sessions.clock()):
            if self._bucket.flooding:
                self.close(FLOOD, "control objects above the rate")
            self.drop("control object above the rate")
            return
        kind = obj.get("type")
        if kind == "ping":
            self.tell({"type": "pong"})
        elif kind == "refresh" and not self.refreshing:
            self.sessions.refresh(self, str(obj.get("token", "")))
        elif kind == "resume" and not self.resumed and not self.subscriptions:
            # where the client was is in what it says; its token only names the connection that it replaces, and one of
            # another user, or of a gateway that was another one, names none
            former = session_of(self.sessions.key, self.principal, str(obj.get("token", "")))
            if former is not None:
                self.administration.supersede(self, former)
            self.resume(str(obj["epoch"]), int(obj["sequence"]), list(obj["subscriptions"]))
        else:
            self.close(BAD_MESSAGE, f"a control object of type {str(kind)[:32]!r} has no place here")

    def welcome(self) -> Welcome:
        """The first control object of a connection: who it is here, and what it may; its ``resume``, ``epoch`` and
        ``sequence`` make a ``resume`` object later.
        """
        mine, history = self.principal, self.delivery.history
        limits = self.sessions.settings.limits
        return {
            "type": "welcome",
            "session": self.id,
            "user": mine.name,
            "userid": mine.userid,
            "roles": mine.role_names,
            "limits": {
                "message_bytes": limits.message_bytes,
                "in_flight": limits.in_flight,
                "msgs_per_s": 0 if mine.owner else limits.msgs_per_s,
                "subscriptions": limits.subscriptions,
                "services": limits.services,
            },
            "resume": token_for(self.sessions.key, mine, self.id),
            "epoch": history.epoch or None,
            "sequence": history.last,
            "server": SERVER,
            "upstream": self.delivery.upstream.state,
            "ping_s": limits.ping_s,
            "expires": mine.expires,
        }

    def resume(self, epoch: str, sequence: int, prefixes: Sequence[str]) -> None:
        """Subscribe to ``prefixes`` again, from event ``sequence`` of ``epoch`` on; ``resumed`` tells the outcome.

        What was missed is sent before that, live events come after. Once per session, before its first subscription.
        """
        self.resumed = True
        self.resumption = Resumption(self, epoch, sequence, prefixes)
        self.resumption.advance()

    def tell(self, obj: Notice) -> None:
        """Send a control object; links without a control channel ignore it."""
        tell = getattr(self.link, "tell", None)
        if tell is not None and not self.ended:
            tell(obj)

    # -- changes and the end -------------------------------------------------------------------

    def set_principal(self, principal: Principal) -> None:
        """A fresh credential of the same user: roles and expiry may be others from now on.

        Raises:
            Denied: it is another user's (close code 4500).
        """
        mine = self.principal
        if (principal.name, principal.userid) != (mine.name, mine.userid):
            raise Denied(
                f"a credential of {principal.name!r} on a connection of {mine.name!r}",
                public="the credential is of another user",
                status=403,
                close=BAD_CREDENTIAL,
            )
        self._apply_principal(principal)
        self.delivery.deadlines.watch(self)
        self.delivery.fanout.changed(self)
        self.withdraw_denied()

    def recheck_principal(self) -> None:
        """Rules, and perhaps users, are others now: who is nobody any more goes, others lose what is denied now."""
        now = self.sessions.identity.again(self.principal)
        if now is None:
            self.close(REVOKED, GONE)
        elif now == self.principal:
            self.forget_decisions()
            self.withdraw_denied()
        else:
            self.set_principal(now)

    def withdraw_denied(self) -> None:
        """Take back subscriptions and services that are not allowed any more, and say so."""
        access, delivery = self.sessions.access, self.delivery
        lost = [prefix for prefix in self.subscriptions if not access.allows_pattern(self.roles, prefix)]
        for prefix in lost:
            while delivery.fanout.unsubscribe(self, prefix) == 0:
                pass
        if lost:
            names = [prefix.decode("utf-8", "replace") for prefix in lost]
            self.tell({"type": "unsubscribed", "subscriptions": names})
        for name in list(self.provider.names):
            if not self.owns_service_name(name) or not access.allows(self.roles, "register", name):
                delivery.registrations.remove(self, name)
                self.tell({"type": "service", "service": name, "registered": False, "errno": errno.EPERM})

    def owns_service_name(self, name: str) -> bool:
        """Whether ``name`` is one for its services, whatever the rules say: a guest's names begin with its userid and a
        dash (RFC 12), and nobody, who has no userid to itself, has none.
        """
        mine = self.principal
        return mine.owner or (not mine.nobody and name.startswith(f"{mine.userid}-"))

    def attempt(self, work: Callable[..., object], *arguments: object) -> None:
        """Do ``work`` for this session, where it is one of several: a fault of it costs this one only."""
        try:
            work(*arguments)
        except Exception as error:
            self.fault(error)

    def fault(self, error: Exception) -> None:
        """A fault of ours costs the session it happened with, and nobody else."""
        self.counters.faults += 1
        log.error("session %s of %s: a fault", self.id, self.principal.name, exc_info=error)
        self.close(INTERNAL, MEANINGS[INTERNAL].text)

    def close(self, code: int, reason: str) -> None:
        """Close the client's connection with a code of ``closes``; idempotent."""
        if self.ended:
            return
        self.counters.ended[code] += 1
        try:
            self.detach(reason)
        finally:  # else its client would wait at a connection that nobody hears any more
            close_with = getattr(self.link, "close_with", None)
            if close_with is not None:
                close_with(code, reason)
            else:
                self.link.close(reason)

    def detach(self, reason: str) -> None:
        """Settle its affairs: nothing is sent to it any more, and nobody waits for it; idempotent."""
        if self.ended:
            return
        self.ended = True
        delivery = self.delivery
        self.counters.events_dropped += self.link.outbox.dropped_events
        self.sessions.forget(self)
        delivery.forget(self)
        if self.resumption is not None:
            self.resumption.cancel()
            self.resumption = None
        if self.delivery_filter is not None:
            self.delivery_filter.clear()
        # names first: the upstream routes no more requests here, so that what is answered now is all there will be
        delivery.registrations.remove_session(self)
        self.provider.answer_all(self, "the provider is gone")
        if self.kind in CALLING:
            self.calls.owe_notices_of_open()
        for notice in self.calls.notices(self.front):
            delivery.upstream.send(notice)
        delivery.upstream.forget(self.front)  # behind the notices, which go by the link that it ends
        self.calls.clear()
        self.forget_decisions()
        self.send_run = _to_nobody  # it was the link's, which would be in a cycle with this
        log.debug("session %s of %s ended: %s", self.id, self.principal.name, reason)

    def upstream_lost(self, text: str) -> None:
        """Nothing that was asked will be answered: say so to whoever waits."""
        self.provider.forget()
        self.fail_calls(text)

    def fail_calls(self, text: str) -> None:
        """No open call will be answered: say so to whoever waits."""
        waiting = self.calls.all()
        self.calls.clear()
        self.forget_decisions()
        for tag, call in waiting:
            answers.refuse(
                self, Message(DELIMITER, call.topic_part, b"", call.head, tag), errno.EHOSTUNREACH, text
            )
