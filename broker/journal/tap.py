"""The corridor's end of the journal: records as they pass, peers by number, chunks at the end of a batch (sans I/O).

A record is a mark and a frame, appended to one list. ``end_batch`` joins what a batch left there, dates it with one
look at the clock, and hands a chunk on when enough has come together; ``flush`` hands on what there is.

A chunk holds many batches: what a hand-over costs (a system call, another process that wakes up) is shared by
hundreds of records. It goes at CHUNK_BYTES, or at CHUNK_NS of age with the next batch or the owner's timer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from broker.identity import USERID_UNKNOWN
from broker.journal import marks
from broker.journal.layout import DICTIONARY, FLUX, IN, TRANSPORT_NAMES
from broker.journal.recorder import Recorder

CHUNK_BYTES: Final = 128 << 10
"""A chunk goes at this size; a large message so goes at the end of its batch."""
BATCH_BYTES: Final = 1 << 20
"""A batch of more is handed over in chunks of about this size: one large message does not take the others along when
the queue is full, and no chunk is larger than a message and this."""
CHUNK_NS: Final = 50_000_000
"""A chunk goes at this age."""
FLUSH_S: Final = CHUNK_NS / 1e9
"""When the owner's timer flushes what waits: at that age, too."""


class Tap:
    """Where records enter; satisfies ``routing.recording.Recording``.

    Belongs to one thread, and to no event loop: its owner calls ``end_batch`` after each, and ``flush`` by a timer
    while something is ``waiting``.

    Args:
        recorder: gets the chunks. now_ns: the wall clock, ns since 1970.

    Attributes:
        add: takes a mark, then its frame. items: where it puts them.
        both: deliveries are wanted, too (``capture = both``).
    """

    __slots__ = (
        "_blobs",
        "_bytes",
        "_last",
        "_now_ns",
        "_peers",
        "_records",
        "_since",
        "add",
        "both",
        "items",
        "recorder",
    )

    def __init__(self, recorder: Recorder, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.recorder = recorder
        self.both: bool = recorder.options.capture == "both"
        self._now_ns = now_ns
        self.items: list[bytes] = []
        self.add: Callable[[bytes], None] = self.items.append
        self._blobs: list[bytes] = []
        self._bytes = 0
        self._records = 0
        self._since = 0
        self._last = 0
        self._peers: dict[int, tuple[int, bytes]] = {}
        recorder.introduce = self._introduce

    # -- records -------------------------------------------------------------------------------

    def mark(self, direction: int, peer: int, via: int, claimed: int, reason: int = 0) -> bytes:
        """The mark of a Flux message; its transport is the peer's."""
        known = self._peers.get(peer)
        return marks.mark(FLUX, known[0] if known else 0, direction, reason, peer, via, claimed)

    def note(
        self,
        kind: int,
        topic: str,
        facts: dict[str, Any],
        wire: list[bytes] | tuple[bytes, ...] = (),
        *,
        transport: int = 0,
        direction: int = IN,
        reason: int = 0,
        peer: int = 0,
        via: int = 0,
        claimed: int = USERID_UNKNOWN,
    ) -> None:
        """Record something that is no Flux message (kinds NFP, OSLO, STATE).

        ``facts`` becomes JSON; ``wire`` is parts as they were on the wire, which the writer leaves out when payload is
        off; ``transport`` 0 takes that of ``peer``.
        """
        known = self._peers.get(peer)
        if known is not None and not transport:
            transport = known[0]
        frame = marks.note(topic, facts, wire)  # first: if it cannot be made, no mark stands alone
        self.add(marks.mark(kind, transport, direction, reason, peer, via, claimed))
        self.add(frame)

    # -- peers ---------------------------------------------------------------------------------

    def peer(self, name: str, transport: int, role: str, **facts: Any) -> int:
        """Introduce a peer; returns its number, never used again in this run.

        ``transport`` is one of ``layout`` (CURVE, UNIX, ...), ``role`` client, child, parent, own, worker and the like,
        ``facts`` more of the dictionary's JSON: uuid, uid, rank.
        """
        self._last = number = self._last + 1
        said = {"id": number, "name": name, "transport": TRANSPORT_NAMES.get(transport, "none"), "role": role}
        frame = marks.entry_of_dictionary({**said, **facts})
        mark = marks.mark(DICTIONARY, transport, IN, 0, number)
        self._peers[number] = (transport, frame)
        self.add(mark)
        self.add(frame)
        return number

    def forget(self, peer: int) -> None:
        """Forget a peer that is gone, so that a writer which starts later is not told of it."""
        self._peers.pop(peer, None)

    def _introduce(self) -> tuple[list[bytes], int]:
        """The introductions of all peers, dated, for a writer that replaces a dead one: (items, number of records)."""
        items: list[bytes] = []
        for number, (transport, frame) in self._peers.items():
            items += (marks.mark(DICTIONARY, transport, IN, 0, number), frame)
        if items:
            items.append(marks.time_mark(self._now_ns()))
        return items, len(self._peers)

    # -- handing over --------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether records wait here or in the recorder that the writer has not got yet."""
        return bool(self.items or self._blobs) or self.recorder.waiting

    def end_batch(self) -> None:
        """Date the records of the batch that has ended; hand a chunk over when it is large or old enough.

        Cheap when nothing was recorded.
        """
        items = self.items
        if not items:
            return
        now = self._now_ns()
        records = len(items) >> 1
        items.append(marks.TIME_MARK.pack(now))
        blob = b"".join(items)
        if len(blob) > BATCH_BYTES:
            self._hand_large(now)
            return
        items.clear()
        if not self._blobs:
            self._since = now
        self._blobs.append(blob)
        self._records += records
        self._bytes += len(blob)
        if self._bytes >= CHUNK_BYTES or not 0 <= now - self._since < CHUNK_NS:
            self._hand()

    def _hand_large(self, now: int) -> None:
        """Hand a batch with large messages over in several chunks."""
        if self._blobs:
            self._hand()
        items = self.items[:-1]
        self.items.clear()
        time_mark = marks.TIME_MARK.pack(now)
        began = size = 0
        for end in range(2, len(items) + 1, 2):
            size += len(items[end - 1])
            if size >= BATCH_BYTES or end == len(items):
                self.recorder.hand([*items[began:end], time_mark], (end - began) >> 1)
                began, size = end, 0

    def hand_over(self) -> None:
        """Hand over everything."""
        self.end_batch()
        if self._blobs:
            self._hand()

    def flush(self) -> None:
        """Hand over everything; have the recorder send what waits and hear what the writer says."""
        self.hand_over()
        self.recorder.poll()

    def _hand(self) -> None:
        blobs, records = self._blobs, self._records
        self._blobs, self._bytes, self._records = [], 0, 0
        self.recorder.hand(blobs, records)
