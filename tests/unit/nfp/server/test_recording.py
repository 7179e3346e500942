"""Who is not let in by the broker of NFP: recorded, and counted where it is too many."""

import asyncio
import errno
import json

from broker.journal import feed
from broker.journal.layout import DENIED
from broker.journal.options import JournalOptions
from broker.journal.tap import Tap
from broker.nfp.server.recording import Recording
from broker.wire.parts import split_parts
from tests.live.chunks import Shelf


async def told(monkeypatch):
    """The records of a thousand refusals, one more later, and of the end."""
    now, shelf = [0.0], Shelf.of("in")
    monkeypatch.setattr(feed, "REFUSALS_PER_S", 3)
    monkeypatch.setattr(feed, "monotonic", lambda: now[0])
    recording = Recording(JournalOptions(directory="/nowhere", writer="nfp"))
    recording.tap = Tap(shelf)
    recording.turned_away("192.0.2.1", "k", "before it is on")
    recording.active = True
    for _ in range(1000):
        recording.turned_away("192.0.2.1", "k", "the key is not listed")
    now[0] += 0.4
    recording.turned_away("192.0.2.\udcff", "k", "the key is not listed")
    recording.active = False
    recording.turned_away("192.0.2.1", "k", "after it was on")
    recording.tap.flush()
    await asyncio.sleep(0)  # what was noted for the end of the turn
    return shelf.records


def test_some_are_recorded_and_the_rest_is_counted(monkeypatch):
    records = asyncio.run(told(monkeypatch))
    parts = [split_parts(record.frame, 8) for record in records]
    facts = [json.loads(each[1]) for each in parts]
    assert [each[0] for each in parts] == [b"denied.link"] * 3 + [b"denied.left_out", b"denied.link"]
    assert facts[3] == {"records": 997, "topic": "denied.link"}
    assert facts[4]["address"] == "192.0.2.?"
    links = [record for record, each in zip(records, parts, strict=True) if each[0] == b"denied.link"]
    assert {(record.direction, record.reason) for record in links} == {(DENIED, errno.EPERM)}
