"""What the directory service holds, and the JSON bodies of control messages (pure).

A **state** is all of what one pipeline of one node offers: where it is reached and who listens there. The pipeline
itself announces it, as a whole each time, numbers its versions and renews its lease. Nobody changes a state: a newer
one replaces it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from broker.oslo.names import Pipeline

STATES_MAX: Final = 16_384
"""States that a directory holds: four pipelines of some thousand nodes."""
# read where it is used, not folded by the compiler: tests change it
RECORDS_MAX: int = 65_536
"""Records of one state."""
STATE_CHARS_MAX: int = 4 << 20
"""Characters of all names in one state: ``RECORDS_MAX`` records of 64."""


Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
NodeName = Annotated[str, msgspec.Meta(min_length=1)]
PipelineName = Annotated[str, msgspec.Meta(pattern=rf"\A({'|'.join(Pipeline)})\Z")]
Endpoint = Annotated[
    str, msgspec.Meta(pattern=r"\A(tcp://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%a-z]{2,64}\]):[0-9]{1,5})?\Z")
]
CurveKey = Annotated[str, msgspec.Meta(pattern=r"\A([!-~]{40})?\Z")]


class Record(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """One listener at one topic. ``listener`` is unique; fan-out records have none: whoever subscribes has a copy.

    Collections of garbage need not look at it: it has no more than names, and there are thousands.
    """

    exchange: str
    topic: str
    server: str = ""
    """The rpc-server's name, as opaque text; "" for notifications and fan-outs."""
    listener: str = ""
    pool: str | None = None
    """Of notifications: listeners of one pool share what comes; None is a pool, too."""


class State(msgspec.Struct, frozen=True):
    """What one pipeline of one node offers."""

    node: NodeName
    """Name of the node: what its proxy calls itself, by default its host."""
    pipeline: PipelineName
    incarnation: Number
    """Of the pipeline's process: nanoseconds of the clock at its start; a greater one replaces a smaller one."""
    version: Number
    """Counts what the process has announced; a greater one replaces a smaller one of the same incarnation."""
    endpoint: Endpoint
    """Where other nodes connect: ``tcp://host:port``; "" nowhere."""
    key: CurveKey = ""
    """Z85 public key of CURVE at that endpoint; "" plaintext."""
    records: tuple[Record, ...] = ()

    @property
    def place(self) -> Place:
        """Whose state it is."""
        return (self.node, self.pipeline)

    @property
    def age(self) -> Age:
        """What tells the newer one of two states of one place."""
        return (self.incarnation, self.version)

    @property
    def beat(self) -> Beat:
        """What renews its lease."""
        return Beat(self.node, self.pipeline, self.incarnation, self.version)


Place = tuple[str, str]
"""(node, pipeline): the key of a state."""
Age = tuple[int, int]
"""(incarnation, version): the greater one is newer."""


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """The lease of a state is renewed, or ended. Who has another version of the state has missed something."""

    node: NodeName
    pipeline: PipelineName
    incarnation: Number
    version: Number

    @property
    def place(self) -> Place:
        """Whose state it is."""
        return (self.node, self.pipeline)

    @property
    def age(self) -> Age:
        """Of which state it is."""
        return (self.incarnation, self.version)


# ---------------------------------------------------------------- control messages of servers


class Opening(msgspec.Struct, frozen=True):
    """Body of OPEN: one listener, everything it listens to."""

    listener: str
    records: tuple[Record, ...]
    pool: str | None = None
    credit: int = 0
    """How many messages it takes before it gives credit again."""
    credit_bytes: int = 0
    """And of how many bytes; 0: as its queue at the proxy may hold."""
    held: int = 0
    """How many of these messages it has already, of a proxy before this one, and gives credit for later."""
    held_bytes: int = 0
    """And of how many bytes."""

    def repeats(self, former: Opening) -> bool:
        """Whether it says the same, but for what the listener has by now."""
        return msgspec.structs.replace(self, held=former.held, held_bytes=former.held_bytes) == former


class Opened(msgspec.Struct, frozen=True):
    """Body of OPENED."""

    node: str
    incarnation: int
    version: int = 0
    """From this version of the pipeline's state on the directory says it, too; 0 not told."""
    message_bytes_max: int = 0
    """Largest body that the pipeline takes; 0 not told."""


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
