import msgspec
import pytest

from broker.oslo.directory import wire
from broker.oslo.directory.wire import DirectoryKind, DirectoryRefused, Gone, Hello, States, Welcome
from broker.oslo.frames import Malformed
from broker.oslo.records import RECORDS_MAX, STATE_CHARS_MAX, Beat, Record, State
from tests.tables import for_each
from tests.unit.oslo.directory.clouds import rpc, state

BODIES = [
    (DirectoryKind.HELLO, Hello(True)),
    (DirectoryKind.ANNOUNCE, state(records=[rpc("a")], endpoint="tcp://host:9501", key="k" * 40)),
    (DirectoryKind.BEAT, (Beat("n1", "call", 1, 2), Beat("n1", "cast", 1, 1))),
    (DirectoryKind.LEAVE, Beat("n1", "call", 1, 2)),
    (DirectoryKind.AWAY, Beat("n1", "call", 1, 2)),
    (DirectoryKind.WELCOME, Welcome("n1", 7, 5.0, 1 << 20)),
    (
        DirectoryKind.STATES,
        States((state(pipeline="fanout", records=[Record("nova", "compute")]),), complete=True),
    ),
    (DirectoryKind.GONE, (Gone("n1", "call", 3, "left"),)),
    (DirectoryKind.GREET, wire.Empty()),
    (DirectoryKind.ALIVE, wire.Empty()),
    (DirectoryKind.REFUSED, DirectoryRefused("no")),
]


@for_each(("kind", "body"), BODIES, ids=[kind.name for kind, _body in BODIES])
def test_every_kind_comes_back_as_it_went(kind, body):
    head, data = wire.encode(kind, body)
    assert head == b"HGD" + bytes((2, kind))
    expected = wire.TO_DIRECTORY if kind < 16 else wire.FROM_DIRECTORY
    message = wire.decode([head, data], expected)
    assert message == (kind, body)
    assert type(message.body) is type(body)


def test_every_kind_is_tried_above():
    assert {kind for kind, _body in BODIES} == set(DirectoryKind)


@for_each(
    ("parts", "saw"),
    [
        ([], "0 frames"),
        ([b"HGD\x02\x12"], "1 frames"),
        ([b"HGX\x01\x12", b"{}"], "expected two of the directory"),
        ([b"HGD\x02", b"{}"], "expected two of the directory"),
        ([b"HGD\x02\x12", b"{}", b""], "3 frames"),
        ([b"HGD\x01\x12", b"{}"], "version 1"),
        ([b"HGD\x02\x63", b"{}"], "kind 99"),
        ([b"HGD\x02\x01", b"{}"], "kind 1"),
        ([b"HGD\x02\x12", b"{"], "not its JSON"),
        ([b"HGD\x02\x12", b'{"states": 3}'], "not its JSON"),
        ([b"HGD\x02\x12", b"[" * 100_000], "not its JSON"),
        ([b"HGD\x02\x13", b'[["n", "call", 1]]' + b" " * wire.JSON_BYTES_MAX], "bytes of JSON"),
    ],
)
def test_other_bytes_are_refused(parts, saw):
    with pytest.raises(Malformed, match=saw):
        wire.decode(parts)


def test_another_version_is_told_apart():
    with pytest.raises(Malformed) as caught:
        wire.decode([b"HGD\x07\x12", b"{}"])
    assert caught.value.unknown_version


