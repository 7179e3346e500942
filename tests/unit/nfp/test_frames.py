"""Every captured message of the NORFAB protocol decodes to its parts and is written back byte for byte."""

import json

import pytest
import zmq

from broker.nfp import frames as room
from broker.nfp.frames import InvalidPacket, Packet, decode, encode, parse_status
from broker.nfp.names import Command, Dialect, Sender
from broker.nfp.targets import ALL, ANY, Target, parse, render
from tests.tables import for_each
from tests.vectors import NfpMessage, nfp

UUID = b"5eed"


def valid() -> list[NfpMessage]:
    return [message for message in nfp() if "error" not in message.decoded]


def invalid() -> list[NfpMessage]:
    return [message for message in nfp() if "error" in message.decoded]


def case(message: NfpMessage) -> str:
    return f"{message.place}-{message.case}"


def body_said(data: bytes, form: str) -> object:
    """The body as the record writes it."""
    if form == "json":
        return json.loads(data)
    return data.decode() if form == "text" else data.hex()


def said(packet: Packet, decoded: dict) -> dict:
    """Everything the packet says, under the names of the record."""
    parts = {
        "dialect": packet.dialect.value,
        "role": packet.sender.name.lower(),
        "command": packet.command.name,
        "service": packet.service,
        "uuid": packet.uuid,
        "client": (packet.client or b"").decode(),
        "quirk": packet.quirk,
    }
    parts = {key: value for key, value in parts.items() if value}
    if packet.target is not None:
        names = {"names": list(packet.target.names)} if packet.target.names else {}
        parts["target"] = {"kind": packet.target.kind, **names}
    if packet.status:
        parts["status"] = {"code": packet.status, "text": packet.status_text}
    if packet.body is not None:
        (form,) = decoded.get("body", {"none": None})
        parts["body"] = {form: body_said(packet.data, form)}
    return parts


def test_all_are_there() -> None:
    assert (len(valid()), len(invalid())) == (85, 17)


@for_each("message", valid, ids=case)
def test_valid(message: NfpMessage) -> None:
    packet = decode(message.frames)
    assert said(packet, message.decoded) == message.decoded
    assert encode(packet) == message.frames


@for_each("message", valid, ids=case)
def test_valid_as_zeromq_hands_it_over(message: NfpMessage) -> None:
    """Frames that were received without copying; the body stays the frame it came in."""
    received = [zmq.Frame(frame) for frame in message.frames]
    packet = decode(received)
    assert said(packet, message.decoded) == message.decoded
    assert [bytes(frame) for frame in encode(packet)] == message.frames
    if packet.body is not None:
        assert packet.body is received[-1]


@for_each("message", invalid, ids=case)
def test_invalid(message: NfpMessage) -> None:
    with pytest.raises(InvalidPacket) as caught:
        decode(message.frames)
    assert caught.value.kind == message.decoded["error"]


def client(*frames: bytes, header: bytes = b"NFPC01") -> list[bytes]:
    return [b"", header, *frames]


