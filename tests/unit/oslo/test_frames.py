"""The envelope byte for byte, what is refused and how, and the filters of publishing sockets."""

import threading

import pytest

from broker.identity import USERID_UNKNOWN, Credentials, Role
from broker.oslo import frames
from broker.oslo.frames import (
    HEAD_BYTES,
    NO_ID,
    Envelope,
    Flag,
    Kind,
    Malformed,
    check_name,
    dated,
    decode,
    due_of,
    encode,
    fanout_filter,
    new_id,
    notify_filter,
    numbered,
    overdue,
    read_filter,
    refusal,
    stamped,
)
from broker.oslo.names import CHOSEN_MAX, NAME_BYTES_MAX, Reason
from tests.tables import for_each

ID = bytes(range(16))
ADDRESS = b"openstack\0compute\0node-1@lvm\0" + b"a" * 24
CALL = (
    b"HGO\x01"
    b"\x01\x01\x00\x00"
    + (60_000).to_bytes(4, "big")
    + (2_000).to_bytes(4, "big")
    + (1000).to_bytes(4, "big")
    + (2).to_bytes(4, "big")
    + ID
    + ADDRESS
)


def call(**changes) -> bytes:
    values = {
        "flags": Flag.MANDATORY,
        "ttl_ms": 60_000,
        "word": 2_000,
        "userid": 1000,
        "rolemask": 2,
        "id": ID,
    }
    return encode(Kind.CALL, "openstack", "compute", "node-1@lvm", ("a" * 24,), **(values | changes))


def test_the_bytes_are_those_of_the_module_text():
    assert call() == CALL
    assert decode(CALL) == Envelope(
        1, 1, 0, 60_000, 2_000, 1000, 2, ID, "openstack", "compute", "node-1@lvm", ("a" * 24,)
    )
    assert decode(CALL).listener == "a" * 24


def test_an_envelope_without_address_is_forty_bytes():
    frame = encode(Kind.PULSE)
    assert len(frame) == HEAD_BYTES == 40
    assert decode(frame) == Envelope(Kind.PULSE)
    assert decode(frame).userid == USERID_UNKNOWN
    assert decode(frame).listener == ""


def test_a_decoded_envelope_is_a_whole_named_tuple():
    envelope = decode(CALL)
    assert type(envelope) is Envelope
    assert envelope._replace(server="").server == ""
    assert len(envelope) == len(Envelope._fields)


@for_each(
    ("frame", "text"),
    [
        (b"", "of 0 bytes, expected an envelope"),
        (CALL[:39], "of 39 bytes, expected an envelope"),
        (b"HG0" + CALL[3:], "b'HG0"),
        (b"{" * 100, "of 100 bytes"),
        (CALL[:40] + b"openstack\0compute", "an address of 2 names, expected 3 to 259"),
        (CALL[:40] + b"\0\0", None),
        (CALL[:40] + b"x\0" * 259 + b"x", "an address of 260 names"),
        (CALL[:40] + b"x" * 256 + b"\0\0", "a name longer than 255 bytes"),
        (CALL[:40] + b"\0\0\0" + b"x" * 256, "a name longer than 255 bytes"),
        (CALL[:40] + b"x" * 100_000, "an address of 100000 bytes"),
        (CALL[:40] + b"a\0\xff\0", "not UTF-8 at byte 2"),
        (CALL[:40] + b"a\0\xc3\0\xa9", "not UTF-8 at byte 2"),
        (CALL[:40] + b"\xed\xa0\x80\0\0", "not UTF-8 at byte 0"),
    ],
    ids=str,
)
def test_what_is_no_envelope_is_refused_with_what_was_seen(frame, text):
    if text is None:
        assert decode(frame)[8:] == ("", "", "", ())
        return
    with pytest.raises(Malformed, match=text) as caught:
        decode(frame)
    assert not caught.value.unknown_version
    assert len(str(caught.value)) < 200


def test_another_version_is_told_apart():
    with pytest.raises(Malformed, match="saw version 2, expected 1") as caught:
        decode(CALL[:3] + b"\x02" + CALL[4:])
    assert caught.value.unknown_version


def test_an_address_that_was_refused_once_is_refused_again():
    bad = CALL[:40] + b"a\0\xff\0"
    for _ in range(3):
        with pytest.raises(Malformed):
            decode(bad)


def test_what_is_remembered_of_addresses_is_bounded():
    for number in range(frames._READ_MAX + 100):
        assert decode(encode(Kind.CALL, "e", f"topic-{number}")).topic == f"topic-{number}"
        long = f"{number:0250}"
        assert decode(encode(Kind.CALL, long, long)).topic == long
    assert len(frames._read) <= frames._READ_MAX + 1
    assert sum(map(len, frames._read)) <= (frames._READ_MAX + 1) * frames._READ_BYTES_MAX
    assert max(map(len, frames._read)) <= frames._READ_BYTES_MAX


