"""A notification as an event ``oslo.notify.EXCHANGE.TOPIC.PRIORITY`` on the Flux broker.

Private unless told otherwise: owners receive it and nobody else (RFC 12, "Event Privacy"), since notifications tell of
everybody's resources. The payload has what the notification has: ``publisher_id``, ``event_type``, ``payload``,
``timestamp``, ``message_id``, ``priority``, ``exchange``, ``topic``, and of its context under ``ctxt`` what says which
request and whose it was, never a token.

Never waits (``client.bridge.Publisher``).
"""

from __future__ import annotations

from typing import Any, Final

from broker.client.bridge import Publisher, word_of
from broker.errors import ProtocolError
from broker.nesting import read_json
from broker.oslo.service.listening import HeardNotification
from broker.wire.message import PRIVATE

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

    def take(self, status: HeardNotification) -> None:
        """Publish one notification."""
        self.miss(status.lost)
        if not self.has_room():
            return
        said = content(status)
        if said is not None:
            try:
                self.publish(topic_of(status), said, flags=self._flags)
                return
            except ProtocolError:  # it was just not nested too deeply to be read, but is in an event
                pass
        self.unreadable += 1
        self.miss(1)


def topic_of(status: HeardNotification) -> str:
    """The topic; the payload has long names in full.

    >>> topic_of(HeardNotification("openstack", "versioned.notifications", "info", b""))
    'oslo.notify.openstack.versioned%2Enotifications.info'
    """
    return PREFIX + ".".join(map(word_of, (status.exchange, status.topic, status.priority)))


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
