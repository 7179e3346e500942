"""What the rooms of the wing ask of each other (pure types).

``driver`` and ``service`` see a ``Session``: one process's way into the pipelines. Everything on it may be called from
any thread or greenlet; calls that wait do so without stopping other greenlets.
"""

from __future__ import annotations

import errno as _errno
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.errors import HeadgateError
from broker.oslo.names import Reason
from broker.secret import SecretUrl


class Address(NamedTuple):
    """Where a request goes; ``server`` "" is any server of the topic, or all of them for a fan-out."""

    exchange: str
    topic: str
    server: str = ""

    def __str__(self) -> str:
        return f"{self.exchange}/{self.topic}" + (f"/{self.server}" if self.server else "")


class OsloFailure(HeadgateError):
    """A message that did not arrive, or an answer that did not come; the text says what was tried."""


class CallTimeout(OsloFailure):
    """No answer in time; ``monitor`` True: no heartbeat of a monitored call in time."""

    errno = _errno.ETIMEDOUT

    def __init__(self, text: str, *, monitor: bool = False) -> None:
        super().__init__(text)
        self.monitor = monitor


class Unroutable(OsloFailure):
    """Asked for with ``mandatory``: nobody listens there."""

    errno = _errno.EHOSTUNREACH


class Refused(OsloFailure):
    """A proxy refused it: see ``reason`` (DENIED, BUSY, MALFORMED)."""

    def __init__(self, text: str, reason: Reason) -> None:
        super().__init__(text, _errno.EPERM if reason is Reason.DENIED else _errno.EAGAIN)
        self.reason = reason


class TooLarge(Refused):
    """A body of ``size`` bytes for ``address``, larger than the pipelines take: refused before anything was sent."""

    def __init__(self, address: Address, size: int, size_max: int) -> None:
        text = f"{address}: saw a body of {size} bytes, expected {size_max} at most (message_bytes_max)"
        super().__init__(text, Reason.MALFORMED)
        self.errno = _errno.EMSGSIZE


class Undelivered(OsloFailure):
    """It could not be handed over within the retries that were allowed."""

    errno = _errno.EAGAIN


class Closed(OsloFailure):
    """The session was closed in the meantime."""

    errno = _errno.ESHUTDOWN


@dataclass(frozen=True, slots=True)
class Settings:
    """How a process finds the pipelines; equal settings share sockets.

    Attributes:
        ipc_dir: folder of the node's proxy.
        directories: ``tcp://host:port`` of directory services, asked when there is no local proxy; () none.
        redis: URLs of Redis servers that share the directory, read when there is no local proxy; () none.
        directory_key: Z85 public key of those directories; "" that of ``curve_cert``, which all nodes share.
        curve_cert: path of this process's CURVE certificate; "" plaintext, unless there is a ``directory_key``.
        keepalive: (on, idle s, count, interval s) of TCP.
        linger_s: how long ``close`` may go on sending.
        ready_s: how long the first message waits for the directory, and a listener for its proxy.
        fanout_wait_s: how long a publish waits for the subscription of a node that the directory lists: the time of a
            restart of its proxy.
        retry_s: between two attempts to hand over.
        inbox_msgs, inbox_bytes: what a listener holds that was not taken yet.
        outbox_msgs, outbox_bytes: what may wait for one node and pipeline.
        message_bytes_max: largest body, and largest frame that is read but for the envelope; the same on all nodes.
        node: name that the proxy of ``ipc_dir`` is expected to have, another one is logged; "" any.
    """

    ipc_dir: str
    directories: tuple[str, ...] = ()
    redis: tuple[SecretUrl, ...] = ()
    directory_key: str = ""
    curve_cert: str = ""
    keepalive: tuple[bool, int, int, int] = field(default=(True, 5, 3, 2))
    linger_s: float = 2.0
    ready_s: float = 2.0
    fanout_wait_s: float = 15.0
    retry_s: float = 0.25
    inbox_msgs: int = 10_000
    inbox_bytes: int = 64 << 20
    outbox_msgs: int = 10_000
    outbox_bytes: int = 64 << 20
    message_bytes_max: int = 64 << 20
    node: str = ""
