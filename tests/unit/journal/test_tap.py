"""The corridor's end: marks, peers, times, and when a chunk goes."""

import json

import pytest

from broker.journal import layout
from broker.journal.layout import CURVE, DENIED, NFP, STATE, UNIX
from broker.journal.tap import BATCH_BYTES, CHUNK_BYTES, CHUNK_NS, Tap
from broker.wire.message import request
from broker.wire.parts import split_parts
from tests.live.chunks import DICTIONARY, FLUX, IN, Shelf, records_of
from tests.tables import for_each

NOBODY = 0xFFFFFFFF


class Clock:
    """A wall clock that moves when told."""

    def __init__(self):
        self.ns = 1_795_000_000_000_000_000

    def __call__(self):
        return self.ns


@pytest.fixture
def desk():
    shelf, clock = Shelf.of("in"), Clock()
    return Tap(shelf, now_ns=clock), shelf, clock


def put(tap, peer=0, payload=b"x"):
    message = request("a.b", payload)
    tap.add(tap.mark(IN, peer, 0, NOBODY))
    tap.add(message.framed())
    return message


def parts(record):
    return split_parts(record.frame, 8)


def test_a_batch_is_dated_once(desk):
    tap, shelf, clock = desk
    put(tap)
    put(tap)
    tap.end_batch()
    began = clock.ns
    clock.ns += 7
    put(tap)
    tap.flush()
    assert [r.ns for r in shelf.records] == [began, began, began + 7]
    assert shelf.handed[0][1] == 3
    assert len(shelf.handed) == 1, "one chunk, though two batches"


def test_settle_without_records_does_nothing(desk):
    tap, shelf, _clock = desk
    tap.end_batch()
    tap.flush()
    assert shelf.handed == []
    assert shelf.polls == 1, "flush lets the recorder go on"


def test_add_is_the_same_for_ever(desk):
    tap, shelf, _clock = desk
    add = tap.add
    put(tap)
    tap.flush()
    add(tap.mark(IN, 0, 0, NOBODY))
    add(request("later").framed())
    tap.flush()
    assert [r.message.topic for r in shelf.records] == ["a.b", "later"]


def test_a_chunk_goes_when_it_is_large(desk):
    tap, shelf, _clock = desk
    size = 0
    while size < CHUNK_BYTES:
        assert shelf.handed == []
        size += 16 + len(put(tap, payload=b"p" * 1000).framed()) + 16
        tap.end_batch()
    assert len(shelf.handed) == 1
    assert sum(map(len, shelf.handed[0][0])) == size


@pytest.mark.parametrize("size", [CHUNK_BYTES, 1 << 20])
def test_a_large_message_goes_with_its_batch(desk, size):
    tap, shelf, _clock = desk
    put(tap)
    message = put(tap, payload=b"p" * size)
    tap.end_batch()
    assert shelf.records[1].frame == message.framed()
    assert not tap.waiting


