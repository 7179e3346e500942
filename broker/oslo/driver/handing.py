"""How a server of oslo.messaging gets its messages: straight from the thread of the sockets, or by a thread that polls.

A thread that polls costs each message two switches between threads. With the executor of real threads all that has to
be done for a message is to put it into the executor's queue, which the thread of the sockets can do itself. Anything
else may take long there, or must not run there at all: batches, executors that run the endpoint at once or in
greenlets, callers that are no server of oslo.messaging. Those are polled for.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, Final

from oslo_messaging._drivers import base

from broker.oslo.contract import Inbox, IncomingMessage
from broker.oslo.driver.listener import ZmqListener
from broker.oslo.reactor import natives

log = logging.getLogger(__name__)

_EXECUTOR: Final = "threading"
"""oslo.messaging's name of the executor whose threads run the endpoints."""


class ServerListener(base.PollStyleListenerAdapter):  # type: ignore[misc]
    """What the driver gives a server.

    Args:
        listener: reads the messages.
        inbox: where they come.
        batch_size, batch_timeout: as the server wants them.
    """

    def __init__(
        self,
        listener: ZmqListener,
        inbox: Inbox,
        batch_size: int,
        batch_timeout: float | None,
    ) -> None:
        super().__init__(listener, batch_size, batch_timeout)
        self._listener = listener
        self._inbox = inbox
        self._direct = False
        self._callback: Callable[[list[Any]], None] = _nobody

    def start(self, on_incoming_callback: Callable[[list[Any]], None]) -> None:
        """Begin to hand messages over."""
        self._direct = self.batch_size == 1 and only_queues(on_incoming_callback)
        if not self._direct:
            super().start(on_incoming_callback)
            return
        base.Listener.start(self, on_incoming_callback)
        self._callback = on_incoming_callback
        window = self._listener.window
        window.relieved = self._inbox.wake
        self._inbox.hand_to(self._came, lambda: window.has_room)

    def _came(self, item: IncomingMessage) -> None:
        """In the thread of the sockets."""
        incoming = self._listener.read(item)
        if incoming is None:
            return
        try:
            self._callback([incoming])
        except Exception:
            log.exception("a message to %s could not be given to its server", item.address)
            incoming.acknowledge()
            incoming.reply(failure=sys.exc_info())  # nobody else answers its caller

    def stop(self) -> None:
        """Take nothing more; what is here is handed over."""
        if not self._direct:
            super().stop()
            return
        self._listener.stop()
        self._inbox.hand_to(None, bool)
        while incoming := self._listener.poll():
            self._callback(incoming)
        base.Listener.stop(self)


def _nobody(_incoming: list[Any]) -> None:
    """Never called: nothing is handed over before ``start``."""


def only_queues(callback: Callable[[list[Any]], None]) -> bool:
    """Whether ``callback`` does no more than to put a message into the queue of an executor of real threads."""
    server = getattr(callback, "__self__", None)
    return getattr(server, "executor_type", None) == _EXECUTOR and not natives.threads_are_green()
