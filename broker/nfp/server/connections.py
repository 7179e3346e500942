"""The connections of one ROUTER by key, those included that have not spoken.

Without ZMQ_ROUTER_HANDOVER libzmq ignores a connection whose identity another one still has, goes on ignoring it when
that one ends, and tells nobody. So a peer that closes its socket and opens the next at once could hang for ever. Four
things are done about it, and all need to know which keys are there:

* the authenticator lets a connection wait while another one of its key is there, until that one is put away (``has``,
  ``gone``);
* an earlier connection of a key whose machine has left even TCP's keep-alive unanswered, while another of the same key
  waits, is dead and is cut;
* when a connection ends, those of its key that were let in before and have not spoken since are cut: libzmq makes them
  anew within 0.1 s, and an idle one loses nothing by it;
* when a connection ends that never spoke, or was turned away, nobody knows or cares what its identity was: those of all
  keys that came after it and have not spoken since are cut.

libzmq does not say which of the accepted connections the authenticator is asked about. The one that has waited longest,
of those from the same host, is taken for it; the first message of a connection corrects that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final

from broker.transport.zeromq.connection import inode, shut_down, silent_s

log = logging.getLogger("headgate")
SPEAKS_S: Final = 0.5
"""A peer that comes back says READY, OPEN or a request at once; what has not spoken so long after is idle or stuck."""
CHECK_S: Final = 1.0
SETTLE_S: Final = 0.02
"""Between the news of an end and libzmq's having put the connection away, which takes two turns of both sides."""


class _Seen:
    """A connection. ``key`` is None until the authenticator has seen it."""

    __slots__ = ("fd", "host", "inode", "key", "number", "refused", "spoke")

    def __init__(self, fd: int, number: int) -> None:
        self.fd = fd
        self.number = number
        self.refused = False
        self.inode = inode(fd)
        self.host = _host(fd)
        self.key: str | None = None
        self.spoke = False