@for_each(
    ("frames", "kind"),
    [
        ([], "short"),
        (client(b"0x04", b"s" * 256, b"all", UUID, b""), "service"),
        (client(b"0x04", b"s", b"all", b"", b""), "uuid"),
        (client(b"0x04", b"s", b"all", b"u" * 256, b""), "uuid"),
        (client(b"0x04", b"s", b"all", b"a\nb", b""), "encoding"),
        (client(b"0x04", b"s\0", b"all", UUID, b""), "encoding"),
        (client(b"0x04", b"s", b",", UUID, b""), "target"),
        (client(b"0x04", b"s", b"a\0b", UUID, b""), "target"),
        (client(b"0x04", b"s", b'["\\u0000"]', UUID, b""), "target"),
        (client(b"0x04", b"s", b'["\\ud800"]', UUID, b""), "target"),
        (client(b"0x04", b"s", b"w" * 256, UUID, b""), "target"),
        (client(b"0x04", b"s", b"[" * 5000, UUID, b""), "target"),
        (client(b"0x04", b"s", b"," * 3_000_000, UUID, b""), "target"),
        (client(b"0x04", b"s", b"\xff", UUID, b""), "encoding"),
        (client(b"0x04", b"s", b"all", UUID, b"", b"more"), "arity"),
        (client(b"\x04", b"s", b"all", UUID, *[b""] * 60), "arity"),
        (client(*[b""] * 5000), "arity"),
        (client(b"0x04" * 1000, b"s"), "command"),
        ([b"", b"NFPC01" * 1000, b"0x04"], "header"),
        (client(b"s", b"0x03"), "command"),
        (client(b"0x05", b"s", UUID, b"200", b"", header=b"NFPB01")[:-1], "arity"),
        (client(b"\x05", b"s", b"text", header=b"NFPB01"), "arity"),
        (client(b"0x05", b"", b"", UUID, b"200", b"", header=b"NFPW01"), "client"),
        (client(b"0x05", b"c" * 256, b"", UUID, b"200", b"", header=b"NFPW01"), "client"),
        (client(b"0x05", b"c", b"", UUID, b"200", b"", b"", header=b"NFPW01"), "arity"),
        (client(b"0x08", b"s", UUID, b"200", b"", b"", header=b"NFPB01"), "arity"),
        (client(b"0x08", b"s", UUID, b"200", b"", b"01", header=b"NFPB01"), "arity"),
        (client(b"0x08", b"s", UUID, b"200", b"", b"1" * 20, header=b"NFPB01"), "arity"),
        (client(b"0x08", b"s", UUID, b"200", b"", b"\xb2", header=b"NFPB01"), "arity"),
        (client(b"0x11", b"mmi", b"all", UUID, b"", header=b"NFPB01"), "status"),
        (client(b"0x01", b"s", b"x", header=b"NFPW01"), "arity"),
        (client(b"\x00", header=b"NFPW01"), "arity"),
    ],
)
def test_more_that_is_invalid(frames: list[bytes], kind: str) -> None:
    with pytest.raises(InvalidPacket) as caught:
        decode(frames)
    assert caught.value.kind == kind
    assert len(str(caught.value)) < 500


@for_each(
    "status",
    [b"", b"20", b"000", b"099", b"2000", b"200OK", b"\xb2\xb2\xb2", b" 200", b"+20", b"200 " + b"x" * 252],
)
def test_no_status(status: bytes) -> None:
    with pytest.raises(InvalidPacket) as caught:
        parse_status(status)
    assert caught.value.kind == "status"


def test_status_text_means_nothing() -> None:
    assert parse_status(b"999 any words") == (999, "any words")
    assert parse_status(b"200 ") == (200, "")
    assert parse_status(b"200 O\xffK") == (200, "OK")


def test_body_in_several_frames() -> None:
    """The text says "7 or more frames"; deployed NorFab's are exactly so many."""
    post = decode(client(b"\x04", b"s", b"any", UUID, b"a", b"", b"bc"))
    assert post.body == b"abc"
    answer = decode(client(b"\x05", b"s", UUID, b"200 OK", b"a", b"b", header=b"NFPW01"))
    assert (answer.body, answer.sequence) == (b"ab", None)
    relayed = decode(client(b"\x04", b"c1", b"", UUID, b"a", b"b", header=b"NFPB01"))
    assert (relayed.client, relayed.body) == (b"c1", b"ab")


@for_each("command", [b"\x05", b"\x08"])
def test_status_without_content(command: bytes) -> None:
    """The text: "a status frame followed by zero or more content frames"."""
    answer = decode(client(command, b"s", UUID, b"200 OK", header=b"NFPW01"))
    assert (answer.status, answer.data) == (200, b"")
    addressed = decode(client(command, b"c1", b"", UUID, b"200 OK", header=b"NFPW01"))
    assert (addressed.client, addressed.uuid, addressed.data) == (b"c1", "5eed", b"")
    assert encode(answer) == client(command, b"s", UUID, b"200 OK", b"", header=b"NFPW01")
    for frames in ([b"\x05", b"s", UUID], [b"\x05", b"c1", b"", UUID], [b"0x05", b"s", UUID, b"200"]):
        with pytest.raises(InvalidPacket) as caught:
            decode(client(*frames, header=b"NFPW01"))
        assert caught.value.kind == "arity"


