"""The processes of other gateways: how many connections their users have, and what they answer when they are asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from broker.holdings import Holdings
from gateway.fleet.messages import Counts
from gateway.identity.leases import HEARTBEAT_S, LEASE_S

SILENT_BEATS: Final = round(LEASE_S / HEARTBEAT_S)
PEERS_MAX: Final = 1024
USERS_MAX: Final = 65_536
"""Users of one process that are counted."""


class _Peer:
    """A process of another gateway; ``fresh`` is what it tells anew while some of that has not come, ``beats`` of ours
    are those since it was heard.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.users: dict[str, int] = {}
        self.fresh: dict[str, int] | None = None
        self.beats = 0


def label_of(host: str, gateway: str) -> str:
    """What a gateway is called in answers for people."""
    return f"{host}/{gateway[:8]}"


class Roster:
    """Who is there. Counts beats, not seconds: when it is we who stood still, what others said is read first."""

    def __init__(self) -> None:
        self.peers: dict[str, _Peer] = {}
        self._users: Holdings[str] = Holdings()

    def of(self, user: str) -> int:
        """Connections of a user at all of them."""
        return self._users.of(user)

    def take_counts(self, said: Counts) -> bool:
        """Take up what a process says; False: there are too many."""
        peer = self.peers.get(said.name)
        if peer is None:
            if len(self.peers) >= PEERS_MAX:
                return False
            peer = self.peers[said.name] = _Peer(label_of(said.host, said.gateway))
        peer.beats = 0
        if said.full:
            peer.fresh = {}
        if peer.fresh is None:
            self._count(peer, said.users)
        else:
            peer.fresh |= said.users
            if not said.more or len(peer.fresh) > USERS_MAX:
                gone = peer.users.keys() - peer.fresh.keys()
                self._count(peer, dict.fromkeys(gone, 0) | peer.fresh)
                peer.fresh = None
        return True

    def _count(self, peer: _Peer, users: Mapping[str, int]) -> None:
        for user, count in users.items():
            if user in peer.users or len(peer.users) < USERS_MAX:
                self._users.add(user, count - peer.users.pop(user, 0))
                if count:
                    peer.users[user] = count

    def beat(self) -> list[str]:
        """Another ``HEARTBEAT_S`` has passed; returns who was silent for ``LEASE_S``: it has ended."""
        for peer in self.peers.values():
            peer.beats += 1
        return [name for name, peer in self.peers.items() if peer.beats > SILENT_BEATS]

    def drop(self, name: str) -> None:
        """A process has ended; one that is unknown is fine."""
        peer = self.peers.pop(name, None)
        if peer is not None:
            for user, count in peer.users.items():
                self._users.add(user, -count)

    def clear(self) -> None:
        """Nothing is known of anybody."""
        self.peers.clear()
        self._users.clear()


ASK_S: Final = 2.0
"""How long a process of another gateway may take to answer."""


class _Asked:
    """A question that is asked now."""

    def __init__(self, names: Iterable[str]) -> None:
        self.replies = dict.fromkeys(names, b"")
        self.missing = set(self.replies)
        self.all = asyncio.Event()

    def take_reply(self, name: str, body: bytes) -> None:
        if name in self.missing:
            self.missing.remove(name)
            self.replies[name] = body
            if not self.missing:
                self.all.set()


class Questions:
    """What one process asks those of other gateways, until each has answered or is gone, or for ``ASK_S``."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}
        self._numbers = 0

    async def ask(self, names: Iterable[str], say: Callable[[int], None]) -> list[bytes]:
        """What each of ``names`` answers once ``say`` has asked with that number; b"" for one that does not in time."""
        self._numbers += 1
        number, asked = self._numbers, _Asked(names)
        if not asked.missing:
            return []
        self._asked[number] = asked
        try:
            say(number)
            with contextlib.suppress(TimeoutError):  # who did not answer is told of
                async with asyncio.timeout(ASK_S):
                    await asked.all.wait()
        finally:
            del self._asked[number]
        return list(asked.replies.values())

    def take_reply(self, number: int, name: str, body: bytes) -> None:
        """One has answered."""
        if number in self._asked:
            self._asked[number].take_reply(name, body)

    def drop(self, name: str) -> None:
        """One answers no more."""
        for asked in self._asked.values():
            asked.take_reply(name, b"")

    def give_up(self) -> None:
        """Nobody answers any more."""
        for asked in self._asked.values():
            asked.all.set()
