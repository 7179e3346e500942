"""What the directory service holds, and the JSON bodies of control messages (pure).

A **state** is what one pipeline of one node offers: where it is reached and who listens there. Its owner, the pipeline
itself, announces it, numbers its changes and renews its lease; nobody else changes it. On the wire it is a ``State``;
whoever keeps it has an ``Offer``, which a change costs as much as it says, however much else is offered.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker.memory import compact

STATES_MAX: Final = 16_384
"""States that a directory holds: four pipelines of some thousand nodes."""
# read where it is used, not folded by the compiler: tests change it
RECORDS_MAX: int = 65_536
"""Records of one state."""
STATE_CHARS_MAX: int = 4 << 20
"""Characters of all names in one state: ``RECORDS_MAX`` records of 64."""


class Record(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One listener at one topic. ``listener`` is unique; fan-out records have none: whoever subscribes has a copy."""

    exchange: str
    topic: str
    server: str = ""
    """The rpc-server's name, as opaque text; "" for notifications and fan-outs."""
    listener: str = ""
    pool: str | None = None
    """Of notifications: listeners of one pool share what comes; None is a pool, too."""


class State(msgspec.Struct, frozen=True):
    """What one pipeline of one node offers."""

    node: str
    """Name of the node: what its proxy calls itself, by default its host."""
    pipeline: str
    incarnation: int
    """Of the pipeline's process: nanoseconds of the clock at its start; a greater one replaces a smaller one."""
    version: int
    """Counts the changes of ``records``."""
    endpoint: str
    """Where other nodes connect: ``tcp://host:port``; "" nowhere."""
    key: str = ""
    """Z85 public key of CURVE at that endpoint; "" plaintext."""
    records: tuple[Record, ...] = ()

    @property
    def place(self) -> Place:
        """Whose state it is."""
        return (self.node, self.pipeline)


Place = tuple[str, str]
"""(node, pipeline): the key of a state."""


class Change(msgspec.Struct, frozen=True):
    """What happened to a state from version ``since`` to ``version``; removals go first."""

    node: str
    pipeline: str
    incarnation: int
    since: int
    version: int
    added: tuple[Record, ...] = ()
    removed: tuple[Record, ...] = ()

    @property
    def place(self) -> Place:
        """Whose state it is."""
        return (self.node, self.pipeline)


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """The lease of a state is renewed; a directory that has another version asks for all of it."""

    node: str
    pipeline: str
    incarnation: int
    version: int


# ---------------------------------------------------------------- control messages of servers


class Opening(msgspec.Struct, frozen=True):
    """Body of OPEN: one listener, everything it listens to."""

    listener: str
    records: tuple[Record, ...]
    pool: str | None = None
    credit: int = 0
    """NOTIFY: how many notifications it takes before it gives credit again."""


class Opened(msgspec.Struct, frozen=True):
    """Body of OPENED."""

    node: str
    incarnation: int
    endpoint: str = ""
    """CAST: the ``ipc://`` endpoint that this process's PULL has to connect to."""
    version: int = 0
    """FANOUT: from this version of the pipeline's state on the directory says it, too; 0 not told."""
    message_bytes_max: int = 0
    """Largest body that the pipeline takes; 0 not told."""


class Offer:
    """A state as it is kept: a change is made in place and costs what it says, however many records there are.

    One thread changes it. Others may read what is never changed, and ``version``.

    Attributes:
        node, pipeline, incarnation, endpoint, key, place: see ``State``; never changed.
        version: counts the changes.
        records: in the order they came; only ``add`` and ``remove`` change it, or replace it.
        chars: of all names of all records.
    """

    __slots__ = (
        "chars", "endpoint", "incarnation", "key", "node", "pipeline", "place", "records", "version",
    )  # fmt: skip

    def __init__(self, state: State) -> None:
        self.node = state.node
        self.pipeline = state.pipeline
        self.place = state.place
        self.incarnation = state.incarnation
        self.version = state.version
        self.endpoint = state.endpoint
        self.key = state.key
        self.records: dict[Record, None] = dict.fromkeys(state.records)
        self.chars = sum(map(chars_of, self.records))

    @property
    def age(self) -> Age:
        """What tells the newer one of two offers of one place."""
        return (self.incarnation, self.version)

    def state(self) -> State:
        """All of it, as it is now."""
        return State(
            self.node,
            self.pipeline,
            self.incarnation,
            self.version,
            self.endpoint,
            self.key,
            tuple(self.records),
        )

    def says(self, state: State) -> bool:
        """Whether ``state`` is what this is now; the order of records means nothing."""
        return (
            self.age == (state.incarnation, state.version)
            and (self.place, self.endpoint, self.key) == (state.place, state.endpoint, state.key)
            and self.records.keys() == set(state.records)
        )

    def continued_by(self, change: Change) -> bool:
        """Whether ``change`` begins where this is now, and leads to something newer."""
        return (self.place, self.incarnation, self.version) == (
            change.place,
            change.incarnation,
            change.since,
        ) and change.version > change.since

    def after(self, change: Change) -> tuple[int, int]:
        """How many records and characters it would have after ``change``."""
        removed = {record for record in change.removed if record in self.records}
        added = {record for record in change.added if record in removed or record not in self.records}
        chars = self.chars - sum(map(chars_of, removed)) + sum(map(chars_of, added))
        return len(self.records) - len(removed) + len(added), chars

    def apply(self, change: Change) -> bool:
        """Make ``change``, removals first; False, and nothing is changed: it does not continue this."""
        if not self.continued_by(change):
            return False
        for record in change.removed:
            self.remove(record)
        for record in change.added:
            self.add(record)
        self.version = change.version
        return True

    def add(self, record: Record) -> None:
        """One more record; harmless when it is there."""
        if record not in self.records:
            self.records[record] = None
            self.chars += chars_of(record)

    def remove(self, record: Record) -> None:
        """One record less; harmless when it is not there."""
        if record in self.records:
            del self.records[record]
            self.records = compact(self.records)
            self.chars -= chars_of(record)


Age = tuple[int, int]
"""(incarnation, version): the greater one is newer."""


def chars_of(record: Record) -> int:
    """Characters of its names."""
    return (
        len(record.exchange)
        + len(record.topic)
        + len(record.server)
        + len(record.listener)
        + len(record.pool or "")
    )


def fits_state(records: int, chars: int) -> bool:
    """Whether one state may have so many records, and so many characters in their names."""
    return records <= RECORDS_MAX and chars <= STATE_CHARS_MAX


_encode = msgspec.json.Encoder().encode


def to_json(value: Any) -> bytes:
    """JSON of a struct of this module, or of plain data."""
    return _encode(value)
