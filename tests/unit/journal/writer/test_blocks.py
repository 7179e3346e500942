"""Chunks become blocks: each field of each record, what does not fit its field, gaps, payloads left out."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError, ProtocolError
from broker.journal import marks
from broker.journal.layout import DENIED, DICTIONARY, FLUX, IN, NFP, OSLO, OUT, STATE, STRIPPED, UNIX
from broker.journal.writer.blocks import BlockBuilder
from broker.journal.writer.intake import Chunk
from broker.journal.writer.peers import PEERS_MAX, Change, PeerTable
from broker.wire.message import MAGIC_DEPLOYED, PAYLOAD, ROUTE, TOPIC, Message, event, request, response
from tests.tables import for_each
from tests.unit.journal.writer.plain import (
    T0,
    block_at,
    called,
    calls,
    chunk,
    item,
    options,
    tags,
)


def built(*chunks: Chunk, base: int = 0, number: int = 0, **more):
    """All rows of the blocks that the chunks make."""
    builder = BlockBuilder(options(**more), base=base, number=number)
    made = [block for each in chunks for block in builder.add(each, T0 + 7)]
    last = builder.build()
    made += [last] if last is not None else []
    for block in made:
        assert len(block.encode()) == block.size
    return [row for block in made for row in block_at(block.encode(), 0).rows], builder


def one(frame: bytes, **more):
    (row,), _builder = built(chunk(0, [item(frame)]), **more)
    return row


def stacked(message: Message, *hops: bytes) -> Message:
    for hop in hops:
        message.push_route(hop)
    return message


def frame_of(parts: list[bytes]) -> bytes:
    return marks.framed(parts)


def proto(kind: int = 1, flags: int = TOPIC | ROUTE, words=(1000, 1, 7, 8)) -> bytes:
    return bytes((0x8E, 1, kind, flags)) + b"".join(word.to_bytes(4, "big") for word in words)


def test_every_field_of_a_request():
    message = stacked(request("kvs.get", b"abc\0", matchtag=5, userid=7, rolemask=1), b"origin", b"hop")
    frame = marks.mark(FLUX, UNIX, IN, 0, 3, 4, 99) + message.framed()
    (row,), _ = built(chunk(0, [frame], ts=123))
    assert (row.seq, row.ts, row.peer, row.via, row.claimed) == (0, 123, 3, 4, 99)
    assert (row.kind, row.transport, row.direction, row.reason) == (FLUX, UNIX, IN, 0)
    assert (row.topic, row.origin, row.routes, row.payload_len) == (b"kvs.get", b"origin", 2, 4)
    assert row.proto == message.proto
    assert row.body == message.encode()


@for_each(
    "message",
    [
        stacked(request("a.b", None), b"x"),
        response(stacked(request("a.b", b"q"), b"x", b"y"), b"answer", errnum=2),
        event("job.state", b"{}\0", sequence=9),
        request("t", b""),
        request("t" * 254, b"p" * 254),
        request("t" * 255, b"p" * 255),
        request("t" * 70_000, b"p" * 70_000),
        request("large", bytes(5 << 20)),
    ],
    ids=lambda message: repr(message)[:40],
)
@for_each("codec", ["none", "zstd", "lz4"])
def test_bodies_are_the_parts_as_they_were(message, codec):
    row = one(message.framed(), codec=codec)
    assert row.body == message.encode()
    assert row.parts == message.parts()
    assert row.payload_len == len(message.payload or b"")
    assert row.routes == len(message.routes)
    if len(message.topic) < 65_535:
        assert row.topic.decode() == message.topic
    else:
        assert (row.topic_at, row.topic_len) == (0xFFFF, 0xFFFF)


def test_messages_whose_flags_leave_parts_out():
    bare = one(frame_of([proto(8, 0)]))
    assert (bare.topic_at, bare.topic_len, bare.origin_at, bare.origin_len, bare.routes) == (0, 0, 0, 0, 0)
    unrouted = one(frame_of([b"a.topic", b"pay", proto(4, TOPIC | PAYLOAD)]))
    assert (unrouted.topic, unrouted.payload_len, unrouted.routes) == (b"a.topic", 3, 0)
    only_routed = one(frame_of([b"r1", b"", proto(8, ROUTE)]))
    assert (only_routed.origin, only_routed.routes, only_routed.topic_len) == (b"r1", 1, 0)
    only_paid = one(frame_of([b"pay", proto(4, PAYLOAD)]))
    assert (only_paid.payload_len, only_paid.topic_at) == (3, 0)
    empty_topic = one(frame_of([b"", b"", proto()]))
    assert (empty_topic.topic_at, empty_topic.topic_len) == (2, 0)


def test_identities_and_stacks_that_do_not_fit_say_so():
    assert one(stacked(request("t"), b"i" * 254).framed()).origin == b"i" * 254
    for size in (255, 300):
        parts = [b"i" * size, b"", b"t", proto()]
        row = one(frame_of(parts))
        assert (row.origin_at, row.origin_len, row.routes) == (0xFFFF, 0xFF, 1)
        assert row.parts == parts
        assert row.topic == b"t"
    for hops, count in ((254, 254), (255, 255), (256, 255), (1000, 255)):
        row = one(stacked(request("topic"), *[b"h%d" % number for number in range(hops)]).framed())
        assert row.routes == count
        assert (row.origin, row.topic) == (b"h0", b"topic")
    deep = [b"h" * 250 for _ in range(262)]
    row = one(stacked(request("topic"), *deep).framed())
    assert (row.topic_at, row.topic_len, row.origin_at) == (0xFFFF, 0xFFFF, 261 * 251 + 1)
    row = one(stacked(request("topic"), *deep, *deep[:10]).framed())
    assert (row.topic_at, row.origin_at, row.origin_len) == (0xFFFF, 0xFFFF, 0xFF)
    assert (one(request("t" * 65_534).framed()).topic_len, one(request("t" * 65_535).framed()).topic_len) == (
        65_534,
        0xFFFF,
    )


def test_a_long_form_where_a_short_one_would_do():
    body = b"\xff\0\0\0\x02r1" + b"\0" + b"\xff\0\0\0\x01t" + b"\xff\0\0\0\x03pay"
    body += b"\xff\0\0\0\x14" + proto(1, TOPIC | ROUTE | PAYLOAD)
    row = one(MAGIC_DEPLOYED + len(body).to_bytes(4, "big") + body, payload=False)
    assert (row.origin, row.topic, row.payload_len, row.routes) == (b"r1", b"t", 3, 1)
    assert row.parts == [b"r1", b"", b"t", proto(1, TOPIC | ROUTE | PAYLOAD)]


@for_each("payload", [True, False])
def test_kinds_without_proto(payload):
    wire = [b"w" * 10, b"", b"x" * 300]
    items = [
        item(marks.note("nfp.echo.post", {"uuid": "u"}, wire), NFP),
        item(marks.note("oslo.nova.cast", {"id": 1}), OSLO),
        item(marks.note("link.up", {"peer": 3, "text": "x" * 400}), STATE),
        item(marks.entry_of_dictionary({"id": 3, "name": "n"}), DICTIONARY, peer=3),
        called(4),
    ]
    found, _ = built(chunk(0, items), payload=payload)
    assert [row.topic for row in found[:3]] == [b"nfp.echo.post", b"oslo.nova.cast", b"link.up"]
    assert [row.payload_len for row in found] == [310, 0, 0, 0, 3]
    assert all(row.proto == bytes(20) for row in found[:4])
    assert found[0].parts[2:] == (wire if payload else [])
    assert msgspec.json.decode(found[0].parts[1]) == {"uuid": "u"}
    stripped = [bool(row.direction & STRIPPED) for row in found]
    assert stripped == ([False] * 5 if payload else [True, False, False, False, True])
    assert (found[3].topic_at, found[3].topic_len, found[3].peer) == (0, 0, 3)


def test_payloads_that_are_left_out_leave_no_byte():
    secret = b"secret-" + b"s" * 400
    messages = [stacked(request(f"t.{n}", secret if n % 2 else None, matchtag=n), b"o") for n in range(40)]
    bodies = [
        item(message.framed(), direction=OUT if n % 3 else DENIED, reason=1)
        for n, message in enumerate(messages)
    ]
    builder = BlockBuilder(options(payload=False))
    builder.add(chunk(0, bodies), T0)
    data = builder.build().encode()
    assert b"secret" not in data
    for row, message in zip(block_at(data, 0).rows, messages, strict=True):
        parts = message.parts()
        paid = len(parts) == 5
        if paid:
            del parts[3]
        assert row.parts == parts
        assert row.payload_len == (len(secret) if paid else 0)
        assert bool(row.direction & STRIPPED) is paid
        assert row.direction & ~STRIPPED in (OUT, DENIED)
        assert (row.topic, row.origin) == (message.topic.encode(), b"o")


def test_time_marks_date_what_is_in_front_of_them():
    data = called(0) + called(1) + marks.time_mark(50) + marks.time_mark(51) + called(2) + marks.time_mark(40)
    builder = BlockBuilder(options())
    builder.add(Chunk(0, 4, 0, data + called(3)), 77)
    block = block_at(builder.build().encode(), 0)
    assert [row.ts for row in block.rows] == [50, 50, 40, 77]
    assert (block.first_ts, block.last_ts) == (40, 77)  # the clock stepped back in between


def test_a_jump_of_numbers_becomes_one_record():
    found, _ = built(
        calls(0, 3), calls(10, 2, cause=marks.SHED), calls(13, 1, cause=marks.WRITER_DIED), base=100
    )
    assert [row.seq for row in found] == [100, 101, 102, 109, 110, 111, 112, 113]
    first, second = (row for row in found if row.kind == STATE)
    assert first.topic == b"gap"
    assert msgspec.json.decode(first.parts[1]) == {
        "records": 7, "first": 103, "last": 109, "cause": marks.CAUSES[marks.SHED]
    }  # fmt: skip
    assert msgspec.json.decode(second.parts[1]) == {
        "records": 1, "first": 112, "last": 112, "cause": marks.CAUSES[marks.WRITER_DIED]
    }  # fmt: skip


def test_a_chunk_without_records_tells_of_a_loss():
    found, builder = built(calls(0, 1), Chunk(5, 0, marks.SHED, b""))
    assert [(row.seq, row.kind) for row in found] == [(0, FLUX), (4, STATE)]
    assert builder.number == 5


def test_an_unknown_cause_is_named_as_such():
    found, _ = built(calls(2, 1, cause=77))
    assert msgspec.json.decode(found[0].parts[1])["cause"] == "unknown"


def test_records_that_come_again_are_left_out():
    found, builder = built(calls(0, 4), calls(2, 4), calls(1, 2), payload=False)
    assert [row.seq for row in found] == tags(found) == list(range(6))
    assert builder.repeated == 4
    assert builder.number == 6


def test_blocks_end_by_records_and_by_bytes():
    builder = BlockBuilder(options(block_records=10))
    assert [len(builder.add(calls(at, 4), T0)) for at in (0, 4, 8)] == [0, 0, 1]
    assert builder.build() is None
    builder = BlockBuilder(options(block_bytes=1000))
    assert [len(builder.add(calls(at, 1, payload=b"p" * 400), T0)) for at in range(3)] == [0, 0, 1]


def test_half_a_chunk_gives_its_whole_records():
    said = calls(0, 5)
    ends = [len(b"".join(called(n) for n in range(count))) for count in range(6)]
    for cut in range(len(said.data) + 1):
        found, builder = built(Chunk(0, 5, 0, said.data[:cut], whole=False), payload=False)
        assert tags(found) == list(range(sum(end <= cut for end in ends[1:])))
        assert builder.broken is None


def test_a_whole_chunk_that_is_cut_is_broken():
    said = calls(0, 3)
    for cut in range(1, len(said.data)):
        if cut == marks.MARK_BYTES:
            continue  # the TIME mark, without which they are dated by their coming
        found, builder = built(Chunk(0, 3, 0, said.data[:-cut]))
        assert tags(found) == list(range(len(found)))
        assert isinstance(builder.broken, ProtocolError)
        assert builder.add(calls(3, 1), T0) == []


def test_a_wrong_count_is_broken():
    for records in (1, 3):
        found, builder = built(Chunk(0, records, 0, called(0) + called(1)))
        assert "2 records" in str(builder.broken)
        assert tags(found) == list(range(min(records, 2)))


@for_each(
    "bad",
    [
        b"\0\0\0\0" + called(9)[20:24] + called(9)[24:],
        MAGIC_DEPLOYED + (0).to_bytes(4, "big"),
        MAGIC_DEPLOYED + (5).to_bytes(4, "big") + b"\x04abcd",
        frame_of([b"r", b"", b"t", b"extra", proto()]),
        frame_of([b"r", b"r2", proto()]),
        frame_of([b"", b"t", proto()[:-1]]),
        frame_of([b"", b"t", b"\0" + proto()[1:]]),
        frame_of([b"", b"t", proto(1, TOPIC | ROUTE | PAYLOAD)]),
        frame_of([b"h"] * 100 + [proto()]),
    ],
    ids=[
        "magic",
        "empty",
        "short",
        "more parts",
        "no delimiter",
        "short PROTO",
        "no PROTO",
        "no payload",
        "hops",
    ],
)
def test_what_is_in_front_of_a_bad_frame_is_kept_and_nothing_behind_it(bad):
    found, builder = built(chunk(0, [called(0), called(1), item(bad), called(3)]), payload=False)
    assert tags(found) == [0, 1]
    assert "record 2" in str(builder.broken)
    assert builder.number == 2
    assert builder.add(calls(3, 1), T0) == []


@for_each("kind", [NFP, OSLO, STATE, DICTIONARY, 7])
def test_a_bad_record_of_another_kind(kind):
    for body in (b"", b"\x05abc", b"\x01t\x05abc", b"\x01t\x02{}\x09abc", b"\xff\xff\xff\xff\xffa"):
        if kind == STATE and not body:
            continue
        frame = MAGIC_DEPLOYED + len(body).to_bytes(4, "big") + body
        found, builder = built(chunk(0, [called(0), item(frame, kind)]))
        assert tags(found) == [0]
        assert builder.broken is not None


@given(data=st.binary(max_size=400), cut=st.integers(0, 300), records=st.integers(0, 5))
def test_any_bytes_are_kept_or_refused(data, cut, records):
    """Whatever a chunk holds: no exception but the one that is reported, and a block that can be read."""
    good = calls(0, 3).data
    found, builder = built(Chunk(0, records, 0, good[:cut] + data), payload=False)
    assert [row.seq for row in found] == list(range(len(found)))
    assert builder.number == len(found)


@given(st.data())
def test_any_message_comes_out_as_it_went_in(data):
    hop = st.binary(min_size=1, max_size=300)
    expected, items = [], []
    for _ in range(data.draw(st.integers(1, 6))):
        routed, topic, paid = (data.draw(st.booleans()) for _ in range(3))
        hops = data.draw(st.lists(hop, max_size=40)) if routed else []
        head = [*hops, b""] if routed else []
        head += [data.draw(st.binary(max_size=300))] if topic else []
        payload = [data.draw(st.binary(max_size=600))] if paid else []
        flags = (ROUTE if routed else 0) | (TOPIC if topic else 0) | (PAYLOAD if paid else 0)
        expected.append((head, payload, proto(1, flags), hops))
        items.append(item(frame_of([*head, *payload, proto(1, flags)])))
    for keep in (True, False):
        found, _ = built(chunk(0, items), payload=keep)
        for row, (head, payload, last, hops) in zip(found, expected, strict=True):
            assert row.parts == [*head, *(payload if keep else []), last]
            assert row.payload_len == sum(map(len, payload))
            assert row.routes == len(hops)
            if hops and len(hops[-1]) < 255:
                assert row.origin == hops[-1]


def test_peers_that_live_are_repeated():
    builder = BlockBuilder(options(rank=5))
    said = [marks.entry_of_dictionary({"id": number, "name": f"p{number}"}) for number in range(1, 5)]
    items = [item(frame, DICTIONARY, peer=1 + number) for number, frame in enumerate(said)]
    items += [
        item(marks.note("link.down", {"peer": 2}), STATE),
        item(marks.note("link.down", {"reason": "by the mark"}), STATE, peer=3),
        item(marks.note("link.up", {"peer": 4}), STATE, peer=4),
        item(marks.note("link.down", {"peer": "no number"}), STATE, peer=77),
        item(frame_of([b"link.down", b"no json"]), STATE, peer=4),
    ]
    builder.add(chunk(0, items), T0)
    peers = PeerTable()
    assert builder.repeat(peers, 0, T0) is None
    peers.apply(builder.build().changes)
    block = block_at(builder.repeat(peers, 9, T0).encode(), 0)
    assert (block.flags, block.first_seq, block.rank) == (1, 9, 5)
    assert [(row.seq, row.peer, row.kind, row.transport) for row in block.rows] == [
        (None, 1, DICTIONARY, UNIX),
        (None, 4, DICTIONARY, UNIX),
    ]
    assert [row.body for row in block.rows] == [said[0][8:], said[3][8:]]


def test_the_table_of_peers_is_bounded():
    peers = PeerTable()
    peers.apply([Change(number, UNIX, b"\x02{}") for number in range(PEERS_MAX + 3)])
    assert len(peers) == PEERS_MAX


def test_bodies_that_do_not_become_smaller_are_stored_as_they_are():
    builder = BlockBuilder(options(codec="lz4"))
    builder.add(chunk(0, [item(frame_of([b"", b"t", proto()]))]), T0)
    assert block_at(builder.build().encode(), 0).codec == 0


def test_an_unknown_codec():
    with pytest.raises(ConfigError, match="codec 'gzip'"):
        BlockBuilder(options(codec="gzip"))