def test_a_batch_of_large_messages_goes_in_chunks(desk):
    tap, shelf, clock = desk
    put(tap)
    tap.end_batch()
    sizes = [10, BATCH_BYTES // 2, BATCH_BYTES // 2, 20, 3 * BATCH_BYTES, 30, 40]
    sent = [put(tap, payload=b"p" * size) for size in sizes]
    tap.end_batch()
    assert [r.frame for r in shelf.records[1:]] == [m.framed() for m in sent]
    assert [said for _items, said in shelf.handed] == [1, 3, 2, 2]
    assert {r.ns for r in shelf.records} == {clock.ns}
    assert not tap.waiting


@pytest.mark.parametrize("step", [CHUNK_NS, -1])
def test_a_chunk_goes_when_it_is_old_or_the_clock_steps_back(desk, step):
    tap, shelf, clock = desk
    put(tap)
    tap.end_batch()
    assert shelf.handed == []
    clock.ns += step
    put(tap)
    tap.end_batch()
    assert len(shelf.records) == 2


def test_waiting_covers_the_batch_the_chunk_and_the_recorder(desk):
    tap, shelf, _clock = desk
    assert not tap.waiting
    put(tap)
    assert tap.waiting
    tap.end_batch()
    assert tap.waiting
    tap.flush()
    assert not tap.waiting
    shelf.waiting = True
    assert tap.waiting


def test_a_peer_is_introduced_before_its_first_record(desk):
    tap, shelf, _clock = desk
    first = tap.peer("unix:7", UNIX, "client", uid=7, uuid="u-1")
    second = tap.peer("child 3", CURVE, "child", rank=3)
    put(tap, second)
    tap.flush()
    told, other, record = shelf.records
    assert (first, second) == (1, 2)
    assert (told.kind, told.peer, told.transport) == (DICTIONARY, 1, UNIX)
    assert json.loads(parts(told)[0]) == {
        "id": 1,
        "name": "unix:7",
        "transport": "unix",
        "role": "client",
        "uid": 7,
        "uuid": "u-1",
    }
    assert json.loads(parts(other)[0])["transport"] == "curve"
    assert (record.kind, record.peer, record.transport) == (FLUX, 2, CURVE)


def test_the_transport_of_a_stranger_is_none(desk):
    tap, shelf, _clock = desk
    gone = tap.peer("gone", UNIX, "client")
    tap.forget(gone)
    tap.forget(gone)
    put(tap, gone)
    tap.flush()
    assert shelf.flux[0].transport == 0


def test_numbers_are_never_used_again(desk):
    tap, _shelf, _clock = desk
    first = tap.peer("a", UNIX, "client")
    tap.forget(first)
    assert tap.peer("a", UNIX, "client") == first + 1


def test_a_new_writer_is_told_of_who_is_there(desk):
    tap, shelf, clock = desk
    gone, here = tap.peer("gone", UNIX, "client"), tap.peer("here", CURVE, "parent")
    tap.forget(gone)
    items, count = shelf.introduce()
    (told,) = records_of(b"".join(items))
    assert (count, told.peer, told.transport, told.ns) == (1, here, CURVE, clock.ns)
    tap.forget(here)
    assert shelf.introduce() == ([], 0)


def test_notes_carry_facts_and_parts(desk):
    tap, shelf, _clock = desk
    worker = tap.peer("w1", CURVE, "worker")
    tap.note(NFP, "nfp.svc.post", {"command": "post"}, [b"", b"\0wire"], peer=worker, via=9, claimed=5)
    tap.note(STATE, "link.down", {"reason": "caf\udce9"[:3]}, direction=DENIED, reason=300, transport=UNIX)
    tap.flush()
    _told, note, state = shelf.records
    assert (note.kind, note.transport, note.peer, note.via, note.claimed) == (NFP, CURVE, worker, 9, 5)
    assert parts(note) == [b"nfp.svc.post", b'{"command":"post"}', b"", b"\0wire"]
    assert (state.kind, state.direction, state.reason, state.transport) == (STATE, DENIED, 255, UNIX)
    assert parts(state)[0] == b"link.down"


def test_a_topic_that_is_no_utf8_keeps_its_bytes(desk):
    tap, shelf, _clock = desk
    tap.note(STATE, b"\xff\xfe".decode("utf-8", "surrogateescape"), {})
    tap.flush()
    assert parts(shelf.records[0])[0] == b"\xff\xfe"


@for_each(
    ("said", "kept"),
    [
        ("caf\udce9", "caf?"),
        ("\ud800", "?"),
        ("\ud83d\ude00", "??"),
        ("\U0001f600 \u00e9", "\U0001f600 \u00e9"),
    ],
)
def test_surrogates_in_facts_and_names_become_question_marks(said, kept):
    shelf = Shelf.of("in")
    tap = Tap(shelf, now_ns=Clock())
    number = tap.peer(said, UNIX, "client", path=said)
    tap.note(STATE, "link.up", {"peer": said, "more": [said, {said: 1}], "n": None, "f": 0.5}, peer=number)
    tap.note(STATE, "x\ud800", {})
    put(tap, number)
    tap.flush()
    told, up, odd, flux = shelf.records
    assert json.loads(parts(told)[0].decode())["name"] == kept
    assert json.loads(parts(told)[0])["path"] == kept
    assert json.loads(parts(up)[1].decode()) == {"peer": kept, "more": [kept, {kept: 1}], "n": None, "f": 0.5}
    assert parts(odd)[0] == b"x?"
    assert flux.message.topic == "a.b"


def test_what_cannot_be_encoded_leaves_no_mark_behind(desk):
    tap, shelf, _clock = desk
    for attempt in (
        lambda: tap.note(STATE, "odd", {"what": object()}),
        lambda: tap.note(STATE, "odd", {}, ["no bytes"]),  # type: ignore[list-item]
        lambda: tap.note(STATE, "odd", {}, peer=1 << 40),
        lambda: tap.peer("odd", UNIX, "client", what=object()),
    ):
        with pytest.raises(Exception):  # noqa: B017  # whatever it is
            attempt()
        assert tap.items == []
    assert tap.flush() is None
    put(tap)
    tap.flush()
    assert [record.message.topic for record in shelf.records] == ["a.b"]
    assert shelf.introduce() == ([], 0)


def test_what_is_wanted_comes_from_the_options():
    assert Tap(Shelf.of("both")).both
    assert not Tap(Shelf.of("in")).both


def test_a_flux_mark_says_it_all(desk):
    tap, shelf, _clock = desk
    peer = tap.peer("p", layout.WEBSOCKET, "client")
    tap.add(tap.mark(DENIED, peer, 77, 4711, 13))
    tap.add(request("x").framed())
    tap.flush()
    record = shelf.flux[0]
    assert (record.transport, record.direction, record.reason) == (layout.WEBSOCKET, DENIED, 13)
    assert (record.peer, record.via, record.claimed) == (peer, 77, 4711)
