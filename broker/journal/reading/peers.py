"""Names of peers: what the DICTIONARY records of a run say."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from broker.errors import DecodeError
from broker.journal.layout import DICTIONARY, ENTRY, HEADER_BYTES, KIND_AT, OTHER, TRANSPORT_NAMES
from broker.journal.reading.blocks import Block, Damage, SegmentFile
from broker.journal.reading.segments import Segment
from broker.wire.parts import split_parts

_STEP: Final = 1024
"""Windows of names begin and end at multiples of this, so that one serves many batches."""
_WINDOWS: Final = 64
"""Windows kept."""
_DICTIONARY: Final = bytes([DICTIONARY])


class Peers:
    """Peers by number, of any writers and runs; fed from blocks in any order, for a run never uses a number twice."""

    __slots__ = ("_most", "_runs", "_windows")

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        self._most: dict[tuple[str, str], int] = {}
        self._windows: dict[tuple[str, str, int, int, str], list[str]] = {}

    def learn(self, block: Block) -> bool:
        """Take what the DICTIONARY records of ``block`` say; returns whether it holds any.

        A record that cannot be read teaches nothing; who checks blocks finds it.
        """
        entries = block.entries
        at = bytes(entries[KIND_AT::HEADER_BYTES]).find(_DICTIONARY)  # most blocks hold none: one search
        if at < 0:
            return False
        run = (block.segment.writer, block.segment.run)
        known = self._runs.setdefault(run, {})
        self._windows.clear()
        bodies = block.bodies()
        for fields in ENTRY.iter_unpack(entries[at * HEADER_BYTES :]):
            if fields[9] == DICTIONARY:
                known[fields[3]] = _facts(bodies[fields[1] : fields[1] + fields[2]])
        self._most[run] = max(known)
        return True

    def learn_before(self, path: str | os.PathLike[str], offset: int) -> None:
        """Take what a segment says in front of ``offset``, for who reads from there; damage is stepped over.

        Raises:
            FileNotFoundError: the segment is gone.
        """
        with SegmentFile(path) as file:
            for block in file.salvage(HEADER_BYTES, min(offset, file.size())):
                if not isinstance(block, Damage):
                    self.learn(block)

    def facts(self, segment: Segment, number: int) -> dict[str, Any]:
        """What is known of a peer: ``name``, ``transport``, ``role`` and more; empty where nothing is."""
        return self._runs.get((segment.writer, segment.run), {}).get(number, {})

    def name(self, segment: Segment, number: int) -> str:
        """Its name; ``#NUMBER`` where none is known, empty for 0 (nobody)."""
        return self.texts(segment, (number,), "name")[0]

    def role(self, segment: Segment, number: int) -> str:
        """Its role; empty where none is known, and for 0."""
        return self.texts(segment, (number,), "role")[0]

    def texts(self, segment: Segment, numbers: Sequence[int], what: str) -> list[str]:
        """The same for many; ``what``: name or role."""
        known = self._runs.get((segment.writer, segment.run), {})
        return [_text(known.get(number, {}), number, what) if number else "" for number in numbers]

    def scheme(self, segment: Segment, number: int) -> str:
        """The scheme of its address; ``other`` where none is known."""
        scheme, mark, _ = str(self.facts(segment, number).get("address", "")).partition("://")
        return scheme if mark and scheme else TRANSPORT_NAMES[OTHER]

    def window(self, segment: Segment, low: int, high: int, what: str) -> tuple[int, list[str]]:
        """What ``texts`` says of the numbers from ``low`` to ``high`` and some around: the first number, and a list.

        It is the same list, not to be changed, as long as nothing was learned and the numbers are near those of before:
        who makes something of it may keep that.
        """
        low -= low % _STEP
        most = self._most.get((segment.writer, segment.run), 0)
        high = max(high, min(high - high % _STEP + _STEP - 1, most))
        key = (segment.writer, segment.run, low, high, what)
        if (found := self._windows.get(key)) is None:
            if len(self._windows) >= _WINDOWS:
                self._windows.clear()
            found = self._windows[key] = self.texts(segment, range(low, high + 1), what)
        return low, found


def _text(facts: dict[str, Any], number: int, what: str) -> str:
    text = facts.get(what)
    return text if isinstance(text, str) else f"#{number}" if what == "name" else ""


def _facts(body: bytes | memoryview) -> dict[str, Any]:
    try:
        facts = msgspec.json.decode(split_parts(body)[0])
    except (IndexError, UnicodeDecodeError, DecodeError, msgspec.DecodeError):
        return {}
    return facts if isinstance(facts, dict) else {}
