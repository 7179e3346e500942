"""The corridor of one web client: what it sends, checked, stamped and forwarded; what it is sent.

A request from a browser to a service behind the upstream, function by function::

    WebSocketLink       one read -> messages (codec)
    Session.received    a batch: so many as the rate allows
    Session._request    a request like an earlier one has its Decision in the cache; else
    decisions.of_request  handled here? allowed? -> the stamped header
    Session.forward     Calls.add, routes replaced by this connection's hop, Upstream.send
    Hub.answered        the response's stack names the session
    Session.answered    Calls.take proves that it was asked for; the hop is taken off; link.send

Rules of this file. The client's stamp and routes are never used: each message leaves with the stamp of its user and
the hop of the connection (RFC 12). Nothing here awaits. Every request that wants an answer gets one.
"""

# compiled: mypyc

from __future__ import annotations

import errno
import logging
import secrets
from typing import TYPE_CHECKING, Any, Final

from broker.rates import Bucket
from broker.wire.message import DELIMITER, EVENT, REQUEST, RESPONSE, Message
from broker.wire.parts import encode_part, part_data
from gateway.closes import FLOOD
from gateway.events.run import sender
from gateway.sessions import answers, controls, decisions, listing, rights
from gateway.sessions.calls import NO_TAG, Calls
from gateway.sessions.delivery_filter import DeliveryFilter
from gateway.sessions.provider import Provider
from gateway.sessions.resume import Resumption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.errors import LinkError
    from broker.transport.link import Link
    from gateway.events.run import Run, SendRun
    from gateway.hub import Hub
    from gateway.principal import Principal
    from gateway.sessions.decisions import Decision
    from gateway.sessions.resume import Done

log = logging.getLogger("headgate")

CALLING: Final = ("http", "ndjson")
"""Kinds of sessions that make calls over HTTP, one at a time. ``http``: of a connection, with one answer each;
``ndjson``: one call, of which any number come."""


def _to_nobody(_run: Run) -> None:
    """Where events of a session go that has ended."""


