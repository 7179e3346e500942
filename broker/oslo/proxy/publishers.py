"""Where a proxy publishes to the servers of its node: an XPUB on IPC that says who hears what.

Who connects is asked for by ZAP, so that every connection has a name of its own, and what it subscribes to is granted
or not, one by one (``ZMQ_XPUB_MANUAL``). A subscriber that also subscribes to ``?`` and a token of 16 bytes is answered
on it, ``[?token][OPENED][JSON Opened]``, when all it subscribed to before is in force.

Not blocking (no ``ZMQ_XPUB_NODROP``): with it, one subscriber that does not read would stop what is published for all
others. Without it, libzmq drops what is for that one alone, once ``SNDHWM`` messages wait for it, and the subscriber
notices that by the numbers of messages. libzmq counts messages, not bytes, and the limit cannot be changed later: doing
so while a peer leaves ends the process with a segmentation fault (libzmq 4.3.5 tells the limit to the other end of the
connection, which may be deleted by then). Several subscribers that do not read share what waits for them: libzmq keeps
one copy of a message.

So large messages may take more than the bytes that are asked for: subscribers that read nothing are cut off
(``slow_consumers``).

libzmq tells whose subscription it reports in a list beside the messages, which a peer that sends something else than
subscriptions throws out of step until everything has been read. Subscriptions read in between are not granted; whoever
is not answered within its patience connects anew.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import zmq

from broker.identity import Credentials
from broker.oslo.frames import HANDSHAKE_LETTER, ID_BYTES, Kind, encode
from broker.oslo.names import NAME_BYTES_MAX, Pipeline, exit_file
from broker.oslo.node import NodeConfig
from broker.oslo.origin import credentials
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.frontend import status_of
from broker.oslo.proxy.slow_consumers import TYPICAL_BYTES, SlowConsumers
from broker.oslo.proxy.subscriptions import GrantedSubscriptions
from broker.oslo.reactor import Reactor, Socket
from broker.oslo.reactor.binding import bind_local, guard, remove_socket
from broker.oslo.reactor.counters import Counters
from broker.oslo.reactor.tuning import PUBLISH_MSGS, tune_local

if TYPE_CHECKING:
    from broker.oslo.proxy.journal import PipelineJournal

FILTER_BYTES_MAX: Final = 2 * (NAME_BYTES_MAX + 1) + 1
TOKEN_BYTES: Final = len(HANDSHAKE_LETTER) + ID_BYTES
FEWEST_MSGS: Final = 64
"""What may wait for one subscriber in any case: a healthy one is this far behind, now and then."""
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)


class Subscriber(NamedTuple):
    """A connection."""

    name: str
    """Unique: a number and the address that libzmq gives a local peer."""
    who: Credentials
    uid: int
    pid: int


class SubscriberAccess:
    """Judges who connects, see ``broker.oslo.reactor.binding.ZapPolicy``: everybody the access control knows.

    Attributes:
        denied: connections refused.
        shut: True once nobody is to get in any more.
    """

    def __init__(self, acl: AccessControl) -> None:
        self.denied = 0
        self.shut = False
        self._acl = acl
        self._numbers = itertools.count(1)

    def judge(self, address: str, key: str) -> str | None:
        """The name of a connection, None for one that may not enter."""
        if self._acl.by_ipc(address) is None:
            self.denied += 1
            return None
        return f"{next(self._numbers)} {address}"

    def subscriber(self, name: str) -> Subscriber | None:
        """Who has the connection of that name; None: nobody we let in."""
        address = name.partition(" ")[2]
        who = self._acl.by_ipc(address)
        uid, _gid, pid = credentials(address)
        return None if who is None or uid is None or pid is None else Subscriber(name, who, uid, pid)


class LocalPublisher:
    """The publishing socket of fan-outs, bound when it is made; the reactor has to be open.

    libzmq holds ``PUBLISH_MSGS`` messages for one subscriber, or fewer: as many of ``TYPICAL_BYTES`` as a queue may
    hold bytes. A subscriber that does not read while more than these bytes are published is cut off.

    Args:
        allows: whether a subscriber may hear a filter; asked for everything but tokens. None: that is no filter here.
        first: somebody hears that filter from now on.
        last: nobody hears that filter any more.
        answer: the body of OPENED, for tokens; whatever is not in force yet has to be when it returns.
        changed: called when a filter is heard by one more, or one less.
        journal: where what goes and who hears it is recorded; None nowhere.

    Attributes:
        heard: the subscriptions.

    Raises:
        ConfigError: the file is in use.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: NodeConfig,
        acl: AccessControl,
        counters: Counters,
        *,
        allows: Callable[[bytes, Subscriber], bool | None],
        first: Callable[[bytes], None],
        last: Callable[[bytes], None],
        answer: Callable[[], bytes],
        changed: Callable[[], None],
        journal: PipelineJournal | None = None,
    ) -> None:
        if reactor.context is None:
            raise RuntimeError("an exit is opened before its reactor was")
        self._keeper = SubscriberAccess(acl)
        self._counters = counters
        self._allows = allows
        self._first = first
        self._last = last
        self._answer = answer
        self._changed = changed
        self._journal = journal
        self._in_doubt = False
        self.heard = GrantedSubscriptions(alive)
        sock = reactor.context.socket(zmq.XPUB)
        self._release = guard(reactor, sock, self._keeper)
        try:
            tune_local(sock, config.message_bytes_max, send_msgs=limit(config.queue_bytes))
            sock.set(zmq.XPUB_MANUAL, 1)
            self._path = bind_local(sock, config.path(exit_file(Pipeline.FANOUT)), config.ipc_group)
        except BaseException:
            sock.close(0)
            self._release()
            raise
        self._sock = sock
        self._slow_consumers = SlowConsumers(
            reactor, sock, self._path, bytes_max=config.queue_bytes, cut=self._cut
        )
        self._socket = Socket(reactor, sock, self._came, origin="User-Id")
        if journal is not None:
            journal.watch(self._socket, heard=self.heard.count)

    # ------------------------------------------------------------ publishing

    def publish(self, frames: Sequence[bytes]) -> None:
        """Send to whoever hears the first frame; never waits."""
        self._socket.send(frames)
        self._slow_consumers.published(sum(map(len, frames)))

    def _cut(self, pid: int) -> None:
        self._counters.count_dropped(
            "subscribers_cut", "pid %d does not read: cut off, with what waited for it", pid
        )

    # ------------------------------------------------------------ subscriptions

    def _came(self, frames: list[bytes], name: str) -> None:
        data = frames[0]
        if len(frames) != 1 or data[:1] not in (b"\0", b"\1"):
            self._in_doubt = True
            self._counters.count_dropped("malformed_subscription", "saw %d frames of %.64s, expected a subscription",
                                  len(frames), name or "a peer that is gone")  # fmt: skip
        elif data[:1] == b"\0":
            self._ended(data[1:], name)
        else:
            self._asked(data[1:], name)
        if self._in_doubt and not int(self._sock.get(_EVENTS)) & _POLLIN:
            self._in_doubt = False

    def _asked(self, data: bytes, name: str) -> None:
        subscriber = self._keeper.subscriber(name)
        if subscriber is None or self._in_doubt:
            text = "did not grant %.64r to %.64s: cannot tell whose it is"
            self._counters.count_dropped("subscription_in_doubt", text, data[:64], name)
            self.heard.pass_over(data)
            return
        if data[:1] == HANDSHAKE_LETTER and len(data) == TOKEN_BYTES:
            self._sock.setsockopt(zmq.SUBSCRIBE, data)
            self._counters.count("handshakes")
            self.publish((data, encode(Kind.OPENED), self._answer()))
            self._sock.setsockopt(zmq.UNSUBSCRIBE, data)  # answered: nothing of it stays
            return
        allowed = self._allows(data, subscriber) if len(data) <= FILTER_BYTES_MAX else None
        if allowed is None:
            self._counters.count_dropped("unknown_filter", "saw the filter %.64r from %.64s, which is none of ours",
                                  data[:64], name)  # fmt: skip
            return
        if not self.heard.has_room(data, subscriber.uid):
            self._counters.count_dropped(
                "too_many_filters", "no room for the filter %.64r from %.64s", data[:64], name
            )
            self.heard.pass_over(data)
            return
        if allowed:
            self._sock.setsockopt(zmq.SUBSCRIBE, data)
        else:
            self._counters.count_dropped(
                "subscription_denied", "%.64s may not listen to %.64r", name, data[:64]
            )
        if self.heard.add(data, name, subscriber.uid, granted=allowed):
            if self._journal is not None:
                self._journal.heard(data)
            self._first(data)
        self._changed()

    def _ended(self, data: bytes, name: str) -> None:
        if name and not self._in_doubt:
            self._sock.setsockopt(zmq.UNSUBSCRIBE, data)
        if self.heard.remove(data, name):
            if self._journal is not None:
                self._journal.unheard(data)
            self._last(data)
        self._changed()

    def registered(self) -> dict[int, int]:
        """How many filters each process hears, by pid."""
        found: Counter[int] = Counter()
        for data in self.heard.heard():
            found.update({credentials(name)[2] or 0 for name in self.heard.names(data)})
        return found

    def review(self) -> int:
        """Cut off the processes that hear what they may not hear any more; returns how many. They connect and subscribe
        anew, and are then granted what they may hear.
        """
        denied: set[int] = set()
        for data in self.heard.heard():
            for name in self.heard.names(data):
                subscriber = self._keeper.subscriber(name)
                if subscriber is not None and not self._allows(data, subscriber):
                    denied.add(subscriber.pid)
        for pid in denied:
            self._slow_consumers.shut_down(pid)
        return len(denied)

    # ------------------------------------------------------------ end

    def status(self) -> dict[str, Any]:
        """The socket, see ``frontend.status_of``; ``denied``: connections refused, ``filters``: heard ones."""
        status = status_of("XPUB", f"ipc://{self._path}", self._socket)
        return {**status, "denied": self._keeper.denied, "filters": len(self.heard)}

    def close(self, linger_ms: int = 0) -> None:
        """Close; libzmq goes on sending for ``linger_ms``. Harmless twice."""
        self._slow_consumers.close()
        self._socket.close(linger_ms)
        self._release()
        remove_socket(self._path)


def limit(send_bytes: int) -> int:
    """How many messages may wait for one subscriber, of ``send_bytes`` in all when they are of usual size."""
    return min(PUBLISH_MSGS, max(send_bytes // TYPICAL_BYTES, FEWEST_MSGS))


def alive(name: str) -> bool:
    """Whether the process at the end of the connection of that name may still be there."""
    _uid, _gid, pid = credentials(name)
    if not pid:
        return True  # of another namespace: cannot be told
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
