"""What the rooms of the wing ask of each other (pure types).

``driver`` and ``service`` see a ``Session``: one process's way into the pipelines. Everything on it may be called from
any thread or greenlet; calls that wait do so without stopping other greenlets.
"""

from __future__ import annotations

import errno as _errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from broker.errors import HeadgateError
from broker.oslo.names import Reason


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
    """Larger than the pipelines take: refused before anything was sent."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Reason.MALFORMED)
        self.errno = _errno.EMSGSIZE


class Undelivered(OsloFailure):
    """It could not be handed over within the retries that were allowed."""

    errno = _errno.EAGAIN


class Closed(OsloFailure):
    """The session was closed in the meantime."""

    errno = _errno.ESHUTDOWN


class IncomingMessage(Protocol):
    """One message that came. Its methods may be called from any thread and never raise; a second call does nothing."""

    @property
    def body(self) -> bytes:
        """As it was sent."""

    @property
    def userid(self) -> int:
        """As the proxy stamped it."""

    @property
    def rolemask(self) -> int:
        """As the proxy stamped it."""

    @property
    def address(self) -> Address:
        """Where it was sent to."""

    @property
    def wants_reply(self) -> bool:
        """True for calls."""

    @property
    def monitor_s(self) -> float | None:
        """A monitored call: the caller gives up after so many seconds without a heartbeat."""

    @property
    def reply_bytes_max(self) -> int:
        """A larger reply is not sent, but counted and logged: its caller would have to wait in vain."""

    def acknowledge(self) -> None:
        """It is being taken care of: there is room for another one."""

    def requeue(self) -> None:
        """Notifications: give it back, to be delivered again at the end of the queue."""

    def reply(self, body: bytes) -> None:
        """The result of a call; ignored for others."""

    def beat(self) -> None:
        """The call is still worked on."""


class Inbox(Protocol):
    """What one listener receives: bounded, in order."""

    def get(self, timeout_s: float | None) -> IncomingMessage | None:
        """The next message; None after ``timeout_s`` (None: waits), or when stopped and empty, then at once."""

    @property
    def empty(self) -> bool:
        """Whether nothing is here. From any thread."""

    def notify(self, told: Callable[[], None]) -> None:
        """Call ``told`` when something has come, in place of waking who waits in ``get``: in the thread of the sockets,
        once for all that came in a turn of it. It must not wait for anything.
        """

    def stop(self) -> None:
        """Take nothing more in: the directory forgets it, ``get`` drains what is here. Replies still go out."""

    def close(self) -> None:
        """End it; unread messages are dropped and counted. Replies that are on their way are not lost."""


class Session(Protocol):
    """One process's way into the pipelines of its configuration.

    Every body that is larger than ``Settings.message_bytes_max``, or than what the node's proxy says it takes, is
    ``TooLarge``. In the thread of the sockets (see ``start_call``) nothing can be waited for: what would have to wait
    there is ``Undelivered``.
    """

    def call(
        self,
        address: Address,
        body: bytes,
        *,
        timeout_s: float | None,
        monitor_s: float | None = None,
        mandatory: bool = False,
    ) -> bytes:
        """Call and wait for the body of the reply.

        Raises:
            CallTimeout, Unroutable (``mandatory``), Refused, Closed.
            Undelivered: with ``mandatory``, when no directory has answered yet: nobody knows who listens.
            ValueError: a name that cannot be sent, or a time that is not a number. An infinite one is none.
        """

    def start_call(
        self,
        address: Address,
        body: bytes,
        done: Callable[[bytes | OsloFailure], None],
        *,
        timeout_s: float | None,
        monitor_s: float | None = None,
        mandatory: bool = False,
    ) -> None:
        """As ``call`` without waiting: ``done`` is called once, in the thread of the sockets."""

    def cast(
        self, address: Address, body: bytes, *, mandatory: bool = False, retry: int | None = None
    ) -> None:
        """Send to one server; returns when it is handed over, with ``mandatory`` when a server has it.

        ``retry``: None or -1 for ever, 0 one attempt, N attempts more.

        Raises:
            Undelivered, Unroutable (``mandatory``), Refused, Closed.
        """

    def fanout(self, address: Address, body: bytes, *, retry: int | None = None) -> None:
        """Send to every server of the topic; as ``cast``. Nodes that could not be reached are logged and counted."""

    def notify(self, exchange: str, topic: str, body: bytes, *, retry: int | None = None) -> None:
        """Send to one listener of each pool at ``topic`` (its priority at the end); as ``fanout``."""

    def listen(self, address: Address) -> Inbox:
        """Listen as an rpc-server: to the topic, to the server of that name, to fan-outs.

        Returns once the node's proxy has confirmed, or warns after ``Settings.ready_s`` and goes on trying.
        """

    def listen_notifications(self, topics: Sequence[tuple[str, str]], pool: str | None) -> Inbox:
        """Listen to notifications at ``(exchange, topic)`` pairs; as ``listen``."""

    def close(self) -> None:
        """Flush what was handed over, within ``Settings.linger_s``, then end; harmless twice."""


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
    redis: tuple[str, ...] = field(default=(), repr=False)
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
