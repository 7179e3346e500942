"""What the directory service holds, and the JSON bodies of control messages (pure).

A **state** is what one pipeline of one node offers: where it is reached and who listens there. Its owner, the pipeline
itself, announces it, numbers its changes and renews its lease; nobody else changes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

STATES_MAX: Final = 16_384
"""States that a directory holds: four pipelines of some thousand nodes."""
# read where it is used, not folded by the compiler: tests change it
RECORDS_MAX: int = 65_536
"""Records of one state."""


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


def applied(state: State, change: Change) -> State | None:
    """``state`` after ``change``; None when it does not continue it, or leads nowhere newer."""
    if (state.place, state.incarnation, state.version) != (change.place, change.incarnation, change.since):
        return None
    if change.version <= change.since:
        return None
    removed = frozenset(change.removed)
    records = dict.fromkeys(record for record in state.records if record not in removed)
    records.update(dict.fromkeys(change.added))
    return msgspec.structs.replace(state, version=change.version, records=tuple(records))


def difference(
    before: Sequence[Record], after: Sequence[Record]
) -> tuple[tuple[Record, ...], tuple[Record, ...]]:
    """(added, removed) between two sets of records."""
    old, new = frozenset(before), frozenset(after)
    return tuple(sorted(new - old, key=_order)), tuple(sorted(old - new, key=_order))


def _order(record: Record) -> tuple[str, str, str, str, bool, str]:
    return (
        record.exchange,
        record.topic,
        record.server,
        record.listener,
        record.pool is not None,
        record.pool or "",
    )


_encode = msgspec.json.Encoder().encode


def to_json(value: Any) -> bytes:
    """JSON of a struct of this module, or of plain data."""
    return _encode(value)