def test_threads_that_decode_at_once_read_the_same():
    wrong = []

    def read(offset: int) -> None:
        for number in range(frames._READ_MAX):
            topic = f"t{(number * 7 + offset) % 9000}"
            if decode(encode(Kind.CAST, "e", topic, "s"))[8:] != ("e", topic, "s", ()):
                wrong.append(topic)

    threads = [threading.Thread(target=read, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_many_listeners_of_one_notification():
    chosen = tuple(f"{number:024x}" for number in range(CHOSEN_MAX))
    frame = encode(Kind.NOTIFY, "e", "t.info", "", chosen)
    assert decode(frame).listeners == chosen
    assert decode(frame).listener == chosen[0]


def test_times_that_32_bits_cannot_say_become_the_nearest():
    forever = decode(encode(Kind.CALL, ttl_ms=10**12, word=10**12))
    assert (forever.ttl_ms, forever.word) == (0xFFFFFFFF, 0xFFFFFFFF)
    assert decode(encode(Kind.CALL, ttl_ms=-5)).ttl_ms == 0


def test_a_stamp_overwrites_whatever_the_sender_said():
    who = Credentials(42, int(Role.USER | Role.LOCAL))
    frame = stamped(CALL, who)
    assert (decode(frame).userid, decode(frame).rolemask) == (42, 6)
    assert frame[:16] + frame[24:] == CALL[:16] + CALL[24:]
    assert stamped(encode(Kind.PULSE), who)[16:24] == who.encode()


def test_a_number_is_written_modulo_two_to_the_thirty_second():
    frame = numbered(CALL, 7)
    assert decode(frame).word == 7
    assert frame[:12] + frame[16:] == CALL[:12] + CALL[16:]
    assert decode(numbered(CALL, (1 << 32) + 3)).word == 3


@for_each("now_s", [0.5, 12_345.678, 2**32 / 1000 - 0.1, 2**32 / 1000 * 3 + 7])
@for_each("left_s", [0.0, 0.25, 5.0, 86_400.0])
def test_a_deadline_is_read_at_any_time_as_it_was_meant(now_s, left_s):
    frame = dated(CALL, now_s + left_s, now_s)
    assert not overdue(frame, now_s + left_s - 0.002)
    assert overdue(frame, now_s + left_s + 0.002)
    assert frame[:5] + frame[6:8] + frame[12:] == CALL[:5] + CALL[6:8] + CALL[12:]
    assert decode(frame).flags == Flag.MANDATORY | Flag.DUE
    for later_s in (0.0, 1.0, 3600.0):
        due_s = due_of(decode(frame), now_s + later_s)
        assert due_s == pytest.approx(now_s + left_s, abs=0.0021)


def test_a_time_to_live_begins_when_it_is_read_and_none_never_ends():
    assert due_of(decode(CALL), 7.0) == 67.0
    assert not overdue(CALL, 70.0), "a ttl is no deadline"
    assert due_of(decode(call(ttl_ms=0)), 7.0) is None
    assert due_of(decode(call(ttl_ms=0, flags=Flag.DUE)), 7.0) is None
    assert due_of(decode(dated(CALL, 40 * 86_400.0, 0.0)), 7.0) is None  # farther than can be told


def test_a_refusal_names_the_message_and_the_reason():
    envelope = decode(refusal(ID, Reason.BUSY))
    assert (envelope.kind, envelope.reason, envelope.id) == (Kind.REFUSED, Reason.BUSY, ID)


def test_ids_are_random_and_none_is_empty():
    assert len({new_id() for _ in range(1000)} | {NO_ID}) == 1001


@for_each("name", ["", "compute", "node-1@lvm", "x" * NAME_BYTES_MAX, "é" * 127])
def test_a_name_may_be_any_text(name):
    assert check_name(name, "topic") == name


@for_each(
    ("name", "text"),
    [
        ("a\0b", "topic 'a.*saw a NUL"),
        ("x" * 256, "saw 256 bytes, expected 255 at most"),
        ("é" * 128, "saw 256 bytes"),
        ("\ud800", "half a character"),
    ],
    ids=["NUL", "long", "long in UTF-8", "surrogate"],
)
def test_what_cannot_be_a_name_is_refused(name, text):
    with pytest.raises(ValueError, match=text) as caught:
        check_name(name, "topic")
    assert len(str(caught.value)) < 200


def test_filters_name_exchange_and_topic_and_end():
    assert fanout_filter("openstack", "compute") == b"Fopenstack\0compute\0"
    assert notify_filter("openstack", "notifications.info") == b"Nopenstack\0notifications.info\0"
    assert read_filter(b"Fopenstack\0compute\0") == ("openstack", "compute")
    assert read_filter("Né\0ü\0".encode()) == ("é", "ü")
    assert read_filter(b"F\0\0") == ("", "")


@for_each(
    "data",
    [
        b"",
        b"F",
        b"F\0",
        b"Fa\0b",
        b"Fa\0b\0c",
        b"Fa\0b\0\0",
        b"Xa\0b\0",
        b"L" + b"a" * 24 + b"\0",
        b"?" + bytes(16),
        b"Fa\0\xff\0",
        b"F" + b"a" * 256 + b"\0b\0",
    ],
)
def test_what_is_no_filter_of_a_topic(data):
    assert read_filter(data) is None
