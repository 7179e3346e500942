"""Credit: what listeners say they have room for, and that senders wait for those that are slow.

A listener registers at a control socket and is given its messages there, within its credit::

    OPEN (listener)            credit: room for so many
    CREDIT (listener) word n   room for n more; as many of the oldest that it was given are confirmed. Counts only once
                               its process has read so much that its outbox is within the limits of a queue

While the queue of a listener is nearly full and it still gives credit, nothing more is read (``back_pressure``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.oslo.names import Reason
from broker.oslo.proxy.back_pressure import FULL, BackPressure
from broker.oslo.proxy.credited_queue import CreditedQueue
from broker.oslo.proxy.registration import CannotOpen, RegistrationSocket, ServerLink
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.counters import Counters
from broker.oslo.reactor.socket import Frames

if TYPE_CHECKING:
    from broker.oslo.proxy.frontend import Frontend


class ListenerCredit:
    """The credit of one pipeline's listeners.

    Args:
        reactor: whose clock.
        frontend: what is not read while a queue is nearly full.
        counters: ``credits``, ``credit_unknown``, and those of ``BackPressure``.
        give: a listener has room for so many more: hands out what waits for it; returns its queue, None: it is gone.
    """

    def __init__(
        self,
        reactor: Reactor,
        frontend: Frontend,
        counters: Counters,
        give: Callable[[str, int], CreditedQueue[Any] | None],
    ) -> None:
        self._counters = counters
        self._give = give
        self._back_pressure = BackPressure(reactor, frontend, counters)
        self._held: dict[str, int] = {}

    def begin(self, registration: RegistrationSocket) -> None:
        """Here they register."""
        self._registration = registration
        registration.socket.flushed = self.flushed

    def _reads(self, link: ServerLink) -> bool:
        return self._registration.socket.has_room_for(link.rid)

    def check(self, link: ServerLink) -> None:
        """Whether a listener of that process may begin, with credit of its own.

        Raises:
            CannotOpen: it does not read what it is sent.
        """
        if not self._reads(link):
            raise CannotOpen(Reason.BUSY, "saw a process that does not read what it is sent")

    def on_credit(self, link: ServerLink, listener: str, messages: int) -> None:
        """CREDIT of a process."""
        if listener in link.listeners:
            self._counters.count("credits")
            self._add_credit(link, listener, messages)
        else:
            self._counters.count("credit_unknown")  # it has just ended

    def _add_credit(self, link: ServerLink, listener: str, messages: int) -> None:
        """Whoever gives credit has read what it was given; what still waits for its process says otherwise."""
        messages += self._held.pop(listener, 0)
        if not self._reads(link):
            self._held[listener] = messages
            return
        queue = self._give(listener, messages)
        if queue is not None and messages:
            queue.moves += 1
            self._back_pressure.ease(queue)

    def flushed(self, frames: Frames) -> None:
        """Something that waited was given to a process: to be told, if ``socket.flushed`` tells somebody else."""
        link = self._registration.links.get(frames[0]) if self._held else None
        if link is not None and self._reads(link):
            for listener in link.listeners:
                if listener in self._held:
                    self._add_credit(link, listener, 0)

    def waits(self, queue: CreditedQueue[Any]) -> None:
        """Something was put into ``queue``: let senders wait before there is no room for it."""
        if len(queue.queue) == 1:
            queue.moves += 1
        if queue.filled >= FULL:
            self._back_pressure.press(queue)

    def forget(self, queue: CreditedQueue[Any]) -> None:
        """Its listener has ended."""
        self._held.pop(queue.id, None)
        self._back_pressure.forget(queue)

    def status(self) -> dict[str, Any]:
        """Whether senders wait, and for how many listeners."""
        return self._back_pressure.status()

    def close(self) -> None:
        """No more timers. Harmless twice."""
        self._back_pressure.close()
