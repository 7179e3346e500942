"""How far events may run ahead of the slowest broker: windows on the links of the tree.

Theory of operation. Every event goes up to rank 0 and from there to every broker. A publisher faster than the slowest
of them would fill the queues on the way: first those of the system, which nobody can look into and in which requests,
answers and keepalives stand, too, then the outboxes, up to where a link is ended. So each Headgate broker tells its
neighbours of the tree how much of their events it has handled, and whether it wants more::

    either end  --OPEN n-->     the other  n bytes of your events are handled since we joined
                --SHUT n-->                the same; and for now nobody who publishes should add to them
                --HANDLED n-->             n of your messages, whatever they are, are handled
                --MARK n-->                a large one was before this: MARKED n says that it is handled

A neighbour is *behind* when it said SHUT, or when more than ``WINDOW_BYTES`` of what it was sent are not handled yet.
Of one that tells nothing, such as deployed flux-core, all that is known is that its outbox is above high water; of the
others that says nothing about events. Two things follow::

    a child is behind, or a subscriber that is waited for   ``_below``    the parent is told SHUT
    that, or the parent is behind                           ``blocked``   the children are told SHUT, and publishers
                                                                          at this broker wait (``node.pressure``)

So a broker that is behind stops publishers everywhere: its SHUT goes up to rank 0 and from there down to all. This
cannot become a circle: ``_below`` follows from the leaves upward, ``blocked`` from rank 0 downward, and the links of
the tree are read, and their events handed on, whatever is blocked. What is under way between two brokers is bounded by
the window, what waits at one by the windows of all who publish.

HANDLED is for requests: a neighbour that has more than a window of messages to handle makes its outbox choked (see
``transport.outbox.InFlight``), and callers that can be paused wait; a few large ones fill it, too. Only callers
of this broker are: the next one on the way has windows of its own.

While there is no parent, events on their way up are kept, within a bound, until there is one again (``HeldEvents``). An
event message carries no answer: its publisher cannot be told that it was refused, so that it is kept instead.
(``event.publish`` is a request, and answered EHOSTUNREACH at once.) What is kept goes up first when the broker joins,
in the order in which it came. It is lost with the process, and what does not fit is lost and counted. There is no limit
in time: a publisher of what must not come late says in the payload when that was.
"""

# compiled: mypyc

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from broker.routing.counters import MessageCounters
from broker.routing.port import Port
from broker.wire.message import HANDLED, OPEN, SHUT, Message, control
from broker.wire.shares import cost

log = logging.getLogger("headgate")

HELD_BYTES: int = 16 << 20
"""Limit of the events held of all users, as of ``shares.cost``: 4 000 small events."""
USER_BYTES: int = 4 << 20
"""Limit of the events held of one user, the one that the event names, so that nobody takes the room of all others; and
the largest event that is."""
WINDOW_BYTES: Final = 1 << 20
"""Bytes that may be under way on one link: 250 small events, which a broker handles in 2 to 5 ms, or 1 MiB in large
ones; across 1 ms of network that is far more than a broker can handle. A neighbour that was behind is so until half of
it is handled."""
TOLD_BYTES: Final = WINDOW_BYTES // 8
"""How often a neighbour is told, by what was handled since: 20 bytes for each 32 small events."""
TOLD_MSGS: Final = 112
"""The same in messages, if there is something else to be sent: alone such a word wakes a process and its thread ..."""
LATE_MSGS: Final = 192
"""... and after so many in any case: fewer than ``outbox.AGAIN_MSGS``, so that a sender that waits for room hears of
it."""
NEVER: Final = 1 << 62
"""Of what nobody counts or waits for."""
_WORD: Final = 0xFFFFFFFF


