"""What belongs to one ``Settings``: its one real thread, which owns the sockets, and what that does for the sessions.

What is counted (``reactor.counters``; each also says what was lost, so that nothing disappears without a trace)::

    calls, casts, fanouts, notifications        handed over by callers
    answered, timed_out, unroutable, refused    ends of calls
    chosen_again                                refused or taken back, and given to another server
    nobody                                      casts, fan-outs, notifications with nobody to hear them
    not_reached                                 nodes that a fan-out or notification did not reach
    unflushed                                   still here when the session was closed
    late, malformed                             replies nobody waits for; messages nobody understands
    received, expired, strays, gaps, dropped    of listeners: taken in; too old when taken; for nobody here; missing
                                                fan-outs by number; without room, or unread at the end
    opened_again                                registrations repeated after a proxy has restarted
    repeated, had_already                       sent again since a connection ended; of listeners: and had come before
    lost                                        casts whose node was gone before they could be sent again
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from typing import Any, Final

from broker.oslo.client.calls import CallSender, Cast, CastSender
from broker.oslo.client.links import TrustedFolder
from broker.oslo.client.listeners import Listeners
from broker.oslo.client.publishing import Fanouts, Notifications, Publication, Publisher
from broker.oslo.client.routing import Chooser, RoutingTable
from broker.oslo.client.waiting import LogWriter, Waiter, Waiters
from broker.oslo.contract import Closed, OsloFailure, Settings, TooLarge, Undelivered
from broker.oslo.directory.state import Server
from broker.oslo.reactor import Reactor, natives
from broker.oslo.reactor.counters import Counters

log = logging.getLogger("headgate.oslo")

THREAD_NAME: Final = "headgate-oslo-sockets"
SAID_S: Final = 0.5
"""How long the last lines of the thread may take to be written."""
END_S: Final = 5.0
"""How much longer than its linger the end of a client is waited for: then the thread is stuck, which is a bug."""
FLUSH_LOOK_S: Final = 0.005
QUIET_S: Final = 60.0
"""Between two lines about the same topic, node or peer in an application's log."""

HANDED_MSGS: Final = 128
"""Small on purpose. A caller that never waits keeps the interpreter's lock, and the thread of the sockets gets it once
in some milliseconds; a caller that waits for room lets it work through everything at once."""
HANDED_BYTES: Final = 8 << 20


