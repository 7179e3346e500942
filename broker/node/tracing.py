"""Message tracing: hands the messages on the links of this broker, and of its built-in services, to watchers.

::

    link --received--> Tracing --received--> Broker ... port.send --> Tracing --> link
                          |  rx                                          |  tx
                          +-----------> notes ----> watcher <------------+

Theory of operation. Nobody looks on as a rule, and then nothing of this is in a message's way: it is put in front of
what the corridor calls (the receiver of each link, ``Port.send``, and at the own end ``Broker.answer``, ``publish`` and
``OwnCalls.send``), and taken away again. What passes is noted with its time and told in the next tick of the loop, when
its batch has left, so that what the watcher does is in none of its times; at the latest before anything else is
received, so that a later request is answered later.

A message *arrives* when its transport hands it over, before it waits for anything, and *departs* when it is queued at
a link: what it waits there is time on the link.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from broker.errors import LinkError
from broker.routing.port import CLIENT, Port
from broker.services.context import TracedMessage, Watcher
from broker.transport.link import Link
from broker.wire.message import Message

if TYPE_CHECKING:
    from broker.node.broker import Broker

log = logging.getLogger("headgate")

Send = Callable[[Message], None]


class Tracing:
    """The watchers of one broker; between its links and it while somebody watches them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._links: Watcher | None = None
        self._clients = False
        self._services: Watcher | None = None
        self._sends: dict[Port, Send] = {}
        """Where we stand in front of ``Port.send``: what it was."""
        self._notes: list[tuple[Watcher, TracedMessage]] = []
        self._own: tuple[Send, Send, Callable[[Message], int], Send] | None = None
        """Where we stand at the own end: what was there."""
        broker.on_attached.append(self._attached)
        broker.on_departed.append(self._departed)

    # -- links ---------------------------------------------------------------------------------

    def watch_links(self, watcher: Watcher | None, clients: bool) -> None:
        """Tell ``watcher`` of what passes links from now on; None: tell nobody."""
        self._links, self._clients = watcher, clients
        self._broker.receiver = self._broker if watcher is None else self
        for port in self._broker.router.ports:
            if port.link is None:
                continue
            if port.link.receiver in (self, self._broker):
                port.link.receiver = self._broker.receiver
            wanted, plugged = self._watched(port), port in self._sends
            if wanted and not plugged:
                self._plug(port)
            elif plugged and not wanted:
                port.send = self._sends.pop(port)

    def _watched(self, port: Port) -> bool:
        return self._links is not None and (self._clients or port.kind != CLIENT)

    def _attached(self, port: Port) -> None:
        if port.link is not None and self._watched(port):
            self._plug(port)

    def _departed(self, port: Port, _error: LinkError) -> None:
        self._sends.pop(port, None)

    def _plug(self, port: Port) -> None:
        send = self._sends[port] = port.send

        def look_and_send(message: Message) -> None:
            self._note(self._tell_of_link, "tx", port, message)
            send(message)

        port.send = look_and_send

    # -- Receiver: in front of the broker ------------------------------------------------------

    def received(self, link: Link, messages: list[Message]) -> None:
        """One read's messages, before the broker gets them."""
        # a message that asks for the trace must find all that passed before it
        if self._notes:
            self._tell()
        port: Port = link.data
        if self._watched(port):
            for message in messages:
                self._note(self._tell_of_link, "rx", port, message)
        self._broker.received(link, messages)

    def link_ended(self, link: Link, error: LinkError) -> None:
        """For the broker."""
        self._broker.link_ended(link, error)

    def link_choked(self, link: Link, choked: bool) -> None:
        """For the broker."""
        self._broker.link_choked(link, choked)

    # -- built-in services ---------------------------------------------------------------------

    def watch_services(self, watcher: Watcher | None) -> None:
        """Tell ``watcher`` of what built-in services get and say from now on; None: tell nobody."""
        self._services = watcher
        if watcher is not None and self._own is None:
            self._plug_own_end()
        elif watcher is None and self._own is not None:
            broker = self._broker
            broker.own.send, broker.answer, broker.publish, broker.calls.send = self._own
            self._own = None

    def _plug_own_end(self) -> None:
        broker, own = self._broker, self._broker.own
        get, answer, publish, ask = self._own = (own.send, broker.answer, broker.publish, broker.calls.send)

        def look_and_get(message: Message) -> None:
            self._note(self._tell_of_service, "rx", own, message)
            get(message)

        def look_and_answer(message: Message) -> None:
            self._note(self._tell_of_service, "tx", own, message)
            answer(message)

        def look_and_publish(message: Message) -> int:
            self._note(self._tell_of_service, "tx", own, message)
            return publish(message)

        def look_and_ask(message: Message) -> None:
            self._note(self._tell_of_service, "tx", own, message)
            ask(message)

        own.send, broker.answer, broker.publish = look_and_get, look_and_answer, look_and_publish
        broker.calls.send = look_and_ask

    # -- what is told --------------------------------------------------------------------------

    def _note(self, tell: Watcher, prefix: str, port: Port, message: Message) -> None:
        if not self._notes:
            asyncio.get_running_loop().call_soon(self._tell)
        self._notes.append((tell, TracedMessage(prefix, port, message, time.time(), time.monotonic())))

    def _tell(self) -> None:
        notes, self._notes = self._notes, []
        for tell, passed in notes:
            try:
                tell(passed)
            except Exception:  # a watcher's mistake is no reason to end the link that is read
                log.exception("telling of %r failed", passed.message)

    def _tell_of_link(self, passed: TracedMessage) -> None:
        if self._links is not None:
            self._links(passed)

    def _tell_of_service(self, passed: TracedMessage) -> None:
        if self._services is not None:
            self._services(passed)