class HeldEvents:
    """Stamped events that wait for a parent, in order.

    Attributes:
        refused: events that did not fit since ``take``.
    """

    __slots__ = ("_by_user", "_bytes", "_messages", "refused")

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._bytes: int = 0
        self._by_user: dict[int, int] = {}
        self.refused: int = 0

    def add(self, message: Message) -> bool:
        """Keep an event; False when there is no room."""
        userid, size = message.userid, cost(message)
        used = self._by_user.get(userid, 0) + size
        if used > USER_BYTES or self._bytes + size > HELD_BYTES:
            self.refused += 1
            return False
        self._by_user[userid] = used
        self._bytes += size
        self._messages.append(message)
        return True

    def take(self) -> list[Message]:
        """All of them; nothing is kept any more."""
        messages = self._messages
        self._messages, self._bytes, self._by_user, self.refused = [], 0, {}, 0
        return messages


class Window:
    """Counts of one neighbour of the tree: sent to it and handled by it, received from it; in bytes as of ``cost``.

    Attributes:
        reports: it tells us, and wants to be told. base: ``Flow.down`` when it joined, for a child; 0 for the parent.
        handled: of what it was sent. shut, choked: it said SHUT; its outbox is above high water. behind: see ``flow``.
        received: from it. due: when ``received`` is at this, it is told. messages, messages_due: the same in messages.
    """

    __slots__ = (
        "base",
        "behind",
        "choked",
        "due",
        "handled",
        "messages",
        "messages_due",
        "received",
        "reports",
        "shut",
    )

    def __init__(self, reports: bool, base: int) -> None:
        self.reports: bool = reports
        self.base: int = base
        self.handled: int = 0
        self.shut: bool = False
        self.choked: bool = False
        self.behind: bool = False
        self.received: int = 0
        self.due: int = TOLD_BYTES if reports else NEVER
        self.messages: int = 0
        self.messages_due: int = TOLD_MSGS if reports else NEVER