class Session:
    """One connection of a web client.

    Made by ``Hub.open``; whoever opened it starts the link with it as the receiver.

    Attributes:
        id: public name, 8 hexadecimal digits. front: the route stack of its requests: its secret hop and a delimiter.
        principal: who it is at present; see ``set_principal``. roles, stamp: made from it.
        link, kind, address, opened_at: its connection, what it speaks, from where, since when (wall clock).
        subscriptions: prefix -> how often; the fan-out's.
        send_run: takes its events: ``delivery_filter`` where there is one, else its link.
        calls: its open calls. provider: its services.
        busy: it reads slowly. ended: it has ended.
        resumption: on its way back to live, or None. resumed: it was, or is. refreshing: a fresh credential is checked.
        adding: services whose registration is under way.
        received_msgs, answered_msgs, denied_msgs, dropped: counts of its messages.
    """

    __slots__ = (
        "_bucket",
        "_decisions",
        "_pauses",
        "adding",
        "address",
        "answered_msgs",
        "busy",
        "calls",
        "delivery_filter",
        "denied_msgs",
        "dropped",
        "ended",
        "front",
        "hub",
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
        "stamp",
        "subscriptions",
    )

    def __init__(self, hub: Hub, principal: Principal, link: Link, kind: str, address: str) -> None:
        self.hub = hub
        self.link = link
        self.kind = kind
        self.address = address
        self.id = secrets.token_hex(4)
        self.front = encode_part(secrets.token_hex(16).encode()) + DELIMITER
        self.opened_at = hub.wall()
        self.subscriptions: dict[bytes, int] = {}
        self.calls = Calls(hub.settings.limits.in_flight)
        self.delivery_filter = None if hub.hook is None else DeliveryFilter(self, hub.hook)
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
        self._decisions: dict[bytes, Decision] = {}
        self._pauses = 0
        self._bucket: Bucket | None = None
        self._apply_principal(principal)

    def _apply_principal(self, principal: Principal) -> None:
        self.stamp = decisions.stamp_of(principal)
        self.principal = principal
        self.roles = int.from_bytes(self.stamp[4:], "big")
        self._decisions = {}
        self.provider.stamp_changed()
        limits = self.hub.settings.limits
        if principal.owner or not limits.msgs_per_s:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = Bucket(limits.msgs_per_s, limits.msgs_burst, self.hub.clock())

    @property
    def hop(self) -> bytes:
        """Its encoded route part; a secret, and of this connection alone."""
        return self.front[:-1]

    @property
    def services(self) -> set[str]:
        """Names of the services it provides."""
        return self.provider.names

    @property
    def ready(self) -> bool:
        """Whether a subscription made now is live at once."""
        return self.hub.upstream.joined and self.resumption is None

    # -- from the link -------------------------------------------------------------------------

    def received(self, link: Link, messages: list[Message]) -> None:
        """What one read produced, in order; what it makes anybody send leaves in one flush (``Receiver``)."""
        flusher = self.hub.options.flusher
        outer, flusher.batch = flusher.batch, True
        try:
            self._run(messages)
        except Exception as error:
            self.hub.fault(self, error)
        finally:
            flusher.batch = outer
            if not outer:
                flusher.flush()

    def _run(self, messages: list[Message]) -> None:
        self.received_msgs += len(messages)
        left = self._granted(messages)
        if self.hub.upstream.choked:
            self.hub.pause(self)
        for message in messages:
            if self.ended:
                break
            kind = message.head[3]
            if kind == RESPONSE:  # somebody waits for it: no rate applies
                self.provider.responded(self, message)
            elif not left:
                self._limited(message)
            elif kind == REQUEST:
                left -= 1
                self._request(message)
            elif kind == EVENT:
                left -= 1
                self._event(message)
            else:
                left -= 1
                self.drop("control message of a client")

    def forgive(self, seconds: float) -> None:
        """This process was stopped for so long: what the client sent meanwhile comes at once."""
        if self._bucket is not None:
            self._bucket.forgive(self.hub.clock(), seconds)

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
        return self._bucket.grant(self.hub.clock(), wanted)

    def link_ended(self, link: Link, error: LinkError) -> None:
        """The connection is gone (``Receiver``); with a code of its own, as for a slow reader, or by the client."""
        code: int = getattr(link, "code", 0)
        if code and not self.ended:
            self.hub.counters.ended[code] += 1
        self.detach(str(error))

    def link_choked(self, link: Link, choked: bool) -> None:
        """The client reads slowly, or does again: requests for its services are answered EAGAIN (``Receiver``)."""
        self.busy = choked

    # -- requests ------------------------------------------------------------------------------

    def _request(self, message: Message) -> None:
        decision = self._decisions.get(message.topic_part + message.head)
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
        hub = self.hub
        if (
            hub.upstream.choked and self.provider.names
        ):  # not paused: whoever waits for its answers would wait, too
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
        if decision.anywhere and hub.elsewhere is not None:
            hub.elsewhere.sending(self, message, decision)
        if hub.upstream.send(message):
            hub.counters.requests += 1
            if decision.notice_pending and self.kind not in CALLING:  # these owe notices for open calls only
                decision.notice_pending = False
                self.calls.arm(bytes(part_data(decision.topic_part) or b""), decision.head, tag)
            return
        if decision.track:
            self.calls.withdraw(tag, decision)
        answers.refuse(self, message, errno.EHOSTUNREACH, hub.unreachable)

    def answered(self, message: Message) -> None:
        """A response whose route stack is this session's."""
        if not self.calls.take(message):
            self.hub.counters.late += 1
            return
        self.answered_msgs += 1
        self.hub.counters.responses += 1
        message.front = DELIMITER
        self.link.send(message)

    def remember(self, message: Message, decision: Decision) -> None:
        """Keep ``decision`` for messages like this one."""
        if len(self._decisions) >= decisions.CACHE_MAX:
            self._decisions = {}
        self._decisions[message.topic_part + message.head] = decision

    def redecide(self) -> None:
        """Rights, roles or notices changed: decide anew."""
        self._decisions = {}

    # -- events --------------------------------------------------------------------------------

    def _event(self, message: Message) -> None:
        decision = self._decisions.get(message.topic_part + message.head) or decisions.of_event(self, message)
        if decision is None:
            return
        hub = self.hub
        if hub.upstream.choked and self.provider.names:
            answers.refuse_event(self, message, errno.EAGAIN, "the upstream does not keep up; retry in 0.1 s")
            return
        size = len(message.payload_part)
        if size > hub.settings.limits.event_bytes and not self.principal.owner:
            text = f"an event of {size} bytes (limits.event_bytes are {hub.settings.limits.event_bytes})"
            answers.refuse_event(self, message, errno.EMSGSIZE, text)
            return
        message.front = DELIMITER
        message.head = decision.head
        message.tag = NO_TAG
        if hub.upstream.send(message):
            hub.counters.published += 1
            if hub.publishers.shut:
                hub.publishers.published(self, message)
        else:
            answers.refuse_event(self, message, errno.EHOSTUNREACH, hub.unreachable)

    def sees_topic(self, topic: bytes) -> bool:
        """Whether the access rules let it see events of exactly this topic."""
        return self.hub.access.allows(self.roles, "subscribe", topic)

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
        self.hub.counters.dropped[reason] += 1

    def _limited(self, message: Message) -> None:
        """A message above the rate: say when to come back; a client that never listens is closed."""
        assert self._bucket is not None
        wait_s = self._bucket.refuse()
        self.hub.counters.limited += 1
        text = f"more than {self.hub.settings.limits.msgs_per_s:g} messages a second: retry in {wait_s:.2f} s"
        if self._bucket.flooding:
            self.close(FLOOD, text)
        elif message.head[3] == REQUEST:
            answers.refuse(self, message, errno.EAGAIN, text)
        elif message.head[3] == EVENT:
            answers.refuse_event(self, message, errno.EAGAIN, text)
        else:
            self.drop("message above the rate")

    # -- control objects -----------------------------------------------------------------------

    def control(self, obj: dict[str, Any]) -> None:
        """A control object of the client: ``ping``, ``refresh`` or ``resume`` (see ``controls``)."""
        if self.ended:
            return
        if self._bucket is not None and self._bucket.take(self.hub.clock()):
            if self._bucket.flooding:
                self.close(FLOOD, "control objects above the rate")
            self.drop("control object above the rate")
            return
        controls.handle(self, obj)

    def resume(self, epoch: str, sequence: int, prefixes: Sequence[str], done: Done) -> None:
        """Subscribe to ``prefixes`` again, from event ``sequence`` of ``epoch`` on; ``done`` hears the outcome.

        What was missed is sent before ``done`` is called; live events come after. ``done`` may be called within this
        call. Once per session, before its first subscription.
        """
        self.resumed = True
        self.resumption = Resumption(self, epoch, sequence, prefixes, done)
        self.resumption.advance()

    def tell(self, obj: dict[str, Any]) -> None:
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
        rights.check_same_user(self, principal)
        self._apply_principal(principal)
        self.hub.deadlines.watch(self)
        self.hub.fanout.changed(self)
        self.recheck()

    def recheck(self) -> None:
        """Roles or rules changed: give up what is not allowed any more, and say so."""
        self.redecide()
        rights.give_up(self)

    def close(self, code: int, reason: str) -> None:
        """Close the client's connection with a code of ``closes``; idempotent."""
        if self.ended:
            return
        self.hub.counters.ended[code] += 1
        self.detach(reason)
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
        hub = self.hub
        hub.counters.events_dropped += self.link.outbox.dropped_events
        hub.forget(self)
        if self.resumption is not None:
            self.resumption.cancel()
            self.resumption = None
        if self.delivery_filter is not None:
            self.delivery_filter.clear()
        hub.registrations.remove_session(self)
        self.provider.answer_all(self, "the provider is gone")
        if self.kind in CALLING:
            self.calls.arm_open()
        for notice in self.calls.notices(self.front):
            hub.upstream.send(notice)
        hub.upstream.forget(self.front)
        self.calls.clear()
        self._decisions.clear()
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
        self.redecide()
        for tag, call in waiting:
            answers.refuse(
                self, Message(DELIMITER, call.topic_part, b"", call.head, tag), errno.EHOSTUNREACH, text
            )

    def welcome(self) -> dict[str, Any]:
        """The first control object of a connection: who it is here, and what it may."""
        return controls.welcome(self)

    def info(self) -> dict[str, Any]:
        """Its row in ``gateway.sessions``."""
        return listing.session(self)
