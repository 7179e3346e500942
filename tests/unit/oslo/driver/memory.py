"""A session in memory: one process, no sockets. It keeps what it was asked, and delivers."""

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from broker.oslo.contract import Address, CallTimeout, Closed, OsloFailure, Settings, Unroutable


@dataclass
class MemoryItem:
    """One message; ``told`` is what the server did with it."""

    body: bytes
    address: Address
    userid: int = 0
    rolemask: int = 2
    wants_reply: bool = False
    monitor_s: float | None = None
    reply_bytes_max: int = 64 << 20
    told: list[str] = field(default_factory=list)
    replies: "queue.Queue[bytes | None]" = field(default_factory=queue.Queue)
    back: "MemoryIntake | None" = None

    def requeue(self) -> None:
        self.told.append("requeue")
        if self.back is not None:
            self.back.put(self)

    def reply(self, body: bytes) -> None:
        self.told.append("reply")
        self.replies.put(body)

    def beat(self) -> None:
        self.told.append("beat")
        self.replies.put(None)


class MemoryIntake:
    """As ``client.inbox.ClientInbox``."""

    def __init__(self, topics: Sequence[tuple[str, str]], server: str = "", pool: str | None = None) -> None:
        self.topics, self.server, self.pool = list(topics), server, pool
        self.calls: list[str] = []
        self._items: deque[MemoryItem] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self.told: Callable[[], object] = bool

    def put(self, item: MemoryItem) -> None:
        item.back = self
        with self._changed:
            self._items.append(item)
            self._changed.notify()
        self.told()

    def get(self, timeout_s: float | None) -> MemoryItem | None:
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._stopped, timeout_s)
            return self._items.popleft() if self._items else None

    @property
    def empty(self) -> bool:
        return not self._items

    def notify(self, told: Callable[[], None]) -> None:
        self.told = told

    def stop(self) -> None:
        self.calls.append("stop")
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        self.calls.append("close")
        self.stop()


class Network:
    """Everything that ports have in common; ``sent`` is what was asked of them, ``fail`` what they do about it."""

    def __init__(self) -> None:
        self.open = 0
        self.opened = 0
        self.intakes: list[MemoryIntake] = []
        self.sent: list[tuple[str, Address, dict[str, object]]] = []
        self.fail: OsloFailure | None = None
        self.settings: list[Settings] = []
        self.turn = itertools.count()

    def open_session(self, settings: Settings) -> "MemoryPort":
        self.settings.append(settings)
        self.open += 1
        self.opened += 1
        return MemoryPort(self)

    def servers(self, address: Address) -> list[MemoryIntake]:
        topic = (address.exchange, address.topic)
        return [each for each in self.intakes if topic in each.topics and address.server in ("", each.server)]


class MemoryPort:
    """As ``client.session.ClientSession``."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.closed = False

    def _asked(self, what: str, address: Address, **words: object) -> list[MemoryIntake]:
        self.network.sent.append((what, address, words))
        if self.closed:
            raise Closed("this port is closed")
        if self.network.fail is not None:
            raise self.network.fail
        found = self.network.servers(address)
        if words.get("mandatory") and not found:
            raise Unroutable(f"nobody listens at {address}")
        return found

    def call(
        self,
        address: Address,
        body: bytes,
        *,
        timeout_s: float | None,
        monitor_s: float | None = None,
        mandatory: bool = False,
    ) -> bytes:
        words = {"timeout_s": timeout_s, "monitor_s": monitor_s, "mandatory": mandatory}
        servers = self._asked("call", address, **words)
        item = MemoryItem(body, address, wants_reply=True, monitor_s=monitor_s)
        if servers:
            servers[next(self.network.turn) % len(servers)].put(item)
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if end is None else max(end - time.monotonic(), 0.0)
            patience = min((each for each in (left, monitor_s) if each is not None), default=None)
            try:
                reply = item.replies.get(timeout=patience)
            except queue.Empty:
                raise CallTimeout(f"no answer from {address}", monitor=patience != left) from None
            if reply is not None:
                return reply

    def cast(
        self, address: Address, body: bytes, *, mandatory: bool = False, retry: int | None = None
    ) -> None:
        servers = self._asked("cast", address, mandatory=mandatory, retry=retry)
        if servers:
            servers[next(self.network.turn) % len(servers)].put(MemoryItem(body, address))

    def fanout(self, address: Address, body: bytes, *, retry: int | None = None) -> None:
        for each in self._asked("fanout", address, retry=retry):
            each.put(MemoryItem(body, address))

    def notify(self, exchange: str, topic: str, body: bytes, *, retry: int | None = None) -> None:
        address = Address(exchange, topic)
        chosen = {each.pool: each for each in self._asked("notify", address, retry=retry)}
        for each in chosen.values():
            each.put(MemoryItem(body, address))

    def listen(self, address: Address) -> MemoryIntake:
        self._asked("listen", address)
        self.network.intakes.append(MemoryIntake([(address.exchange, address.topic)], address.server))
        return self.network.intakes[-1]

    def listen_notifications(self, topics: Sequence[tuple[str, str]], pool: str | None) -> MemoryIntake:
        self._asked("listen_notifications", Address(*topics[0]), topics=list(topics), pool=pool)
        self.network.intakes.append(MemoryIntake(topics, pool=pool))
        return self.network.intakes[-1]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.network.open -= 1