@for_each(
    "bad",
    [
        state(node=""),
        state(node="a\0b"),
        state(node="a\nb"),
        state(node="x" * 256),
        state(pipeline="post"),
        state(incarnation=-1),
        state(version=1 << 63),
        state(endpoint="ipc:///etc/passwd"),
        state(endpoint="tcp://*:1"),
        state(endpoint="tcp://eth0;host:1"),
        state(endpoint="tcp://host"),
        state(key="short"),
        state(records=[Record("nova", "t" * 300, "s", "l")]),
        state(records=[Record("nova", "t", "s", "")]),
        state(records=[Record("nova", "t", "s", "l", "pool")]),
        state(pipeline="fanout", records=[rpc("a")]),
        state(pipeline="notify", records=[Record("nova", "t.info", "server", "l", "p")]),
        state(pipeline="notify", records=[Record("nova", "t.info", "", "l", "p" * 256)]),
        state(records=[rpc("a")] * (RECORDS_MAX + 1)),
        state(records=[Record("e" * 200, "t" * 200, f"{at}" + "s" * 200, "l") for at in range(7_000)]),
    ],
)
def test_states_that_cannot_be_are_refused(bad):
    with pytest.raises(Malformed):
        wire.decode(list(wire.encode(DirectoryKind.ANNOUNCE, bad)), wire.TO_DIRECTORY)


@for_each("good", ["", "tcp://host.example:9501", "tcp://127.0.0.1:1", "tcp://[fe80::1%eth0]:9501"])
def test_endpoints_that_can_be(good):
    wire.check_state(state(endpoint=good))


@for_each(
    ("kind", "body"),
    [
        (DirectoryKind.BEAT, (Beat("n1", "other", 1, 1),)),
        (DirectoryKind.LEAVE, Beat("", "call", 1, 1)),
    ],
)
def test_other_values_that_cannot_be(kind, body):
    with pytest.raises(Malformed):
        wire.decode(list(wire.encode(kind, body)), wire.TO_DIRECTORY)


@for_each(
    ("kind", "body"),
    [
        (DirectoryKind.WELCOME, Welcome("n1", 1, 0.0)),
        (DirectoryKind.WELCOME, Welcome("n1", 1, 1e9)),
        (DirectoryKind.GONE, (Gone("n1", "call", 1, "w" * 65),)),
        (DirectoryKind.REFUSED, DirectoryRefused("r" * 1025)),
        (DirectoryKind.GONE, (Gone("n1", "nowhere", 1),)),
        (DirectoryKind.GONE, (Gone("n1", "call", 1),) * 20_000),
        (DirectoryKind.STATES, States((state(),) * 20_000)),
    ],
)
def test_values_of_a_directory_that_cannot_be(kind, body):
    with pytest.raises(Malformed):
        wire.decode(list(wire.encode(kind, body)))


def test_a_record_keeps_the_fields_of_its_pipeline_only():
    full = Record("nova", "t", "s", "l", "p")
    assert wire.canonical("call", full) == wire.canonical("cast", full) == Record("nova", "t", "s", "l")
    assert wire.canonical("fanout", full) == Record("nova", "t")
    assert wire.canonical("notify", full) == Record("nova", "t", "", "l", "p")
    assert wire.fits_record("call", Record("nova", "t", "s", "l"))
    assert not wire.fits_record("call", full)


def test_a_snapshot_is_cut_where_it_would_hold_others_up():
    many = [state(f"n{at}", records=[rpc(f"{at}-{number}") for number in range(900)]) for at in range(5)]
    parts = wire.chunks(many)
    assert [len(wire.decode(list(part)).body.states) for part in parts] == [2, 2, 1]
    assert wire.chunks([]) == []
    assert wire.decode(list(wire.COMPLETE)).body == States((), complete=True)


@for_each("name", ['"' * 64, "\U0001f41f" * 63])
def test_the_largest_state_that_may_be_announced_can_be_told(name):
    count = min(RECORDS_MAX, STATE_CHARS_MAX // (len(name) + 5))
    largest = state(records=[Record("", name, "", f"{at:05}") for at in range(count)])
    wire.check_state(largest)
    (part,) = wire.chunks([largest])
    assert len(part[1]) < wire.JSON_BYTES_MAX
    assert len(wire.encode(DirectoryKind.ANNOUNCE, largest)[1]) < wire.JSON_BYTES_MAX
    assert msgspec.json.decode(part[1], type=States).states == (largest,)
    assert isinstance(largest, State)