@for_each("command", [b"\x04", b"\x06", b"\x07", b"0x04", b"0x11"])
def test_no_target_is_all(command: bytes) -> None:
    """The text: "all (default)"; in a message of the broker an empty fourth frame follows an address."""
    packet = decode(client(command, b"s", b"", UUID, b"{}"))
    assert (packet.target, packet.service, packet.client) == (ALL, "s", None)
    assert encode(packet)[4] == b"all"
    relayed = decode(client(command, b"c1#1", b"", UUID, b"{}", header=b"NFPB01"))
    assert (relayed.target, relayed.client) == (None, b"c1#1")


def test_sequence_of_a_subscription() -> None:
    frames = client(b"0x08", b"s", UUID, b"200", b"{}", b"17", header=b"NFPB01")
    packet = decode(frames)
    assert (packet.sequence, packet.body) == (17, b"{}")
    assert encode(packet) == frames


def test_management_of_a_worker_is_told_from_an_answer() -> None:
    """A job called "200" changes nothing: the request has an address, the answer has none."""
    request = decode(client(b"0x11", b"cli#1", b"", b"200", b"{}", header=b"NFPB01"))
    assert (request.client, request.uuid, request.status) == (b"cli#1", "200", 0)
    answer = decode(client(b"0x11", b"mmi", UUID, b"200", b"{}", header=b"NFPB01"))
    assert (answer.service, answer.uuid, answer.status) == ("mmi", "5eed", 200)
    for packet in (request, answer):
        assert decode(encode(packet)).uuid == packet.uuid


@for_each(
    "packet",
    [
        Packet(Sender.CLIENT, Command.PUT, dialect=Dialect.SEED, service="s", target=ANY, uuid="u"),
        Packet(Sender.BROKER, Command.MMI, service="s", target=ANY, uuid="u"),
        Packet(Sender.CLIENT, Command.POST, service="s", uuid="u"),
        Packet(Sender.CLIENT, Command.POST, service="s", target=ANY),
        Packet(Sender.CLIENT, Command.POST, target=ANY, uuid="u"),
        Packet(Sender.WORKER, Command.RESPONSE, service="s", uuid="u"),
        Packet(Sender.WORKER, Command.READY),
    ],
    ids=repr,
)
def test_what_nobody_could_read_is_not_written(packet: Packet) -> None:
    with pytest.raises(ValueError, match=r"has no|has neither"):
        encode(packet)


def test_a_missing_body_is_an_empty_frame() -> None:
    post = Packet(Sender.CLIENT, Command.POST, service="s", target=ANY, uuid="u")
    assert encode(post) == client(b"0x04", b"s", b"any", b"u", b"")
    answer = Packet(Sender.BROKER, Command.RESPONSE, service="s", uuid="u", status=200)
    assert encode(answer) == client(b"0x05", b"s", b"u", b"200", b"", header=b"NFPB01")
    assert encode(Packet(Sender.WORKER, Command.OPEN)) == client(b"0x00", b"", header=b"NFPW01")


def test_errors_show_little_of_what_came() -> None:
    with pytest.raises(InvalidPacket) as caught:
        decode(client(b"\x04", b"s", b"secret" * 100 + b"\n", UUID, b""))
    assert str(caught.value).count("secret") <= room.SHOWN_BYTES // 6 + 1


@for_each(
    ("target", "array", "text"),
    [
        (Target("list", ("a", "b")), True, '["a","b"]'),
        (Target("list", ("a", "b")), False, "a,b"),
        (Target("list", ("all",)), False, '["all"]'),
        (Target("list", ("a,b", "c")), False, '["a,b","c"]'),
        (Target("list", ("[a",)), False, '["[a"]'),
        (Target("name", ("a",)), False, "a"),
        (ANY, True, "any"),
    ],
)
def test_targets_are_written_as_they_mean(target: Target, array: bool, text: str) -> None:
    assert render(target, array=array) == text
    again = parse(text)
    assert again is not None
    assert (again.names or again.kind) == (target.names or target.kind)


def test_targets_read() -> None:
    assert parse("w1, w2,,w1") == Target("list", ("w1", "w2"))
    assert parse('["w1","w1"]') == Target("list", ("w1",))
    assert parse("[1]") is None
    assert parse(",") is None
