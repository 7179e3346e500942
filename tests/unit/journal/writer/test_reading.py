"""What the writer wrote, read by the reading rooms: verified, and the same records as by a loop of our own."""

import pytest

from broker.journal import marks
from broker.journal.layout import DENIED, DICTIONARY, NFP, OSLO, STRIPPED
from broker.journal.reading.records import records
from broker.journal.reading.verify import verify
from broker.wire.message import event, request, response
from tests.unit.journal.writer.plain import T0, called, calls, chunk, item, rows
from tests.unit.journal.writer.test_segments import Desk


def assorted() -> list[bytes]:
    deep = request("deep.topic", b"p" * 300, matchtag=7)
    for _ in range(300):
        deep.push_route(b"h" * 254)
    answer = response(deep, b"answer", errnum=13)
    known = marks.entry_of_dictionary({"id": 1, "name": "one", "transport": "unix", "role": "client"})
    return [
        item(known, DICTIONARY, peer=1),
        called(0),
        item(deep.framed(), peer=1),
        item(answer.framed(), peer=1),
        item(event("job.state", b"{}\0", sequence=3).framed(), peer=1),
        item(request("x" * 70_000, None).framed(), direction=DENIED, reason=1, peer=1),
        item(marks.note("nfp.echo.post", {"uuid": "u", "uid": 7}, [b"w" * 300, b"x"]), NFP, peer=1),
        item(marks.note("oslo.nova.topic.method", {"id": "m"}), OSLO),
    ]


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
@pytest.mark.parametrize("payload", [True, False])
def test_the_reading_rooms_agree(tmp_path, codec, payload):
    with Desk(tmp_path, codec=codec, payload=payload, rotate_bytes=150_000) as desk:
        items = assorted()
        for turn in range(6):
            desk.say(chunk(desk.builder.number + turn, items, ts=T0 + turn, cause=marks.SHED))
            desk.calls(20)
        desk.say(calls(desk.builder.number, 3))
    report = verify(tmp_path)
    assert report.ok, report
    own = [row for row in rows(tmp_path) if row.kind != DICTIONARY]
    read = list(records(tmp_path))
    assert len(read) == len(own) > 150
    for record, row in zip(read, own, strict=True):
        assert (record.seq, record.ts_ns, record.peer_id, record.via_id) == (
            row.seq,
            row.ts,
            row.peer,
            row.via,
        )
        assert record.parts() == row.parts
        assert (record.routes, record.payload_len) == (max(row.routes, record.routes), row.payload_len)
        assert record.reason == row.reason
        if row.topic_at != 0xFFFF:
            assert record.topic == row.topic.decode()
        if row.peer == 1:
            assert record.peer in ("one", "#1")
        if row.kind == 1 and not row.direction & STRIPPED:
            assert record.message().parts() == row.parts
    assert {record.peer for record in read if record.peer_id == 1} == {"one"}
    assert {len(record.topic) for record in read} >= {70_000, len("deep.topic")}
    assert 300 in {record.routes for record in read}
