import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError, ProtocolError
from broker.node.overlay import hello
from broker.node.overlay.control import Status
from broker.node.overlay.hello import Answer, HeadgateHello, Hello, Rules, judge
from broker.wire.message import MATCHTAG_NONE, NODEID_ANY, request, response
from broker.wire.payload import decode_json, encode_json
from tests import vectors
from tests.tables import for_each

UUID = "9304037f-f976-439e-aebd-4a5224d6d28c"
RULES = Rules(0, (1, 2), hello.encode_version("0.88.0"), {0: "node0", 1: "node1", 2: "node2", 3: "node3"})
HELLO = Hello(1, 0x5800, UUID, Status.FULL, "node1")

values = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text() | st.just(UUID)
keys = st.sampled_from(
    ["rank", "version", "uuid", "status", "hostname", "headgate", "batch", "epoch", "keepalive_s", "windows"]
)
json_objects = st.dictionaries(keys, values | st.dictionaries(keys, values), max_size=6)


def captured_hellos():
    return [r for r in vectors.tbon() if r.decoded["topic"] == hello.TOPIC and r.decoded["type"] == "request"]


def test_ours_looks_like_a_deployed_hello_on_the_wire():
    deployed = captured_hellos()[0].decoded
    message = hello.encode(HELLO._replace(hostname="nodeA"))
    assert decode_json(message.payload) == {**deployed["payload_json"], "uuid": UUID, "hostname": "nodeA"}
    assert (message.flags, message.userid, message.rolemask) == (
        deployed["flags"],
        deployed["userid"],
        deployed["rolemask"],
    )
    assert (message.nodeid, message.matchtag) == (NODEID_ANY, MATCHTAG_NONE)


@for_each("record", captured_hellos(), ids=lambda record: record.place)
def test_deployed_hellos_are_read(record):
    told = record.decoded["payload_json"]
    read = hello.read_request(request(hello.TOPIC, encode_json(told)))
    assert (read.rank, read.version, read.uuid, int(read.status)) == (
        told["rank"],
        told["version"],
        told["uuid"],
        told["status"],
    )
    assert read.ours == HeadgateHello()


@for_each(
    "ours",
    [
        HeadgateHello(),
        HeadgateHello(True),
        HeadgateHello(True, True),
        HeadgateHello(True, True, UUID),
        HeadgateHello(True, True, UUID, 0.5),
    ],
)
def test_what_we_add_survives_both_ways(ours):
    asked = hello.encode(HELLO._replace(ours=ours))
    assert hello.read_request(asked).ours == ours
    assert hello.read_answer(hello.admit(asked, UUID, ours)) == Answer(0, "", UUID, ours)


def test_a_deployed_child_is_answered_as_deployed_parents_do():
    assert decode_json(hello.admit(hello.encode(HELLO), UUID, HeadgateHello()).payload) == {"uuid": UUID}


@for_each(
    ("change", "rolemask", "key_rank", "errnum", "text"),
    [
        ({}, 1, None, 0, ""),
        ({}, 1, 1, 0, ""),
        ({"version": 0x5863}, 1, None, 0, ""),
        ({"hostname": ""}, 1, None, 0, ""),
        ({}, 0, None, errno.EPERM, ""),
        ({}, 6, None, errno.EPERM, ""),
        ({"hostname": "node2"}, 1, None, errno.EINVAL, ""),
        ({"rank": 7}, 1, None, errno.EINVAL, ""),
        (
            {"rank": 3, "hostname": "node3"},
            1,
            None,
            errno.EINVAL,
            "rank 3 is not a child of rank 0: mismatched config?",
        ),
        (
            {"rank": 9, "hostname": ""},
            1,
            None,
            errno.EINVAL,
            "rank 9 is not a child of rank 0: mismatched config?",
        ),
        (
            {"version": 0x4B00},
            1,
            None,
            errno.EINVAL,
            "client (0.75.0) version mismatched with server (0.88.0)",
        ),
        ({}, 1, 2, errno.EPERM, "the key is that of rank 2, not of rank 1"),
    ],
)
def test_who_is_admitted(change, rolemask, key_rank, errnum, text):
    refusal = judge(HELLO._replace(**change), rolemask, key_rank, RULES)
    assert (refusal.errnum, refusal.text) == (errnum, text) if errnum else refusal is None


def test_hostnames_are_not_held_against_anybody_where_none_is_configured():
    assert judge(HELLO, 1, None, Rules(0, (1,), 0x5800)) is None


@for_each(
    "change",
    [
        {"rank": None},
        {"rank": "1"},
        {"rank": True},
        {"version": None},
        {"version": "0.88.0"},
        {"uuid": None},
        {"uuid": "short"},
        {"uuid": "é" * 18},
        {"uuid": "é" * 36},
        {"uuid": "\0" * 36},
        {"uuid": "x" * 37},
        {"status": None},
        {"status": 0},
        {"status": 4},
        {"status": 6},
        {"status": -1},
        {"hostname": 7},
    ],
)
def test_no_hello_at_all(change):
    told = {"rank": 1, "version": 0x5800, "uuid": UUID, "status": 1, **change}
    told = {key: value for key, value in told.items() if value is not None}
    with pytest.raises(ProtocolError):
        hello.read_request(request(hello.TOPIC, encode_json(told)))


@for_each("payload", [None, b"", b"{}", b"[]\0", b"{\0", b"\0"])
def test_a_payload_that_is_no_object(payload):
    with pytest.raises(ProtocolError):
        hello.read_request(request(hello.TOPIC, payload))


@for_each(
    "extra",
    [
        1,
        "x",
        [],
        {"batch": True},
        {"batch": "1", "epoch": 5, "windows": "1"},
        *({"keepalive_s": odd} for odd in ("5", True, 0, -1, 10**300, 86401, None)),
    ],
)
def test_odd_additions_of_a_stranger_mean_nothing(extra):
    told = {"rank": 1, "version": 0x5800, "uuid": UUID, "status": 1, "headgate": extra}
    ours = hello.read_request(request(hello.TOPIC, encode_json(told))).ours
    assert (ours.epoch, ours.keepalive_s, ours.windows) == ("", 0.0, False)
    assert ours.headgate is isinstance(extra, dict)


@given(st.binary(max_size=200) | json_objects.map(encode_json))
def test_no_payload_breaks_the_reader(payload):
    try:
        told = hello.read_request(request(hello.TOPIC, payload))
    except ProtocolError:
        return
    judge(told, 1, None, RULES)


def test_a_refusal_carries_number_and_text():
    asked = hello.encode(HELLO)
    assert hello.read_answer(hello.refuse(asked, errno.EINVAL, "no")) == Answer(errno.EINVAL, "no")
    assert hello.refuse(asked, errno.EPERM).payload is None


def test_an_admission_without_uuid_is_none():
    with pytest.raises(ProtocolError):
        hello.read_answer(response(hello.encode(HELLO), encode_json({})))


@for_each("text", ["", "1", "1.2", "a.b.c", "1.2.x", "1.2.256", "1.2.-3"])
def test_a_version_is_three_numbers(text):
    with pytest.raises(ConfigError):
        hello.encode_version(text)


def test_version_text_and_number():
    assert hello.encode_version("0.88.0") == 0x005800
    assert hello.encode_version("1.2.3-40-gdeadbee") == 0x010203
    assert hello.show_version(0x010203) == "1.2.3"
