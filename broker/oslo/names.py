"""Names that every room of the wing shares: pipelines and their ports, files of a node's folder, limits.

Pure: no input, no output, no clock.
"""

from __future__ import annotations

import errno
from enum import IntEnum, StrEnum
from typing import Final


class Pipeline(StrEnum):
    """The dedicated pipelines (zmq-patterns-usage, "Dedicated Socket Pipelines")."""

    CALL = "call"
    """ROUTER/DEALER: requests that are answered, and casts whose taking is to be confirmed."""
    FANOUT = "fanout"
    """XSUB (TCP) and XPUB (IPC): one copy for every server of a topic."""
    NOTIFY = "notify"
    """PUB/SUB: one copy for every pool of listeners."""
    CAST = "cast"
    """PUSH/PULL: a request for one server, not answered."""


PORTS: Final = {Pipeline.CALL: 9501, Pipeline.FANOUT: 9502, Pipeline.NOTIFY: 9503, Pipeline.CAST: 9504}
"""Default ports (zmq-patterns-usage, "Configuration Impact")."""
DIRECTORY_PORT: Final = 9500
"""Default port of the directory service; the text leaves it open."""

DEFAULT_EXCHANGE: Final = "openstack"
"""What oslo.messaging calls ``control_exchange`` by default."""
PRIORITIES: Final = ("audit", "debug", "info", "warn", "error", "critical", "sample")
"""Of notifications: the last word of their topics."""

NAME_BYTES_MAX: Final = 255
"""UTF-8 bytes of an exchange, topic, server or pool."""
LISTENER_CHARS: Final = 24
"""Hexadecimal characters of a listener's id: unique for ever, made anew for each listener."""
BACKLOG_LETTER: Final = "B"
"""Begins the id of what is no listener but a node that keeps notifications for a pool; others are in small letters."""
CHOSEN_MAX: Final = 256
"""Listeners that one notification may be addressed to on one node: pools of its topic."""

DIRECTORY_SOCKET: Final = "directory.ctl"
"""File of the directory's ROUTER in the node's folder."""


class Reason(IntEnum):
    """Why a message was not delivered; text in ``REASONS``."""

    NONE = 0
    NO_ROUTE = 1
    DENIED = 2
    BUSY = 3
    MALFORMED = 4
    EXPIRED = 5
    LEAVING = 6
    ANSWERED = 7
    NO_CALLER = 8


REASONS: Final = {
    Reason.NONE: "",
    Reason.NO_ROUTE: "nobody listens there",
    Reason.DENIED: "not allowed",
    Reason.BUSY: "the queue of its server is full",
    Reason.MALFORMED: "not understood",
    Reason.EXPIRED: "its time was over",
    Reason.LEAVING: "the proxy is stopping",
    Reason.ANSWERED: "it may have been executed: its answer was lost with a connection",
    Reason.NO_CALLER: "nobody waits for this reply",
}
ERRNOS: Final = {
    Reason.NO_ROUTE: errno.EHOSTUNREACH,
    Reason.DENIED: errno.EPERM,
    Reason.BUSY: errno.EAGAIN,
    Reason.MALFORMED: errno.EPROTO,
    Reason.EXPIRED: errno.ETIMEDOUT,
    Reason.LEAVING: errno.ESHUTDOWN,
}
"""What an errno says of it, as a bridge on a Flux broker does."""


def control_file(pipeline: Pipeline) -> str:
    """File of a pipeline's control ROUTER: local servers register there.

    >>> control_file(Pipeline.CALL)
    'call.ctl'
    """
    return f"{pipeline}.ctl"


def entry_file(pipeline: Pipeline) -> str:
    """File of a pipeline's frontend for clients on the same node, of the same kind as its TCP port."""
    return f"{pipeline}.in"


def exit_file(pipeline: Pipeline) -> str:
    """File where FANOUT publishes to local servers (XPUB)."""
    return f"{pipeline}.pub"


def roster_file(pipeline: Pipeline) -> str:
    """File that says which processes are registered at a pipeline, for the next proxy."""
    return f"{pipeline}.servers"
