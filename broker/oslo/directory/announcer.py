"""Who announces: a pipeline tells the directory of its node all of what it offers, whenever that changes.

The first change of a pipeline that was quiet is told in the next turn of the reactor: ``listen`` waits for it. After
that the pipeline gathers what changes, and tells it together. The more it offers, the longer it gathers, so that
listeners that open one after another cost a bounded part of the processor, however many they are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from broker.memory import compact
from broker.oslo.directory.link import DirectoryLink
from broker.oslo.directory.wire import canonical, fits_record
from broker.oslo.names import DIRECTORY_SOCKET
from broker.oslo.node import NodeConfig
from broker.oslo.reactor.loop import Reactor
from broker.oslo.records import Record, State, chars_of, fits_state

GATHER_S: Final = 0.002
"""Between two announcements of one pipeline, at least."""
GATHER_RECORD_S: Final = 10e-6
"""And so much more for each record: 12 ms with 1,000, 0.66 s with 65,536. Who hears a record needs about as long."""
LEAVE_MS: Final = 200
"""LEAVE has so long to reach the directory in the same machine."""


class Announcer:
    """Tells the directory of this node what one pipeline offers, as long as it is not closed.

    The directory may come later, or again: it is told whenever it does not know us.

    Args:
        reactor: whose thread; open.
        config: of the node.
        pipeline: whose state it is.
        endpoint: where other nodes connect; "" nowhere.
        key: Z85 public key there; "" plaintext.
        incarnation: of the pipeline; 0: now.
        held: nothing is told before ``begin``: what an earlier process has announced stays in force.

    Attributes:
        state: what was announced last.
        counts: what happened how often; ``unfit``: records that cannot be announced.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: NodeConfig,
        pipeline: str,
        endpoint: str,
        key: str,
        *,
        incarnation: int = 0,
        held: bool = False,
    ) -> None:
        self.state = State(config.node, str(pipeline), incarnation or time.time_ns(), 1, endpoint, key)
        self._reactor = reactor
        self._wanted: dict[Record, None] = {}
        self._chars = 0
        self._due = self._promised = self._full = self._left = False
        self._not_before = 0.0
        self._link = DirectoryLink(reactor, config.path(DIRECTORY_SOCKET), pulse_s=config.beat_s)
        self.counts = self._link.counts
        self.counts["unfit"] = 0
        self._held = held
        if not held:
            self._link.announce(self.state)

    def begin(self) -> None:
        """Tell what is offered, from now on; harmless twice."""
        if self._held:
            self._held = False
            self._announce(anyway=True)

    def away(self) -> None:
        """Another process of the pipeline is started in a moment: the directory keeps what it knows."""
        self._left = True
        self._link.away(self.state.place)

    @property
    def incarnation(self) -> int:
        """Of the pipeline."""
        return self.state.incarnation

    def add(self, records: Iterable[Record]) -> None:
        """The pipeline offers these, too."""
        for record in records:
            record = canonical(self.state.pipeline, record)
            if record in self._wanted:
                continue
            if fits_record(self.state.pipeline, record):
                self._wanted[record] = None
                self._chars += chars_of(record)
            else:
                self.counts["unfit"] += 1
        self._soon()

    def remove(self, records: Iterable[Record]) -> None:
        """The pipeline does not offer these any more."""
        for record in records:
            record = canonical(self.state.pipeline, record)
            if record in self._wanted:
                del self._wanted[record]
                self._chars -= chars_of(record)
        self._wanted = compact(self._wanted)
        self._soon()

    def change_key(self, key: str) -> None:
        """Other nodes find another ``key`` there from now on."""
        if key != self.state.key and not self._left:
            self.state = replace(self.state, key=key)
            self._promised = True
            self._soon()

    def promise(self) -> int:
        """The version of the state that tells all that came or went until now, even if it changes nothing."""
        self._promised |= self._due
        return self.state.version + self._due

    def leave(self) -> None:
        """The pipeline ends: the directory tells everybody."""
        if not self._left:
            self._left = True
            self._link.withdraw(self.state.place)

    def close(self) -> None:
        """End it; without ``leave`` the lease has to end first. Harmless twice."""
        self._left = True
        self._link.close(LEAVE_MS)

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            wait_s = self._not_before - self._reactor.now()
            if wait_s > 0:
                self._reactor.call_later(wait_s, self._announce)
            else:
                self._reactor.call_soon(self._announce)

    def _announce(self, *, anyway: bool = False) -> None:
        if self._held:
            return
        self._due = False
        promised, self._promised = self._promised, False
        records = self._fitting()
        if self._left or (records == self.state.records and not (promised or anyway)):
            return
        self.state = replace(self.state, version=self.state.version + 1, records=records)
        self._not_before = self._reactor.now() + GATHER_S + GATHER_RECORD_S * len(records)
        self._link.announce(self.state)

    def _fitting(self) -> tuple[Record, ...]:
        """All that is offered, or the first of it that one state has room for: the others wait, in their order."""
        records = tuple(self._wanted)
        was_full, self._full = self._full, not fits_state(len(records), self._chars)
        if not self._full:
            return records
        chars, fitting = 0, 0
        for record in records:
            chars += chars_of(record)
            if not fits_state(fitting + 1, chars):
                break
            fitting += 1
        if not was_full:
            self.counts["unfit"] += 1
            text = "%s: %d listeners are too many for one node's directory; %d of them wait for others to end"
            values = (self.state.pipeline, len(records), len(records) - fitting)
            self._reactor.say(logging.ERROR, text, values)
        return records[:fitting]
