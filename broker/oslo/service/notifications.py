"""Notifications from a ``ClientSession`` to events ``oslo.notify.EXCHANGE.TOPIC.PRIORITY`` on the Flux broker.

They come in the thread of the sockets, and a bounded queue stands between it and the event loop. Neither waits for the
other: what finds no room is dropped and counted, and whoever takes the next one is told how many those were. Nor does
the announcer wait (``client.bridge.Publisher``).

Events are private unless told otherwise: owners receive them and nobody else (RFC 12, "Event Privacy"), since
notifications tell of everybody's resources. The payload has what the notification has: ``publisher_id``,
``event_type``, ``payload``, ``timestamp``, ``message_id``, ``priority``, ``exchange``, ``topic``, and of its context
under ``ctxt`` what says which request and whose it was, never a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.bounded_queue import BoundedQueue
from broker.client.bridge import Publisher, word_of
from broker.errors import ProtocolError
from broker.nesting import read_json
from broker.oslo.bodies import plain
from broker.oslo.contract import OsloFailure
from broker.oslo.names import PRIORITIES
from broker.wire.message import PRIVATE

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
PREFIX: Final = "oslo.notify."
EVENT_BYTES_MAX: Final = 256 << 10
"""A larger notification is told without its ``payload``: every dashboard would have to take it."""
TEXT_CHARS_MAX: Final = 1024
"""Of its other texts then; what is no text is left out, too."""
FIELDS: Final = ("publisher_id", "event_type", "payload", "timestamp", "message_id")
CONTEXT: Final = (
    "request_id",
    "global_request_id",
    "user_id",
    "user_name",
    "project_id",
    "project_name",
    "domain_id",
    "user_domain_id",
    "project_domain_id",
    "tenant",
    "user",
)
"""Keys of a context that are shown, where they are texts."""
_VERSION: Final = "oslo.version"
_MESSAGE: Final = "oslo.message"


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
        self._opening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in a task of its own: that the node's proxy confirms may take a while."""
        self._opening = self._loop.create_task(self._open(), name="oslo notifications")

    async def stop(self) -> None:
        """End it; what waits is dropped."""
        if self._opening is not None:
            self._opening.cancel()
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await asyncio.to_thread(inbox.close)

    async def _open(self) -> None:
        """Listen, and once more whenever that has ended."""
        while True:
            try:
                listen = self._session.listen_notifications
                inbox = self._inbox = await asyncio.to_thread(listen, self._topics, self._pool)
                inbox.notify(partial(self._read, inbox))
                # by itself it ends when the thread of the sockets fails
                while not inbox.stopping:  # noqa: ASYNC110 - a thread that fails tells nobody
                    await asyncio.sleep(_PAUSE_S)
                await asyncio.to_thread(inbox.close)
            except OsloFailure as error:
                log.warning("notifications cannot be listened to: %s", error)
            except Exception:
                log.exception("notifications cannot be read")
            await asyncio.sleep(_PAUSE_S)

    # ------------------------------------------------------------ in the thread of the sockets

    def _read(self, inbox: ClientInbox) -> None:
        while (item := inbox.get(0.0)) is not None:
            exchange, topic, _server = item.address
            name, _, priority = topic.rpartition(".")
            body = item.body
            with contextlib.suppress(ValueError):  # what cannot be read is counted where it is looked at
                body = plain(body)
            with self._lock:
                self.received += 1
                heard = HeardNotification(exchange, name, priority, body, self._untold)
                if not self._queue.put(heard, len(body)):
                    self.lost += 1
                    self._untold += 1
                    continue
                self._untold = 0
                ask, self._asked = not self._asked, True
            if ask:
                with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waits
                    self._loop.call_soon_threadsafe(self._drain)

    # ------------------------------------------------------------ on the loop

    def _drain(self) -> None:
        for _ in range(TURN_MSGS):
            with self._lock:
                if not self._queue:
                    self._asked = False
                    return
                heard = self._queue.pop()
            if self._inbox is not None:
                self._hand_over(heard)
        self._loop.call_soon(self._drain)

    def _hand_over(self, heard: HeardNotification) -> None:
        """Whatever one notification does to ``take``, the next one is read."""
        try:
            self._take(heard)
        except Exception:
            self.failed += 1
            if not self.failed & (self.failed - 1):
                where = f"{heard.exchange}/{heard.topic}.{heard.priority}"
                log.exception("a notification at %s of %d bytes, the %d. one so far, could not be told",
                              where, len(heard.body), self.failed)  # fmt: skip


class EventAnnouncer(Publisher):
    """Publishes notifications.

    Args:
        public: for everybody, not for owners alone.

    Attributes:
        unreadable: how many were none.
    """

    def __init__(self, *, public: bool = False) -> None:
        super().__init__()
        self.unreadable = 0
        self._flags = 0 if public else PRIVATE

    def take(self, heard: HeardNotification) -> None:
        """Publish one notification."""
        self.miss(heard.lost)
        if not self.has_room():
            return
        said = content(heard)
        if said is not None:
            try:
                self.publish(topic_of(heard), said, flags=self._flags)
                return
            except ProtocolError:  # it was just not nested too deeply to be read, but is in an event
                pass
        self.unreadable += 1
        self.miss(1)


def topic_of(heard: HeardNotification) -> str:
    """The topic; the payload has long names in full.

    >>> topic_of(HeardNotification("openstack", "versioned.notifications", "info", b""))
    'oslo.notify.openstack.versioned%2Enotifications.info'
    """
    return PREFIX + ".".join(map(word_of, (heard.exchange, heard.topic, heard.priority)))


def content(heard: HeardNotification) -> dict[str, Any] | None:
    """What the event says; None when the notification cannot be read.

    >>> body = b'{"ctxt": {"auth_token": "t", "request_id": "r"}, "message": {"event_type": "e"}}'
    >>> content(HeardNotification("x", "y", "info", body))
    {'exchange': 'x', 'topic': 'y', 'priority': 'info', 'event_type': 'e', 'ctxt': {'request_id': 'r'}}
    """
    try:
        body = read_json(heard.body)
        message = _unwrapped(body["message"])
        context = body.get("ctxt") or {}
        if not isinstance(message, dict) or not isinstance(context, dict):
            return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    said: dict[str, Any] = {"exchange": heard.exchange, "topic": heard.topic, "priority": heard.priority}
    shown = {name: context[name] for name in CONTEXT if isinstance(context.get(name), str)}
    if len(heard.body) <= EVENT_BYTES_MAX:
        said.update({name: message[name] for name in FIELDS if name in message})
    else:
        texts = {name: message[name] for name in FIELDS if isinstance(message.get(name), str)}
        texts.pop("payload", None)
        said.update({name: text[:TEXT_CHARS_MAX] for name, text in texts.items()})
        said["payload_bytes"] = len(heard.body)
        shown = {name: text[:TEXT_CHARS_MAX] for name, text in shown.items()}
    if shown:
        said["ctxt"] = shown
    return said


def _unwrapped(message: Any) -> Any:
    """The message of an envelope of version 2.0; others as they are."""
    if isinstance(message, dict) and _VERSION in message and isinstance(message.get(_MESSAGE), str):
        return read_json(message[_MESSAGE])
    return message
