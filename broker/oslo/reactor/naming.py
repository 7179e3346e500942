"""Names of hosts, looked up beside the reactor: libzmq is only ever given numbers to connect to.

libzmq resolves names in the one thread that moves all bytes, at each attempt to connect; a name server that does not
answer would stop every socket of the process, those on the same machine, too. Here a name costs only the sockets that
wait for it: real threads look it up, what they find is kept for some seconds, failures are tried again with growing
pauses as long as a socket wants it.

A thread that hangs in the system's resolver is left behind: it is a daemon, has no lock, and whatever it finds after
its reactor was closed is forgotten.
"""

from __future__ import annotations

import _queue
import _socket
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from broker.backoff import Backoff
from broker.endpoints import hosts_of
from broker.oslo.reactor import natives
from broker.oslo.reactor.loop import Reactor, Timer
from broker.rates import Throttle

if TYPE_CHECKING:
    from broker.oslo.reactor.link import Link

THREADS_MAX: Final = 4
"""Names that are looked up at the same time: one that takes long must not keep all others."""
HOSTS_MAX: Final = 4096
"""Names whose addresses are kept; beyond it those that nobody waits for are forgotten."""
FRESH_S: Final = 10.0
"""Addresses are used for so long without asking again: all pipelines of a node are connected to in one go."""
PAUSE_FIRST_S: Final = 0.25
PAUSE_LAST_S: Final = 5.0
"""Between two attempts at a name that cannot be resolved: the first and the longest; doubled from the one to the other.
"""
QUIET_S: Final = 5.0
"""Between two lines in the log, whatever name they are about: without a name server all fail at once."""
THREAD_NAME: Final = "headgate-oslo-names"

Addresses = tuple[str, ...]


def look_up(host: str) -> Addresses:
    """The addresses of ``host`` in numbers, IPv4 first, as libzmq would take them. Blocks, for a minute if need be.

    Raises:
        OSError: it has none, or nobody who could know answers.
        ValueError: it cannot be the name of a host.
    """
    found = hosts_of(_socket.getaddrinfo(host, None, 0, _socket.SOCK_STREAM))
    return tuple(sorted(found, key=lambda each: ":" in each))


def _work(queue: Any, done: Callable[[str, Addresses, str], None]) -> None:
    """One thread: look names up until None comes."""
    while (host := queue.get()) is not None:
        addresses: Addresses = ()
        why = "it has no address"
        try:
            addresses = look_up(host)
        except Exception as error:  # whatever it is, the next name may be resolved
            why = str(error) or type(error).__name__
        done(host, addresses, why)


class _Host:
    """One name.

    Attributes:
        addresses: as last found; they stay in use while nobody can say anything newer.
        waiting: links that want to know.
        asked: it waits for a thread, or one is at it.
    """

    __slots__ = (
        "addresses",
        "asked",
        "backoff",
        "fresh_until_s",
        "said",
        "timer",
        "waiting",
    )

    def __init__(self) -> None:
        self.addresses: Addresses = ()
        self.fresh_until_s = 0.0
        self.backoff = Backoff(PAUSE_FIRST_S, PAUSE_LAST_S, spread=False)
        self.waiting: dict[Link, None] = {}
        self.asked = self.said = False
        self.timer: Timer | None = None


class Names:
    """The names that the sockets of one reactor connect to; for its thread."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._hosts: dict[str, _Host] = {}
        self._queue: Any = _queue.SimpleQueue()  # real, whatever eventlet has patched
        self._threads = 0
        self._lines = Throttle(QUIET_S)

    def find(self, host: str, link: Link) -> None:
        """Tell ``link`` the addresses of ``host``: now when they are fresh, else when they are found."""
        each = self._hosts.get(host)
        if each is None:
            if len(self._hosts) >= HOSTS_MAX:
                self._forget()
            each = self._hosts[host] = _Host()
        if each.addresses and self._reactor.now() < each.fresh_until_s:
            link.found(each.addresses)
            return
        each.waiting[link] = None
        if not each.asked and each.timer is None:
            self._ask(host, each)

    def _forget(self) -> None:
        kept = {host: each for host, each in self._hosts.items() if each.waiting or each.asked or each.timer}
        self._hosts = kept

    def close(self) -> None:
        """Nobody wants anything any more; threads end when they return."""
        for _ in range(self._threads):
            self._queue.put(None)
        self._threads = 0
        self._queue = _queue.SimpleQueue()
        self._hosts.clear()

    # ------------------------------------------------------------ asking

    def _ask(self, host: str, each: _Host) -> None:
        if not self._staffed():
            self._later(host, each)
            return
        each.asked = True
        self._queue.put(host)

    def _staffed(self) -> bool:
        """Start one thread more, of those there may be; False: there is none at all."""
        if self._threads < THREADS_MAX:
            queue, reactor, took = self._queue, self._reactor, self._took

            def done(host: str, addresses: Addresses, why: str) -> None:
                reactor.call_threadsafe(took, queue, host, addresses, why)

            try:
                natives.start_thread(lambda: _work(queue, done), THREAD_NAME)
                self._threads += 1
            except RuntimeError as error:
                self._say(logging.ERROR, "no thread to look up names: %s", str(error))
        return self._threads > 0

    def _later(self, host: str, each: _Host) -> None:
        each.timer = self._reactor.call_later(each.backoff.after(), self._again, host, each)

    def _again(self, host: str, each: _Host) -> None:
        each.timer = None
        each.waiting = {one: None for one in each.waiting if not one.closed}
        if each.waiting:
            self._ask(host, each)
        else:
            self._hosts.pop(host, None)

    # ------------------------------------------------------------ answers

    def _took(self, queue: object, host: str, addresses: Addresses, why: str) -> None:
        each = self._hosts.get(host)
        if queue is not self._queue or each is None:
            return  # asked before we were closed
        each.asked = False
        if addresses:
            each.addresses, each.fresh_until_s = addresses, self._reactor.now() + FRESH_S
            each.backoff.reset()
            if each.said:
                each.said = False
                self._say(logging.INFO, "host %.255r is known again: %s", host, addresses[0])
        else:
            if not each.said:
                text = "host %.255r cannot be resolved: %.200s; tried again while it is needed"
                each.said = self._say(logging.WARNING, text, host, why)
        if not each.addresses:
            self._later(host, each)
            return
        waiting, each.waiting = each.waiting, {}
        for link in waiting:
            self._reactor.call_soon(link.found, each.addresses)

    def _say(self, level: int, text: str, *values: object) -> bool:
        """False: something was said just now; whoever needs it will try again."""
        admitted = self._lines.admits(None, self._reactor.now())
        if admitted:
            self._reactor.say(level, text, values)
        return admitted


_names: dict[Reactor, Names] = {}


def names_of(reactor: Reactor) -> Names:
    """The names of ``reactor``, until it is closed."""
    names = _names.get(reactor)
    if names is None:
        names = _names[reactor] = Names(reactor)
        reactor.at_close.append(lambda: _end(reactor))
    return names


def _end(reactor: Reactor) -> None:
    names = _names.pop(reactor, None)
    if names is not None:
        names.close()