class SubmitQueue(Waiters):
    """What callers have handed over and the thread of the sockets has not looked at yet: bounded, so that they wait.
    The messages themselves are posted to it.

    Callers count what they give, under a real lock; the thread of the sockets counts what it takes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = natives.allocate_lock()
        self._given = self._given_bytes = 0
        self._taken = self._taken_bytes = 0

    @property
    def waiting(self) -> int:
        """Messages that were given and not taken."""
        return self._given - self._taken

    def has_room(self) -> bool:
        """Whether another message finds room; the one that makes it full still does."""
        return self.waiting < HANDED_MSGS and self._given_bytes - self._taken_bytes < HANDED_BYTES

    def give(self, size: int) -> bool:
        """Make room for a message of ``size`` bytes; False: there is none. By callers."""
        with self._lock:
            room = self.has_room()
            if room:
                self._given += 1
                self._given_bytes += size
            return room

    def take(self, size: int) -> None:
        """It is looked at. By the thread of the sockets."""
        self._taken += 1
        self._taken_bytes += size
        if len(self) and 2 * self.waiting <= HANDED_MSGS:
            self.wake()


class Client:
    """One thread with one set of sockets, shared by all sessions of equal settings.

    ``start``, ``submit``, ``post``, ``end_inboxes``, ``end``, ``submit_queue``, ``routes`` (its lookups) and ``over``
    are for any thread; all else is for its own.

    Attributes:
        users: sessions; under the lock of the process's state.
        over: True when it is closing or closed: what is posted now may be forgotten.
        failed: True when its thread has ended in an error: whoever comes next makes a new one.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.users = 0
        self.over = self.failed = False
        self._say = LogWriter()
        reactor = self.reactor = Reactor(say=self._say, clock=time.monotonic)
        self._ended: Waiter | None = None
        self.submit_queue = SubmitQueue()
        self.counters = Counters(reactor, quiet_s=QUIET_S)
        self._pid = os.getpid()
        self.thread = 0
        self._call = reactor.call_threadsafe
        self._flush_until_s = 0.0
        self.folder = TrustedFolder(settings.ipc_dir, self.counters.say)
        self.routes = RoutingTable(reactor, settings, self.folder, self._directory_changed)
        chooser: Chooser[Server] = Chooser(node_at=2)
        self.calls = CallSender(self, chooser)
        self.casts = CastSender(self, chooser, self.calls.confirm)
        self.fanouts = Fanouts(self)
        self.notifications = Notifications(self)
        self._senders = (self.calls, self.casts, self.fanouts, self.notifications)
        self.listeners = Listeners(self)

    # ------------------------------------------------------------ its thread

    def start(self) -> None:
        """Open what the reactor needs and start the thread.

        Raises:
            OsloFailure: no descriptors or memory for it.
        """
        try:
            self.reactor.open()
            self.reactor.call_threadsafe(self._open)
            natives.start_thread(self._run, THREAD_NAME)
        except (OSError, RuntimeError) as error:
            number = error.errno if isinstance(error, OSError) and error.errno else errno.EAGAIN
            raise OsloFailure(f"the thread of the sockets cannot be started: {error}", number) from error

    def _run(self) -> None:
        try:
            self.reactor.run()
        except Exception as error:
            self._fail(error)
        finally:
            self.reactor.close()
            if self._ended is not None:
                self._ended.set()

    def _fail(self, error: Exception) -> None:
        """The loop itself has failed: say so, leave nobody waiting, and let whoever comes next begin anew."""
        self.failed = True
        self.reactor.report(error)
        text = (
            "the thread of the sockets has ended: calls that wait fail, the next one starts a new thread;"
            " servers and listeners of this process (pid %d) hear nothing until they are started again"
        )
        self.reactor.say(logging.CRITICAL, text, (os.getpid(),))
        try:
            self._shut(0)
        except Exception as other:
            self.reactor.report(other)

    def end(self, ended: Waiter) -> Callable[[], None]:
        """Send what was handed over, at most ``linger_s``, then close everything and end the thread.

        Returns what waits for that, not much longer than it may take; ``ended`` has to be of the thread that calls it.
        """
        if self._ended is None:
            self._ended = ended
            self.reactor.call_threadsafe(self._close)
        else:
            ended.set()  # somebody else waits for it
        if self.failed:  # looked at last: the thread looks at ``_ended`` after it has set it
            ended.set()

        def wait() -> None:
            seconds = self.settings.linger_s + END_S
            if not ended.wait(seconds):
                log.error("the sockets of %s were not closed within %.1f s", self.settings.ipc_dir, seconds)
            self._say.flush(SAID_S)

        return wait

    # ------------------------------------------------------------ for any thread

    def post(self, call: Callable[..., None], *args: Any) -> bool:
        """Have ``call`` called in the thread of the sockets. False: it is over, or we are in a forked child."""
        if self._pid != os.getpid():
            return False
        self._call(call, *args)
        return not self.over

    def submit(
        self,
        sender: CastSender | Publisher,
        message: Cast | Publication,
        retry: int | None,
        *,
        patient: bool = True,
    ) -> None:
        """Hand ``message`` over to ``sender`` in the thread of the sockets as soon as there is room.

        Args:
            sender: of the pipeline.
            message: of that pipeline.
            retry: how often to wait for room, ``retry_s`` each time; None or -1 for ever.
            patient: without a directory, wait for one as often as ``retry`` allows; otherwise only ``ready_s``.

        Raises:
            TooLarge, Closed. Undelivered: there was no room, or nothing is known of who listens where.
        """
        address, size, routes, settings = message.address, message.size, self.routes, self.settings
        if size > routes.body_max:
            raise TooLarge(address, size, routes.body_max)
        queue = self.submit_queue
        if self.is_ours():
            retry = 0  # whoever could make room is waiting for us
        elif not routes.synced and not queue.wait(settings.ready_s, lambda: self.over or routes.synced):
            if not patient:
                retry = 0
            elif retry != 0:
                log.warning("%s: no answer from %s, still waiting", address, routes.whereabouts())
        left = -1 if retry is None else retry
        while not routes.synced or sender.busy(address) or not queue.give(size):
            if self.over:
                raise Closed(f"{address}: the session is closed")
            if left == 0 and routes.synced:
                raise Undelivered(
                    f"{address}: not handed over, its queue is full ({(retry or 0) + 1} attempts)"
                )
            if left == 0:
                raise Undelivered(
                    f"{address}: not sent, since nothing is known of who listens where: no answer from"
                    f" {routes.whereabouts()} within {settings.ready_s:g} s"
                )
            left -= 1
            queue.wait(
                settings.retry_s,
                lambda: self.over or (routes.synced and not sender.busy(address) and queue.has_room()),
            )
        if not self.post(sender.start, message):
            raise Closed(f"{address}: the session is closed")

    def is_ours(self) -> bool:
        """Whether the caller is the thread of the sockets, which must not wait for itself."""
        return natives.thread_id() == self.thread

    def end_inboxes(self) -> None:
        """The process ends: what its servers have not taken is dropped and counted, without waiting for anything."""
        for inbox in self.listeners.inboxes:
            inbox.cut_off()
            inbox.close()

    # ------------------------------------------------------------ in the thread of the sockets

    def _open(self) -> None:
        """Begin: read the directory. Sockets to nodes are opened when they are needed."""
        self.thread = natives.thread_id()
        self.routes.open()

    def _directory_changed(self, nodes: set[str]) -> None:
        for sender in self._senders:
            sender.directory_changed(nodes)
        self.submit_queue.wake()

    def on_link_change(self) -> None:
        """Some link is up, down, full or has room again."""
        self.submit_queue.wake()
        self.reactor.call_soon(self.calls.retries.retry)  # not from within what brings it

    def leave(self, owner: object, left: Waiter) -> None:
        """A session goes, others stay: nobody waits for its calls."""
        self.calls.cut_off(owner)
        left.set()

    def _close(self) -> None:
        self.over = True
        self._flush_until_s = self.reactor.now() + self.settings.linger_s
        self.calls.end_calls()
        self.casts.closed = True
        self.reactor.call_soon(self._flush)  # behind what was posted before

    def _flush(self) -> None:
        now = self.reactor.now()
        waiting = self.submit_queue.waiting + self.listeners.waiting
        waiting += sum(sender.waiting for sender in self._senders)
        if waiting and now < self._flush_until_s:
            self.reactor.call_later(FLUSH_LOOK_S, self._flush)
            return
        self._shut(max(int((self._flush_until_s - now) * 1000), 1))
        self.reactor.stop()

    def _shut(self, linger_ms: int) -> None:
        self.over = True
        self.routes.close()
        self.listeners.close(linger_ms)
        for sender in reversed(self._senders):
            sender.close(linger_ms)
        self.submit_queue.wake()

    # ------------------------------------------------------------ for status

    def status(self) -> dict[str, Any]:
        """Counts, sockets, directory."""
        return {
            "counts": {name: n for name, n in self.counters.counts.items() if n},
            "pending": len(self.calls.calls),
            "directory": self.routes.status(),
            "links": {str(sender.pipeline): sender.status() for sender in self._senders},
            **self.listeners.status(),
        }
