"""Topic strings (RFC 3, "Request Message Type"): words and periods; the first word names the service.

Every function takes and returns ``bytes`` or ``str``, whichever it was given, and works on the text alone:
a topic of one word is looked up whole, and an empty one is a service with an empty name that nobody can
register.
"""

from __future__ import annotations

import errno
from typing import AnyStr, Final

from broker.errors import ProtocolError
from broker.identity import Role

NOTICE_MAX_BYTES: Final = 255
"""Deployed brokers build the topic ``PATH.disconnect`` in 256 bytes, NUL counted, when a request passes."""
SERVICE_MAX_BYTES: Final = NOTICE_MAX_BYTES - len(".disconnect")
"""244: a request whose path (the topic without its last word) is longer is dropped by deployed brokers
without a word. We answer such requests, and refuse to register a service that other brokers could not
reach."""

RESERVED: Final = (b"nfp.job.", b"oslo.", b"heartbeat.", b"overlay.", b"gateway.")
"""First words of topics of events that the owner alone publishes, and services that act for it: programs, the
dashboard and brokers take their word for what has happened."""
RESERVED_TEXT: Final = "topics that begin so are published by the owner alone"


def is_reserved(topic: bytes, rolemask: int) -> bool:
    """Whether an event of this topic is not to be published, nor believed, with this rolemask (RFC 12).

    >>> is_reserved(b"heartbeat.pulse", 2), is_reserved(b"heartbeat.pulse", 1), is_reserved(b"heartbeats", 2)
    (True, False, False)
    """
    return not rolemask & Role.OWNER and topic.startswith(RESERVED)


def encode_topic(topic: str | bytes) -> bytes:
    r"""The bytes of a topic, or of a prefix or name of some, in UTF-8 (surrogate escapes become what they stand for).

    Raises:
        ProtocolError: EPROTO; it holds a NUL, which would end it early, or half of a character.
        TypeError: of another type: a mistake of the program.

    >>> encode_topic("kvs.get"), encode_topic("\udcff")
    (b'kvs.get', b'\xff')
    """
    if not isinstance(topic, str | bytes):
        raise TypeError(f"a topic is a str, not {type(topic).__name__}")
    try:
        name = topic.encode("utf-8", "surrogateescape") if isinstance(topic, str) else topic
    except UnicodeEncodeError as error:
        raise ProtocolError(f"a topic that cannot be written as UTF-8: {error.reason}") from error
    if 0 in name:
        raise ProtocolError("a topic cannot hold a NUL")
    return name


def _period(topic: AnyStr) -> AnyStr:
    if isinstance(topic, str):
        return "."
    return b"."


def service_of(topic: AnyStr) -> AnyStr:
    """The service that a request with this topic is for: all before the first period.

    >>> service_of("kvs.namespace.create"), service_of(b"kvs")
    ('kvs', b'kvs')
    """
    return topic.partition(_period(topic))[0]


def method_of(topic: AnyStr) -> AnyStr:
    """All behind the first period; empty when there is none.

    >>> method_of("kvs.namespace.create"), method_of("kvs")
    ('namespace.create', '')
    """
    return topic.partition(_period(topic))[2]


def path_of(topic: AnyStr) -> AnyStr:
    """The topic without its last word; the whole topic when it has one word only.

    >>> path_of("kvs.namespace.create"), path_of("kvs")
    ('kvs.namespace', 'kvs')
    """
    head, period, last = topic.rpartition(_period(topic))
    return head if period else last


def replace_last_word(topic: AnyStr, word: AnyStr) -> AnyStr:
    """The topic with ``word`` in place of its last one; appended to a topic of one word.

    So a disconnect notice gets its topic from the request it is about.

    >>> replace_last_word("kvs-watch.lookup", "disconnect"), replace_last_word(b"echo", b"cancel")
    ('kvs-watch.disconnect', b'echo.cancel')
    """
    return path_of(topic) + _period(topic) + word


def check_service(name: str) -> None:
    """Accept ``name`` as the name of a service that may be registered.

    Raises:
        ProtocolError: EINVAL; it is empty, holds a period or a NUL, is not UTF-8, or is above
        SERVICE_MAX_BYTES.
    """
    why = _unfit(name)
    if why:
        raise ProtocolError(f"{name[:64]!r} cannot name a service: it {why}", errno.EINVAL)


def _unfit(name: str) -> str:
    if not name:
        return "is empty"
    if "." in name:
        return "holds a period, which ends a service's name"
    if "\0" in name:
        return "holds a NUL, which ends a topic"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not UTF-8"
    return f"has {size} bytes, more than {SERVICE_MAX_BYTES}" if size > SERVICE_MAX_BYTES else ""
