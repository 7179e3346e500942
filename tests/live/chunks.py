"""Chunks read back, independently of the writer: what a recorder got, record by record."""

from dataclasses import dataclass, field

from broker.journal.options import JournalOptions
from broker.wire.decoding import decode

HEAD_BYTES = 24
MARK_BYTES = 16
FLUX, STATE, DICTIONARY = 1, 4, 255
IN, OUT, DENIED = 0, 1, 2


@dataclass
class Record:
    kind: int
    transport: int
    direction: int
    reason: int
    peer: int
    via: int
    claimed: int
    frame: bytes
    ns: int | None = None

    @property
    def message(self):
        return decode(self.frame, 8, len(self.frame))


def records_of(data):
    """The records of marks and frames that stand one behind the other, dated by the marks of time between them."""
    found, undated, at = [], 0, 0
    while at < len(data):
        mark = data[at : at + MARK_BYTES]
        at += MARK_BYTES
        assert len(mark) == MARK_BYTES, "a mark is cut"
        if mark[0] == 0:
            assert mark[1:8] == bytes(7)
            for record in found[undated:]:
                record.ns = int.from_bytes(mark[8:], "little", signed=True)
            undated = len(found)
            continue
        assert data[at : at + 4] == b"\x12\x00\xee\xff", "every frame is in deployed order"
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")
        assert end <= len(data), "a frame is cut"
        words = (int.from_bytes(mark[i : i + 4], "little") for i in (4, 8, 12))
        found.append(Record(*(*mark[:4], *words, data[at:end])))
        at = end
    return found


def chunks_of(stream):
    """(first number, records said, cause, records) of each chunk of what went through the socket."""
    found, at = [], 0
    while at < len(stream):
        head = stream[at : at + HEAD_BYTES]
        assert head[:4] == b"HGJC"
        length, first = int.from_bytes(head[4:8], "little"), int.from_bytes(head[8:16], "little")
        said, cause = int.from_bytes(head[16:20], "little"), int.from_bytes(head[20:24], "little")
        at += len(head)
        found.append((first, said, cause, records_of(stream[at : at + length])))
        at += length
    return found


@dataclass
class Shelf:
    """Stands in for a recorder: keeps what it is handed."""

    options: JournalOptions
    handed: list = field(default_factory=list)
    introduce: object = None
    waiting: bool = False
    polls: int = 0

    @classmethod
    def of(cls, capture="both"):
        return cls(JournalOptions(directory="/nowhere", writer="shelf", capture=capture))

    def hand(self, items, records):
        assert all(type(item) is bytes for item in items)
        self.handed.append((list(items), records))

    def poll(self):
        self.polls += 1

    @property
    def records(self):
        """All records so far; each chunk by itself is whole and says how many it holds."""
        found = []
        for items, said in self.handed:
            chunk = records_of(b"".join(items))
            assert len(chunk) == said
            found += chunk
        return found

    @property
    def flux(self):
        return [record for record in self.records if record.kind == FLUX]
