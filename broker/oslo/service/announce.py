"""A notification as an event ``oslo.notify.EXCHANGE.TOPIC.PRIORITY`` on the Flux broker.

Private unless told otherwise: owners receive it and nobody else (RFC 12, "Event Privacy"), since notifications tell of
everybody's resources. The payload has what the notification has: ``publisher_id``, ``event_type``, ``payload``,
``timestamp``, ``message_id``, ``priority``, ``exchange``, ``topic``, and of its context under ``ctxt`` what says which
request and whose it was, never a token.

Never waits: while the link is choked, events are dropped and counted; the next one says how many in ``lost``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from broker.errors import ProtocolError
from broker.nesting import read_json
from broker.oslo.service.listening import HeardNotification
from broker.wire.message import PRIVATE, event
from broker.wire.payload import encode_json

if TYPE_CHECKING:
    from broker.client import Handle

PREFIX: Final = "oslo.notify."
EVENT_BYTES_MAX: Final = 256 << 10
"""A larger notification is told without its ``payload``: every dashboard would have to take it."""
TEXT_CHARS_MAX: Final = 1024
"""Of its other texts then; what is no text is left out, too."""
WORD_CHARS_MAX: Final = 128
"""A longer word stands in a topic as its digest; the payload has it in full."""
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


class EventAnnouncer:
    """Publishes notifications.

    Args:
        public: for everybody, not for owners alone.

    Attributes:
        handle: where to, None while there is none: events are then dropped like those of a choked one.
        sent, dropped, unreadable: counts.
    """

    def __init__(self, *, public: bool = False) -> None:
        self.handle: Handle | None = None
        self.sent = 0
        self.dropped = 0
        self.unreadable = 0
        self._untold = 0
        self._flags = 0 if public else PRIVATE

    def take(self, status: HeardNotification) -> None:
        """Publish one notification."""
        self._untold += status.lost
        handle = self.handle
        if handle is None or handle.ended is not None or handle.link.outbox.choked:
            self.dropped += 1
            self._untold += 1
            return
        said = content(status)
        if said is not None and self._untold:
            said["lost"] = self._untold
        try:
            payload = None if said is None else encode_json(said)
        except ProtocolError:  # it was just not nested too deeply to be read, but is in an event
            payload = None
        self._untold += 1
        if payload is None:
            self.unreadable += 1
            return
        handle.send(event(topic_of(status), payload, flags=self._flags))
        self._untold = 0
        self.sent += 1


def topic_of(status: HeardNotification) -> str:
    """The topic; what a topic's word cannot have is percent-encoded.

    >>> topic_of(HeardNotification("openstack", "versioned.notifications", "info", b""))
    'oslo.notify.openstack.versioned%2Enotifications.info'
    """
    return PREFIX + ".".join(map(_word, (status.exchange, status.topic, status.priority)))


def _word(name: str) -> str:
    word = quote(name, safe="").replace(".", "%2E")
    return word if len(word) <= WORD_CHARS_MAX else hashlib.sha256(name.encode()).hexdigest()


def content(status: HeardNotification) -> dict[str, Any] | None:
    """What the event says; None when the notification cannot be read.

    >>> body = b'{"ctxt": {"auth_token": "t", "request_id": "r"}, "message": {"event_type": "e"}}'
    >>> content(HeardNotification("x", "y", "info", body))
    {'exchange': 'x', 'topic': 'y', 'priority': 'info', 'event_type': 'e', 'ctxt': {'request_id': 'r'}}
    """
    try:
        body = read_json(status.body)
        message = _unwrapped(body["message"])
        context = body.get("ctxt") or {}
        if not isinstance(message, dict) or not isinstance(context, dict):
            return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    said: dict[str, Any] = {"exchange": status.exchange, "topic": status.topic, "priority": status.priority}
    shown = {name: context[name] for name in CONTEXT if isinstance(context.get(name), str)}
    if len(status.body) <= EVENT_BYTES_MAX:
        said.update({name: message[name] for name in FIELDS if name in message})
    else:
        texts = {name: message[name] for name in FIELDS if isinstance(message.get(name), str)}
        texts.pop("payload", None)
        said.update({name: text[:TEXT_CHARS_MAX] for name, text in texts.items()})
        said["payload_bytes"] = len(status.body)
        shown = {name: text[:TEXT_CHARS_MAX] for name, text in shown.items()}
    if shown:
        said["ctxt"] = shown
    return said


def _unwrapped(message: Any) -> Any:
    """The message of an envelope of version 2.0; others as they are."""
    if isinstance(message, dict) and _VERSION in message and isinstance(message.get(_MESSAGE), str):
        return read_json(message[_MESSAGE])
    return message