class Flow:
    """The windows of one broker.

    Attributes:
        blocked: publishers at this broker have to wait. on_open: called when it is no longer so.
        handled_due: the ports that are to be told what is handled.
        down, up: sent to every child that was there, and to the parent since it is the parent.
        down_mark, up_mark: above these somebody may be behind, see ``update``.
    """

    __slots__ = (
        "_below",
        "_children",
        "_clients",
        "_counters",
        "_late",
        "_parent",
        "blocked",
        "down",
        "down_mark",
        "handled_due",
        "on_open",
        "up",
        "up_mark",
    )

    def __init__(self, counters: MessageCounters) -> None:
        self.blocked: bool = False
        self.on_open: Callable[[], None] | None = None
        self.handled_due: dict[Port, None] = {}
        self.down: int = 0
        self.up: int = 0
        self.down_mark: int = NEVER
        self.up_mark: int = NEVER
        self._counters: MessageCounters = counters
        self._below: bool = False
        self._parent: Port | None = None
        self._children: dict[Port, Window] = {}
        self._clients: dict[Port, None] = {}
        self._late: set[Port] = set()

    # -- neighbours come and go ----------------------------------------------------------------

    def attach_child(self, port: Port) -> None:
        """A child joined; it is told at once when publishers have to wait."""
        window = port.window = self._children[port] = Window(port.windowed, self.down)
        if self.blocked:
            self._tell(port, window, True)
        self.update()

    def attach_parent(self, port: Port) -> None:
        """We joined a parent."""
        self.up = 0
        self._parent = port
        window = port.window = Window(port.windowed, 0)
        if self._below:
            self._tell(port, window, True)
        self.update()

    def detach(self, port: Port) -> None:
        """``port`` is gone, whatever it was: nobody waits for it."""
        if port in self._late:
            self.wait_for(port, False)
        if port.window is not None:
            port.window = None
            self._children.pop(port, None)
            self._clients.pop(port, None)
            self.handled_due.pop(port, None)
            if port is self._parent:
                self._parent = None
            self.update()

    # -- what is under way ---------------------------------------------------------------------

    def send_window(self, port: Port, window: Window) -> None:
        """``received`` came to what was ``due``: tell it."""
        self._tell(port, window, self.blocked if port is not self._parent else self._below)

    def attach_client(self, port: Port) -> None:
        """A client wants to be told how many of its messages are handled, and when publishers wait, from now on."""
        if port.window is None:
            port.window = Window(False, 0)
            port.window.messages_due = TOLD_MSGS
            self._clients[port] = None
            if self.blocked:
                self._tell_client(port)

    def count_handled(self, port: Port, window: Window, count: int) -> None:
        """``count`` messages of ``port`` are handled: it is told when there is something else for it, or late."""
        window.messages += count
        late = window.messages - window.messages_due
        if late >= LATE_MSGS - TOLD_MSGS:
            self.send_handled(port)
        elif late >= 0:
            self.handled_due[port] = None

    def send_handled(self, port: Port) -> None:
        """There is something else for ``port``: what is handled goes with it."""
        self.handled_due.pop(port, None)
        window = port.window
        if window is not None:
            window.messages_due = window.messages + TOLD_MSGS
            self._counters.sent_controls += 1
            port.send(control(HANDLED, window.messages & _WORD))

    def received_window(self, port: Port, count: int, shut: bool) -> None:
        """OPEN or SHUT of a neighbour."""
        window = port.window
        if window is None or not window.reports:
            return
        sent = self.up if port is self._parent else self.down - window.base
        under_way = (sent - count) & _WORD
        if under_way > _WORD >> 1:  # it has counted what was never sent: it cannot be behind
            log.warning("%s has handled more events than it was sent, it says", port.name)
            under_way = 0
        window.handled = sent - under_way
        window.shut = shut
        was_behind = window.behind
        self._judge(window, sent)
        if window.behind is not was_behind:
            self.update()

    def choked(self, port: Port, choked: bool) -> None:
        """The outbox of a neighbour crossed a water mark."""
        if port.window is not None:
            port.window.choked = choked
            self.update()

    def wait_for(self, port: Port, wanted: bool) -> None:
        """The outbox of a subscriber is above high water, and publishers shall wait for it; or they no longer shall."""
        if wanted:
            self._late.add(port)
        else:
            self._late.discard(port)
        self._tell_changes()

    def update(self) -> None:
        """Find the neighbours that are behind, and the count from which on this has to be done again."""
        self.down_mark = self.up_mark = NEVER
        for window in self._children.values():
            self.down_mark = min(self.down_mark, self._judge(window, self.down - window.base) + window.base)
        if self._parent is not None and self._parent.window is not None:
            self.up_mark = self._judge(self._parent.window, self.up)
        self._tell_changes()

    def _judge(self, window: Window, sent: int) -> int:
        """Whether it is behind; returns what may be sent before it is, or ``NEVER`` if it is or nobody knows."""
        # one that was behind is so until half of its window is handled, not until the next event
        allowed = WINDOW_BYTES // 2 if window.behind else WINDOW_BYTES
        late = window.reports and sent - window.handled > allowed
        window.behind = late or window.shut or (window.choked and not window.reports)
        return window.handled + WINDOW_BYTES if window.reports and not window.behind else NEVER

    def _tell_changes(self) -> None:
        """Tell neighbours and clients when publishers have to wait, or no longer have to."""
        below = bool(self._late) or any(window.behind for window in self._children.values())
        parent = self._parent
        above = parent is not None and parent.window is not None and parent.window.behind
        if below is not self._below:
            self._below = below
            if parent is not None and parent.window is not None:
                self._tell(parent, parent.window, below)
        if self.blocked is not (below or above):
            self.blocked = below or above
            for port, window in self._children.items():
                self._tell(port, window, self.blocked)
            for port in self._clients:
                self._tell_client(port)
            if not self.blocked and self.on_open is not None:
                self.on_open()

    def _tell_client(self, port: Port) -> None:
        self._counters.sent_controls += 1
        port.send(control(SHUT if self.blocked else OPEN))

    def _tell(self, port: Port, window: Window, shut: bool) -> None:
        if window.reports:
            window.due = window.received + TOLD_BYTES
            self._counters.sent_controls += 1
            port.send(control(SHUT if shut else OPEN, window.received & _WORD))
