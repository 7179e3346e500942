"""Names of peers: what the DICTIONARY records of a run say."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from broker.errors import DecodeError
from broker.journal.layout import DICTIONARY, ENTRY, HEADER_BYTES, KIND_AT, OTHER, TRANSPORT_NAMES
from broker.journal.reading.blocks import Block, Damage, SegmentFile
from broker.journal.reading.bodies import part_at
from broker.journal.reading.segments import Segment

_STEP: Final = 1024
"""Windows of names begin and end at multiples of this, so that one serves many batches."""
_WINDOWS: Final = 64
"""Windows kept."""
_DICTIONARY: Final = bytes([DICTIONARY])
_DICT: Final = msgspec.json.Decoder(dict[str, Any])


class _Run:
    """The peers of one run: the JSON of each, and its name and role, which columns are made of."""

    __slots__ = ("facts", "most", "names", "roles")

    def __init__(self) -> None:
        self.facts: dict[int, dict[str, Any]] = {}
        self.names: dict[int, str] = {0: ""}
        self.roles: dict[int, str] = {0: ""}
        self.most = 0

    def learn(self, number: int, facts: dict[str, Any]) -> None:
        name, role = facts.get("name"), facts.get("role")
        self.facts[number] = facts
        self.most = max(self.most, number)
        self.names[number] = name if isinstance(name, str) else f"#{number}"
        self.roles[number] = role if isinstance(role, str) else ""

    def texts(self, numbers: Iterable[int], what: str) -> list[str]:
        if what == "role":
            role = self.roles.get
            return [role(number, "") for number in numbers]
        names = self.names
        return [names.get(number) or (f"#{number}" if number not in names else "") for number in numbers]


_NOBODY: Final = _Run()


class Peers:
    """Peers by number, of any writers and runs; fed from blocks in any order, for a run never uses a number twice."""

    __slots__ = ("_runs", "_windows")

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], _Run] = {}
        self._windows: dict[tuple[str, str, int, int, str], list[str]] = {}

    def learn(self, block: Block) -> bool:
        """Take what the DICTIONARY records of ``block`` say; returns whether it holds any.

        A record that cannot be read teaches nothing; who checks blocks finds it.
        """
        entries = block.entries
        at = bytes(entries[KIND_AT::HEADER_BYTES]).find(_DICTIONARY)  # most blocks hold none: one search
        if at < 0:
            return False
        run = self._runs.setdefault((block.segment.writer, block.segment.run), _Run())
        self._windows.clear()
        bodies = block.bodies()
        for fields in ENTRY.iter_unpack(entries[at * HEADER_BYTES :]):
            if fields[9] == DICTIONARY and fields[3]:
                run.learn(fields[3], _facts(bodies[fields[1] : fields[1] + fields[2]]))
        return True

    def learn_before(self, path: str | os.PathLike[str], offset: int) -> None:
        """Learn the peers that a segment introduces in front of ``offset``, for a reader that begins there; damage is
        stepped over.

        Raises:
            FileNotFoundError: the segment is gone.
        """
        with SegmentFile(path) as file:
            for block in file.salvage(HEADER_BYTES, min(offset, file.size())):
                if not isinstance(block, Damage):
                    self.learn(block)

    def _run(self, segment: Segment) -> _Run:
        return self._runs.get((segment.writer, segment.run), _NOBODY)

    def facts(self, segment: Segment, number: int) -> dict[str, Any]:
        """What is known of a peer: ``name``, ``transport``, ``role`` and more; empty where nothing is."""
        return self._run(segment).facts.get(number, {})

    def name(self, segment: Segment, number: int) -> str:
        """Its name; ``#NUMBER`` where none is known, empty for 0 (nobody)."""
        return self._run(segment).texts((number,), "name")[0]

    def role(self, segment: Segment, number: int) -> str:
        """Its role; empty where none is known, and for 0."""
        return self._run(segment).texts((number,), "role")[0]

    def texts(self, segment: Segment, numbers: range | list[int], what: str) -> list[str]:
        """Names or roles (``what``) of many peers. Equal windows get the same list, which must not be changed, as
        long as nothing was learned: who makes something of it may keep that.
        """
        if isinstance(numbers, list):
            return self._run(segment).texts(numbers, what)
        key = (segment.writer, segment.run, numbers.start, numbers.stop, what)
        if (found := self._windows.get(key)) is None:
            if len(self._windows) >= _WINDOWS:
                self._windows.clear()
            found = self._windows[key] = self._run(segment).texts(numbers, what)
        return found

    def scheme(self, segment: Segment, number: int) -> str:
        """The scheme of its address; ``other`` where none is known."""
        scheme, mark, _ = str(self.facts(segment, number).get("address", "")).partition("://")
        return scheme if mark and scheme else TRANSPORT_NAMES[OTHER]

    def window(self, segment: Segment, low: int, high: int) -> range:
        """Numbers from ``low`` to ``high`` and some around, so that one window serves many batches."""
        most = self._run(segment).most
        return range(low - low % _STEP, max(high, min(high + -high % _STEP, most)) + 1)


def _facts(body: bytes | memoryview) -> dict[str, Any]:
    try:
        at, size = part_at(body, 0)
        return _DICT.decode(body[at : at + size])
    except (UnicodeDecodeError, DecodeError, msgspec.DecodeError):
        return {}
