"""The other processes of one service, and what this one knows of them: how many connections each user has over all of
them, what they answer when they are asked, and when one has ended.

Two carriers bring what they tell each other: ``siblings`` between the workers of a gateway, ``member`` between gateways
that share a Redis server. Each process says how many connections its users have: changes at once, all of them every
``BEAT_S``. One that is silent for ``LEASE_S`` counts no more; one that stood still for longer counts again with what it
says next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Final, Protocol

from broker.holdings import Holdings
from gateway.fleet.messages import Bye, Counts, Question, Reply, Said

log = logging.getLogger("headgate")

BEAT_S: Final = 5.0
"""How often a process says that it lives."""
LEASE_S: Final = 4 * BEAT_S
"""One that was silent for so long has ended: three beats may be late."""
SILENT_BEATS: Final = round(LEASE_S / BEAT_S)
ASK_S: Final = 2.0
"""How long another process may take to answer."""
PEERS_MAX: Final = 1024
USERS_MAX: Final = 65_536
"""Users of one process that are counted."""
PART: Final = 2048
"""Users, or credentials, in one message."""
PART_CHARS: Final = 32_768
"""Of the names in one message, which the system holds whole, as it does 200 KiB: a later one does not overtake it."""


class Lost(Exception):
    """What is told does not get there."""


class Carrier(Protocol):
    """What brings to other processes what is told.

    Attributes:
        tells_ends: whether a process that is killed is told of at once.
    """

    tells_ends: bool

    def say(self, said: Said, to: str = "") -> None:
        """Tell all processes, or the one of this name.

        Raises:
            Lost: too much waits already.
        """

    def changed(self, user: str) -> None:
        """How many connections a user has here has changed."""

    def turn(self) -> AbstractContextManager[object]:
        """While it is held no process that can be held back counts a connection, and what they told before is known."""


class _Peer:
    """Another process; ``fresh`` is what it tells anew while some of that has not come, ``beats`` of ours are those
    since it was heard.
    """

    def __init__(self, label: str, carrier: Carrier) -> None:
        self.label = label
        self.carrier = carrier
        self.users: dict[str, int] = {}
        self.fresh: dict[str, int] | None = None
        self.beats = 0


def label_of(host: str, gateway: str) -> str:
    """What a gateway is called in answers for people."""
    return f"{host}/{gateway[:8]}" if gateway else host


class Peers:
    """One process among those of its service.

    Args:
        name: of this process, which no other one has; "" takes a random one.
        gateway: what names its gateway among several that share a Redis server; "": there is none.
        answer: to what others ask.

    Attributes:
        name, gateway: as above. host: this machine. label: what this gateway is called in answers for people.
    """

    def __init__(
        self, name: str = "", gateway: str = "", answer: Callable[[bytes], bytes] = lambda _question: b""
    ) -> None:
        self.name = name or secrets.token_hex(8)
        self.gateway = gateway
        self.host = os.uname().nodename[:255]
        self.label = label_of(self.host, gateway)
        self._answer = answer
        self._carriers: list[Carrier] = []
        self._own: Holdings[str] = Holdings()
        self._others: Holdings[str] = Holdings()
        self._peers: dict[str, _Peer] = {}
        self._asked: dict[int, dict[str, asyncio.Future[bytes]]] = {}
        self._questions = 0

    def join(self, carrier: Carrier) -> None:
        """Tell others by ``carrier``, too, from now on."""
        self._carriers.append(carrier)

    @property
    def shared(self) -> bool:
        """Whether there may be others."""
        return bool(self._carriers)

    # -- connections of users ------------------------------------------------------------------

    def acquire(self, user: str, limit: int) -> bool:
        """Count one more connection of ``user`` unless it has ``limit`` already; tells whether it was counted.

        Of several workers that ask for the last place, one gets it; between gateways all may that ask within a tick.
        """
        with ExitStack() as turns:
            for carrier in self._carriers:
                turns.enter_context(carrier.turn())
            granted = self.own(user) + self.elsewhere(user) < limit
            if granted:
                self._count(user, 1)
        return granted

    def release(self, user: str) -> None:
        """Take back one `acquire` that was granted."""
        if self.own(user):
            self._count(user, -1)

    def _count(self, user: str, more: int) -> None:
        self._own.add(user, more)
        for carrier in self._carriers:
            carrier.changed(user)

    def own(self, user: str) -> int:
        """Connections of a user here."""
        return self._own.of(user)

    def elsewhere(self, user: str) -> int:
        """Connections of a user at all other processes."""
        return self._others.of(user)

    def uncertain(self, user: str) -> bool:
        """Whether the limit of ``user`` may not be reached after all: some of the connections belong to a process that
        is overdue, or to another gateway, which cannot say when it is killed.
        """
        return any(
            user in peer.users and (peer.beats > 1 or not peer.carrier.tells_ends)
            for peer in self._peers.values()
        )

    def counts(self, users: Iterable[str] | None = None, *, hello: bool = False) -> list[Counts]:
        """What to say of the connections of ``users``; None: of all users, and no others have any.

        Args:
            users: they.
            hello: everybody is to say theirs.
        """
        counts = self._own.counts if users is None else {user: self.own(user) for user in users}
        full = users is None
        parts: list[dict[str, int]] = [{}]
        chars = 0
        for user, count in counts.items():
            chars += len(user)
            if len(parts[-1]) >= PART or chars > PART_CHARS:
                parts.append({})
                chars = len(user)
            parts[-1][user] = count
        return [
            Counts(
                self.gateway,
                self.name,
                part,
                full=full and number == 1,
                more=full and number < len(parts),
                hello=hello and number == 1,
                host=self.host,
            )
            for number, part in enumerate(parts, 1)
        ]

    # -- the others ----------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many others there are."""
        return len(self._peers)

    def names(self, by: Carrier | None = None) -> list[str]:
        """Of those that a carrier brings word of; None: of all."""
        return [name for name, peer in self._peers.items() if by in (None, peer.carrier)]

    @property
    def processes(self) -> Counter[str]:
        """Labels of gateways, and how many processes each has; this one counts."""
        return Counter([self.label, *(peer.label for peer in self._peers.values())])

    async def ask(self, question: bytes, by: Carrier | None = None) -> dict[str, bytes]:
        """Name -> what each other process answers, of those of one carrier or of all; b"" for one that does not, has
        ended, or takes longer than ``ASK_S``.
        """
        self._questions += 1
        number, loop = self._questions, asyncio.get_running_loop()
        asked = self._asked[number] = {name: loop.create_future() for name in self.names(by)}
        try:
            for carrier in {self._peers[name].carrier for name in asked}:
                try:
                    carrier.say(Question(self.gateway, self.name, number, question))
                except Lost:
                    for name in asked.keys() & self.names(carrier):
                        asked[name].set_result(b"")
            if asked:
                await asyncio.wait(asked.values(), timeout=ASK_S)
        finally:
            del self._asked[number]
        return {name: reply.result() if reply.done() else b"" for name, reply in asked.items()}

    def _take_reply(self, number: int, name: str, body: bytes) -> None:
        reply = self._asked.get(number, {}).get(name)
        if reply is not None and not reply.done():
            reply.set_result(body)

    # -- for the carriers ----------------------------------------------------------------------

    def hear(self, said: Said, by: Carrier) -> None:
        """Take in what another process says.

        Raises:
            Lost: as of ``Carrier.say``.
        """
        if isinstance(said, Counts):
            if self._take_counts(said, by) and said.hello:
                for each in self.counts():
                    by.say(each)
        elif isinstance(said, Bye):
            self.drop(said.name)
        elif isinstance(said, Reply):
            self._take_reply(said.number, said.name, said.body)
        elif isinstance(said, Question):
            by.say(Reply(self.name, said.number, self._answered(said.body)), said.name)

    def _answered(self, question: bytes) -> bytes:
        try:
            return self._answer(question)
        except (
            Exception
        ) as error:  # another version may ask for what is not there: whoever asked need not wait
            log.warning("another process was not answered: %r", error)
            return b""

    def _take_counts(self, said: Counts, by: Carrier) -> bool:
        """Take up what a process says; False: there are too many."""
        peer = self._peers.get(said.name)
        if peer is None:
            if len(self._peers) >= PEERS_MAX:
                return False
            label = label_of(said.host, said.gateway)
            peer = self._peers[said.name] = _Peer(label, by)
        peer.beats = 0
        if said.full:
            peer.fresh = {}
        if peer.fresh is None:
            self._count_at(peer, said.users)
        else:
            peer.fresh |= said.users
            if not said.more or len(peer.fresh) > USERS_MAX:
                gone = peer.users.keys() - peer.fresh.keys()
                self._count_at(peer, dict.fromkeys(gone, 0) | peer.fresh)
                peer.fresh = None
        return True

    def _count_at(self, peer: _Peer, users: Mapping[str, int]) -> None:
        for user, count in users.items():
            if user in peer.users or len(peer.users) < USERS_MAX:
                self._others.add(user, count - peer.users.pop(user, 0))
                if count:
                    peer.users[user] = count

    def beat(self, by: Carrier) -> None:
        """Another ``BEAT_S`` has passed: who was silent for ``LEASE_S`` has ended. Beats count, not seconds: when it is
        we who stood still, what others said is heard first.
        """
        for name, peer in list(self._peers.items()):
            if peer.carrier is by:
                peer.beats += 1
                if peer.beats > SILENT_BEATS:
                    self.drop(name)

    def drop(self, name: str) -> None:
        """A process has ended; one that is unknown is fine."""
        peer = self._peers.pop(name, None)
        if peer is not None:
            for user, count in peer.users.items():
                self._others.add(user, -count)
        for number in self._asked:
            self._take_reply(number, name, b"")

    def forget(self, by: Carrier) -> None:
        """A carrier brings nothing any more: of those that it brought word of nothing is known."""
        for name in self.names(by):
            self.drop(name)
