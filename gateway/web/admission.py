"""How many connections a gateway process has, and which of them ends when one more comes.

Who connects is a *stranger* until a credential was accepted: on a socket, behind a PROXY header, in a TLS handshake,
over HTTP, or as a WebSocket whose auth object has not come. Strangers are capped in all and for each address. With a
credential an HTTP connection goes over to the pool of users, which is capped for each user; a WebSocket goes over to
`sessions`, which counts them, and when its session has ended, but its connection has not, to the pool of users, too.

No cap stops accepting for long: the newcomer gets in, and the connection that has been idle for longest in the full
pool ends, since it most likely does nothing for anybody. So a client that opens many connections and says nothing ends
its own ones, and users never take the room of strangers. A stranger has `GRACE_S` to say its first word: while all
strangers are younger than that, accepting rests, and newcomers wait in order. So thousands that come back at the same
moment, after another gateway died, do not throw each other out. Of one address the newest connection still gets in at
once: nobody may shut its neighbours out by saying nothing. Every step costs the same however many connections there
are; a search takes place only among the connections of one address or user, which are capped.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from broker.rates import Bucket
from gateway.identity.proxies import UNKNOWN, group_of
from gateway.settings.schema import LimitsSection

log = logging.getLogger("headgate")

RESERVE: Final = 128
"""File descriptors that no client gets: listeners, the upstream, the store, files that are read."""
LEAST: Final = 16
"""Connections that are allowed however few descriptors there are."""
SHED: Final = 32
"""Connections that end at once when the process is out of descriptors."""
USER_SHARE: Final = 2
"""HTTP connections of one user, in units of ``connections_per_user``: that many plain calls and that many streams may
be under way, each on a connection of its own."""
GRACE_S: Final = 2.0
"""How long a stranger is not ended for a newcomer: the way there and back, and a TLS handshake, take some of it."""
LINE_S: Final = 10.0
"""Connections that ended for others are told in one line in so long."""

ADDRESS: Final = "anonymous_per_address"
ANONYMOUS: Final = "anonymous"
USER: Final = "connections_per_user"
ALL: Final = "connections"
DESCRIPTORS: Final = "descriptors"


class Slot:
    """The slot of one connection in a pool.

    Args:
        abort: closes the connection at once, without waiting for its peer; whoever has the connection replaces it.

    Attributes:
        idle: nothing is under way, beside an answer that the client has to read: it may end for a newcomer.
        pool: where it is; None once it has left.
        key: its address or user there; None counts for no cap of one.
        until: it is not ended for a newcomer before (the pool's clock).
    """

    __slots__ = ("abort", "idle", "key", "pool", "until")

    def __init__(self, abort: Callable[[], None]) -> None:
        self.abort = abort
        self.until = 0.0
        self.idle = True
        self.pool: Pool | None = None
        self.key: str | None = None

    def set_idle(self) -> None:
        """Nothing is under way any more."""
        if self.pool is not None:
            self.pool.rank(self, idle=True)

    def set_busy(self) -> None:
        """Something is under way."""
        if self.pool is not None:
            self.pool.rank(self, idle=False)

    def move(self, pool: Pool, key: str | None) -> bool:
        """Go over to a pool, or to another key there; False: nobody there can end for it, and it stays where it is."""
        if self.pool is pool and self.key == key:
            return True
        return self.pool is not None and pool.enter(self, key)

    def release(self) -> None:
        """The connection has ended, or is counted elsewhere; harmless twice."""
        if self.pool is not None:
            self.pool.remove(self)


class Pool:
    """Connections under two caps; a further one ends the connection that has been idle for longest.

    Args:
        most: connections in all. each: of one key.
        names: of both caps, for `ended`.
        ended: called with the name of a cap and the key of the connection that is ended for it.
        spare: where all are at work: True keeps the newcomer out, False ends the oldest.
        grace_s: how long nobody here is ended for a newcomer.
    """

    def __init__(
        self,
        most: int,
        each: int,
        names: tuple[str, str],
        ended: Callable[[str, str], None],
        *,
        spare: bool,
        grace_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most = most
        self.each = each
        self._names = names
        self._clock = clock
        self._grace_s = grace_s
        self._ended = ended
        self._spare = spare
        self._idle: OrderedDict[Slot, None] = OrderedDict()  # the oldest first, like the others
        self._busy: OrderedDict[Slot, None] = OrderedDict()
        self._of: dict[str, OrderedDict[Slot, None]] = {}

    def __len__(self) -> int:
        return len(self._idle) + len(self._busy)

    def of(self, key: str) -> int:
        """Connections of one key."""
        return len(self._of.get(key, ()))

    def enter(self, slot: Slot, key: str | None) -> bool:
        """Take ``slot`` in, from another pool perhaps; False: nobody can end for it."""
        before, former = slot.pool, slot.key
        slot.release()
        room = self._make_room(key)
        if room:
            self._insert(slot, key)
        elif before is not None:
            before._insert(slot, former)
        return room

    def rest_s(self, now: float) -> float:
        """How long newcomers have to wait until one may end for them; 0.0: not at all."""
        if len(self) < self.most:
            return 0.0
        return max(0.0, next(iter(self._idle or self._busy)).until - now)

    def rank(self, slot: Slot, *, idle: bool) -> None:
        """Put ``slot`` behind all others that are idle, or at work."""
        old, new = (self._busy, self._idle) if idle else (self._idle, self._busy)
        old.pop(slot, None)
        new[slot] = None
        new.move_to_end(slot)
        if slot.key is not None:
            self._of[slot.key].move_to_end(slot)
        slot.idle = idle
        if not idle:
            slot.until = 0.0  # it has said its first word

    def remove(self, slot: Slot) -> None:
        """For `Slot`: it leaves."""
        slot.pool = None
        self._idle.pop(slot, None)
        self._busy.pop(slot, None)
        if slot.key is not None:
            mine = self._of[slot.key]
            del mine[slot]
            if not mine:
                del self._of[slot.key]

    def end_idle(self, why: str) -> bool:
        """End the connection that has been idle for longest; False: none is idle."""
        if not self._idle:
            return False
        self._end(next(iter(self._idle)), why)
        return True

    def _insert(self, slot: Slot, key: str | None) -> None:
        slot.pool, slot.key = self, key
        slot.until = self._clock() + self._grace_s if self._grace_s else 0.0
        (self._idle if slot.idle else self._busy)[slot] = None
        if key is not None:
            self._of.setdefault(key, OrderedDict())[slot] = None

    def _make_room(self, key: str | None) -> bool:
        mine = None if key is None else self._of.get(key)
        if mine is not None and len(mine) >= self.each:
            return self._end_one(next((each for each in mine if each.idle), None), mine, self._names[1])
        if len(self) >= self.most:
            return self._end_one(next(iter(self._idle), None), self._busy, self._names[0])
        return True

    def _end_one(self, idle: Slot | None, others: OrderedDict[Slot, None], why: str) -> bool:
        if idle is None and self._spare:
            return False
        self._end(idle or next(iter(others)), why)
        return True

    def _end(self, slot: Slot, why: str) -> None:
        key = slot.key or ""
        slot.release()
        slot.abort()
        self._ended(why, key)


class Admission:
    """The connections of one process.

    Args:
        limits: what is allowed; see `fitted`.
        clock: monotonic seconds.

    Attributes:
        strangers: connections without a credential, by address (`key_of`); who is at a WebSocket's door, too.
        users: HTTP connections whose last credential was accepted, by user; WebSockets whose session has ended.
        sockets: accepted and not closed yet, whoever has them.
        ended: name of a limit -> connections that ended for it.
        pauses: times accepting rested for want of descriptors.
    """

    def __init__(self, limits: LimitsSection, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = limits.connections + limits.anonymous
        self._clock = clock
        self._lines = Bucket(1 / LINE_S, 1, clock())
        self._untold = 0
        self.ended: Counter[str] = Counter()
        self.pauses = 0
        self.sockets = 0
        self.strangers = Pool(
            limits.anonymous,
            limits.anonymous_per_address,
            (ANONYMOUS, ADDRESS),
            self._note,
            spare=False,
            grace_s=GRACE_S,
            clock=clock,
        )
        self.users = Pool(
            limits.connections, USER_SHARE * limits.connections_per_user, (ALL, USER), self._note, spare=True
        )

    def admit(self, slot: Slot, key: str | None) -> bool:
        """Take in the slot of a socket that was accepted; False: it must be closed, for all others are at work."""
        if self.sockets >= self._most and not (self.strangers.end_idle(ALL) or self.users.end_idle(ALL)):
            self._note(ALL, key or "")
            return False
        return self.strangers.enter(slot, key)

    def rest_s(self) -> float:
        """How long accepting has to rest, so that those who came before have time to say their first word."""
        return self.strangers.rest_s(self._clock())

    def shed(self) -> bool:
        """The process is out of descriptors: end idle connections; False: there are none."""
        ended = 0
        while ended < SHED and (self.strangers.end_idle(DESCRIPTORS) or self.users.end_idle(DESCRIPTORS)):
            ended += 1
        return ended > 0

    def _note(self, why: str, key: str) -> None:
        self.ended[why] += 1
        self._untold += 1
        if self._lines.grant(self._clock(), 1):
            text = "connections end for newer ones by the limit %s, of %s; %d since the last such line"
            log.warning(text, why, key or "anybody", self._untold)
            self._untold = 0


def key_of(address: str) -> str | None:
    """What a client of this address counts for; None: on a UNIX socket there are none."""
    return None if address in UNKNOWN else group_of(address)


def fitted(limits: LimitsSection, descriptors: int) -> LimitsSection:
    """The limits of a process that may open so many files: no more connections than leave `RESERVE` of them."""
    room = max(LEAST, descriptors - RESERVE)
    if limits.connections + limits.anonymous <= room:
        return limits
    anonymous = min(limits.anonymous, room // 4)
    connections = min(limits.connections, room - anonymous)
    return replace(
        limits,
        anonymous=anonymous,
        anonymous_per_address=min(limits.anonymous_per_address, max(1, anonymous // 4)),
        connections=connections,
        connections_per_user=min(limits.connections_per_user, connections),
    )