class Connections:
    """Who is connected.

    Args:
        loop: for timers. silence_s: how long a live connection may be silent at most, TCP's keep-alive included.
        gone: told of a key whose last connection libzmq has put away.

    Attributes:
        cut: connections that were cut because they were dead, or silent.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, silence_s: float, gone: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._silence_s = silence_s
        self._gone = gone
        self._seen: dict[int, _Seen] = {}
        self._unjudged: dict[_Seen, None] = {}
        """In the order they came."""
        self._silent: dict[str, dict[_Seen, None]] = {}
        """By key, those that were let in and have not spoken."""
        self._keys: Counter[str] = Counter()
        self._checking: set[str] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._count = 0
        self._stranger = 0
        """The oldest of the strangers that have just ended; 0: none has."""
        self.cut = 0

    def __contains__(self, fd: int) -> bool:
        return fd in self._seen

    def has(self, key: str) -> bool:
        """Whether a connection of ``key`` is there, or not put away yet."""
        return key in self._keys

    def host(self, fd: int) -> str:
        """Where the connection ``fd`` comes from; "" when that was not to be seen any more."""
        seen = self._seen.get(fd)
        return seen.host if seen is not None else ""

    def accepted(self, fd: int) -> None:
        """A connection was made."""
        self.ended(fd)
        self._count += 1
        seen = self._seen[fd] = _Seen(fd, self._count)
        self._unjudged[seen] = None

    def granted(self, address: str, key: str) -> None:
        """The authenticator let somebody in."""
        host = _plain(address)
        for seen in self._unjudged:
            if seen.host == host:
                del self._unjudged[seen]
                self._assign(seen, key)
                break
        self._check_later(key)

    def spoke(self, fd: int, key: str) -> None:
        """The first message of a connection came."""
        seen = self._seen.get(fd)
        if seen is None or seen.spoke:
            return
        if seen.key != key:
            self._correct(seen, key)
        seen.spoke = True
        self._no_longer_silent(seen)
        self._check_later(key)

    def refused(self, fd: int) -> None:
        """What the connection ``fd`` said first was a name that is not its own."""
        seen = self._seen.get(fd)
        if seen is not None:
            seen.refused = True

    def ended(self, fd: int) -> None:
        """The connection ``fd`` is gone, and everything that came over it was read."""
        seen = self._seen.pop(fd, None)
        if seen is None:
            return
        self._unjudged.pop(seen, None)
        key = seen.key
        if key is None:
            return
        self._later(SETTLE_S, lambda: self._put_away(key))
        if not seen.spoke:
            self._no_longer_silent(seen)
        if seen.refused or not seen.spoke:
            self._stranger_ended(seen)
        elif stuck := list(self._silent.get(key, ())):
            self._later(SPEAKS_S, lambda: self._release(stuck))

    def _stranger_ended(self, seen: _Seen) -> None:
        if self._stranger:
            self._stranger = min(self._stranger, seen.number)
        else:
            self._stranger = seen.number
            self._later(SETTLE_S, self._suspect)

    def _suspect(self) -> None:
        """Whoever came after the stranger and is silent may have its identity."""
        oldest, self._stranger = self._stranger, 0
        stuck = [seen for same in self._silent.values() for seen in same if seen.number > oldest]
        if stuck:
            self._later(SPEAKS_S, lambda: self._release(stuck))

    def close(self) -> None:
        """Forget everything."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for known in (self._seen, self._unjudged, self._silent, self._keys):
            known.clear()

    def _assign(self, seen: _Seen, key: str) -> None:
        seen.key = key
        self._keys[key] += 1
        self._silent.setdefault(key, {})[seen] = None

    def _no_longer_silent(self, seen: _Seen) -> None:
        assert seen.key is not None
        same = self._silent.get(seen.key, {})
        same.pop(seen, None)
        if not same:
            self._silent.pop(seen.key, None)

    def _correct(self, seen: _Seen, key: str) -> None:
        """``seen`` has ``key``; who was taken for it has, if anything, what ``seen`` was taken for."""
        other = next(iter(self._silent.get(key, ())), None)
        former = seen.key
        if former is not None:
            self._no_longer_silent(seen)
            self._keys[former] -= 1
        self._unjudged.pop(seen, None)
        self._assign(seen, key)
        if other is None:
            if former is not None:
                self._keys[former] += 1
                self._put_away(former)
            return
        self._no_longer_silent(other)
        self._keys[key] -= 1
        if former is None:
            other.key = None
            self._unjudged[other] = None
        else:
            self._assign(other, former)

    def _put_away(self, key: str) -> None:
        self._keys[key] -= 1
        if self._keys[key] <= 0:
            del self._keys[key]
            self._gone(key)

    def _check_later(self, key: str) -> None:
        if key and self._keys[key] > 1 and key not in self._checking:
            self._checking.add(key)
            self._later(CHECK_S, lambda: self._check(key))

    def _check(self, key: str) -> None:
        """Cut connections of ``key`` that are dead and do not know it, and look again while somebody waits."""
        self._checking.discard(key)
        same = [seen for seen in self._seen.values() if seen.key == key]
        if len(same) < 2 or key not in self._silent:
            return
        for seen in same:
            silent = silent_s(seen.fd, seen.inode)
            if seen.spoke and silent > self._silence_s:
                log.warning(
                    "a connection from %s, silent for %.1f s, is cut: another of its key waits",
                    seen.host,
                    silent,
                )
                self._cut(seen)
        self._check_later(key)

    def _release(self, stuck: list[_Seen]) -> None:
        for seen in stuck:
            if not seen.spoke and self._seen.get(seen.fd) is seen:
                log.info(
                    "a silent connection from %s is cut: it may wait for a name that is free now", seen.host
                )
                self._cut(seen)

    def _cut(self, seen: _Seen) -> None:
        self.cut += 1
        shut_down(seen.fd, seen.inode)

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        def due() -> None:
            self._timers.discard(timer)
            act()

        timer = self._loop.call_later(delay_s, due)
        self._timers.add(timer)


def _plain(address: str) -> str:
    """The host as ``_host`` writes it; libzmq tells ``localhost:UID:GID:PID`` of an ipc peer."""
    head, *numbers = address.rsplit(":", 3)
    if len(numbers) == 3 and head and ":" not in head and all(number.isdigit() for number in numbers):
        return "localhost"
    return address.removeprefix("::ffff:")


def _host(fd: int) -> str:
    try:
        with socket.socket(fileno=os.dup(fd)) as same:
            name = same.getpeername()
    except OSError:
        return ""
    return _plain(str(name[0])) if isinstance(name, tuple) else "localhost"
