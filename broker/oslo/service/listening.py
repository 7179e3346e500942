"""Notifications from a ``ClientSession`` to the event loop: one thread reads, a bounded queue stands between the two.

The thread never waits for the loop and the loop never for the thread: what finds no room is dropped and counted, and
whoever takes the next one is told how many those were.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.bounded_queue import BoundedQueue
from broker.oslo.bodies import plain
from broker.oslo.contract import OsloFailure
from broker.oslo.names import PRIORITIES

if TYPE_CHECKING:
    from broker.oslo.client.inbox import ClientInbox
    from broker.oslo.client.session import ClientSession

log = logging.getLogger("headgate.oslo")

QUEUE_MSGS: Final = 4096
"""Notifications between thread and loop: some seconds of a busy cloud."""
QUEUE_BYTES: Final = 16 << 20
TURN_MSGS: Final = 64
"""Taken by the loop in one turn: it has others to serve."""
_PAUSE_S: Final = 1.0
"""Before listening is tried again after it failed."""


class HeardNotification(NamedTuple):
    """One notification as it came; ``lost`` counts those right before it that found no room."""

    exchange: str
    topic: str
    priority: str
    body: bytes
    lost: int = 0


class NotificationListening:
    """Reads notifications from ``start`` to ``stop``.

    Args:
        session: into the pipelines.
        places: (exchange, topic) to listen to, with every priority.
        pool: the pool that listens.
        take: called on the event loop for each notification.

    Attributes:
        received: notifications that came.
        lost: those that found no room.
        failed: those that ``take`` raised for; the first and every one that doubles them is logged.
    """

    def __init__(
        self,
        session: ClientSession,
        places: Sequence[tuple[str, str]],
        pool: str,
        take: Callable[[HeardNotification], None],
    ) -> None:
        self.received = 0
        self.lost = 0
        self.failed = 0
        self._session = session
        self._topics = [(exchange, f"{topic}.{each}") for exchange, topic in places for each in PRIORITIES]
        self._pool = pool
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._queue: BoundedQueue[HeardNotification] = BoundedQueue(QUEUE_MSGS, QUEUE_BYTES)
        self._untold = 0
        self._asked = False
        self._inbox: ClientInbox | None = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a thread of its own: that the node's proxy confirms may take a while."""
        self._thread = threading.Thread(target=self._run, name="oslo notifications", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """End it; what waits is dropped."""
        self._ending.set()
        inbox = self._inbox
        if inbox is not None:
            await asyncio.to_thread(inbox.stop)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    # ------------------------------------------------------------ in the thread

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._listen()
            except OsloFailure as error:
                log.warning("notifications cannot be listened to: %s", error)
            except Exception:
                log.exception("notifications cannot be read")
            self._ending.wait(_PAUSE_S)

    def _listen(self) -> None:
        inbox = self._session.listen_notifications(self._topics, self._pool)
        self._inbox = inbox
        try:
            # ``stop`` may have looked before the inbox was there
            while not self._ending.is_set() and (item := inbox.get(None)) is not None:
                exchange, topic, _server = item.address
                body = item.body
                with contextlib.suppress(ValueError):  # what cannot be read is counted where it is looked at
                    body = plain(body)
                item.acknowledge()
                self._put(exchange, topic, body)
        finally:
            self._inbox = None
            inbox.close()

    def _put(self, exchange: str, topic: str, body: bytes) -> None:
        name, _, priority = topic.rpartition(".")
        with self._lock:
            self.received += 1
            heard = HeardNotification(exchange, name, priority, body, self._untold)
            if not self._queue.put(heard, len(body)):
                self.lost += 1
                self._untold += 1
                return
            self._untold = 0
            ask, self._asked = not self._asked, True
        if ask:
            self._ask()

    def _ask(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            self._ending.set()  # the loop has ended

    # ------------------------------------------------------------ on the loop

    def _drain(self) -> None:
        for _ in range(TURN_MSGS):
            with self._lock:
                if not self._queue:
                    self._asked = False
                    return
                status = self._queue.pop()
            if not self._ending.is_set():
                self._hand_over(status)
        self._loop.call_soon(self._drain)

    def _hand_over(self, status: HeardNotification) -> None:
        """Whatever one notification does to ``take``, the next one is read."""
        try:
            self._take(status)
        except Exception:
            self.failed += 1
            if not self.failed & (self.failed - 1):
                where = f"{status.exchange}/{status.topic}.{status.priority}"
                log.exception("a notification at %s of %d bytes, the %d. one so far, could not be told",
                              where, len(status.body), self.failed)  # fmt: skip
